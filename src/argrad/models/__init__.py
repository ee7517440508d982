"""Ready models: plain PyTorch modules, their training, and scikit-learn estimators, which are imported on first use."""

from typing import TYPE_CHECKING, Any

from argrad.models.dead_codes import perplexity, revive, used
from argrad.models.vae_module import DiscreteVAEModule, default_networks
from argrad.models.vae_run import TrainSettings, build, load_run, train_run
from argrad.models.vae_task import Schedules, VAETask

if TYPE_CHECKING:
    from argrad.models.discrete_vae import DiscreteVAE
else:

    def __getattr__(name: str) -> Any:
        """Import a scikit-learn estimator when it is asked for."""
        if name == "DiscreteVAE":
            from argrad.models.discrete_vae import DiscreteVAE

            globals()[name] = DiscreteVAE
            return DiscreteVAE
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "DiscreteVAE",
    "DiscreteVAEModule",
    "Schedules",
    "TrainSettings",
    "VAETask",
    "build",
    "default_networks",
    "load_run",
    "perplexity",
    "revive",
    "train_run",
    "used",
]
