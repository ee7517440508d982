"""Ready models: plain PyTorch modules, their training, and scikit-learn estimators, which are imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from argrad.models.attribute_module import AttributeModule, convolutional_networks
from argrad.models.completion_module import CompletionModule
from argrad.models.dead_codes import perplexity, revive, used
from argrad.models.hashing_module import HashingModule
from argrad.models.semi_supervised_augmentation import AUGMENTATIONS, Augmentation
from argrad.models.semi_supervised_loss import Objective, Terms
from argrad.models.semi_supervised_module import SemiSupervisedModule
from argrad.models.sequence_gan_module import SequenceGANModule
from argrad.models.sequence_gan_run import SequenceGANSettings
from argrad.models.tokenizer_module import TokenizerModule
from argrad.models.tokenizer_prior import CodePrior
from argrad.models.vae_module import DiscreteVAEModule, default_networks
from argrad.models.vae_run import TrainSettings, build, load_run, train_run
from argrad.models.vae_task import Schedules, VAETask

if TYPE_CHECKING:
    from argrad.models.anatomical_segmenter import AnatomicalSegmenter
    from argrad.models.attributes import AttributeVAE
    from argrad.models.completion import ImageCompleter
    from argrad.models.discrete_vae import DiscreteVAE
    from argrad.models.hashing import HashingEncoder
    from argrad.models.semi_supervised import SemiSupervisedVAE
    from argrad.models.sequence_gan import SequenceGAN
    from argrad.models.tokenizer import Tokenizer
else:
    MODULES = {
        "AnatomicalSegmenter": "anatomical_segmenter",
        "AttributeVAE": "attributes",
        "DiscreteVAE": "discrete_vae",
        "HashingEncoder": "hashing",
        "ImageCompleter": "completion",
        "SemiSupervisedVAE": "semi_supervised",
        "SequenceGAN": "sequence_gan",
        "Tokenizer": "tokenizer",
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
