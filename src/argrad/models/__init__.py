"""Ready models: plain PyTorch modules, their training, and scikit-learn estimators, which are imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from argrad.models.attributes.module import AttributeModule, convolutional_networks
from argrad.models.completion.module import CompletionModule
from argrad.models.dead_codes import perplexity, revive, used
from argrad.models.discrete_vae.module import DiscreteVAEModule, default_networks
from argrad.models.discrete_vae.run import TrainSettings, build, load_run, train_run
from argrad.models.discrete_vae.task import Schedules, VAETask
from argrad.models.hashing.module import HashingModule
from argrad.models.semi_supervised.augmentation import AUGMENTATIONS, Augmentation
from argrad.models.semi_supervised.loss import Objective, Terms
from argrad.models.semi_supervised.module import SemiSupervisedModule
from argrad.models.sequence_gan.module import SequenceGANModule
from argrad.models.sequence_gan.run import SequenceGANSettings
from argrad.models.tokenizer.module import TokenizerModule
from argrad.models.tokenizer.prior import CodePrior

if TYPE_CHECKING:
    from argrad.models.anatomy.scikit_learn import AnatomicalSegmenter
    from argrad.models.attributes.scikit_learn import AttributeVAE
    from argrad.models.completion.scikit_learn import ImageCompleter
    from argrad.models.discrete_vae.scikit_learn import DiscreteVAE
    from argrad.models.hashing.scikit_learn import HashingEncoder
    from argrad.models.semi_supervised.scikit_learn import SemiSupervisedVAE
    from argrad.models.sequence_gan.model import SequenceGAN
    from argrad.models.tokenizer.scikit_learn import Tokenizer
else:
    MODULES = {
        "AnatomicalSegmenter": "anatomy.scikit_learn",
        "AttributeVAE": "attributes.scikit_learn",
        "DiscreteVAE": "discrete_vae.scikit_learn",
        "HashingEncoder": "hashing.scikit_learn",
        "ImageCompleter": "completion.scikit_learn",
        "SemiSupervisedVAE": "semi_supervised.scikit_learn",
        "SequenceGAN": "sequence_gan.model",
        "Tokenizer": "tokenizer.scikit_learn",
    }

    def __getattr__(name: str) -> Any:
        """Import a scikit-learn estimator when it is asked for."""
        if name in MODULES:
            globals()[name] = getattr(import_module(f"argrad.models.{MODULES[name]}"), name)
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "AUGMENTATIONS",
    "AnatomicalSegmenter",
    "AttributeModule",
    "AttributeVAE",
    "Augmentation",
    "CodePrior",
    "CompletionModule",
    "DiscreteVAE",
    "DiscreteVAEModule",
    "HashingEncoder",
    "HashingModule",
    "ImageCompleter",
    "Objective",
    "Schedules",
    "SemiSupervisedModule",
    "SemiSupervisedVAE",
    "SequenceGAN",
    "SequenceGANModule",
    "SequenceGANSettings",
    "Terms",
    "Tokenizer",
    "TokenizerModule",
    "TrainSettings",
    "VAETask",
    "build",
    "convolutional_networks",
    "default_networks",
    "load_run",
    "perplexity",
    "revive",
    "train_run",
    "used",
]
