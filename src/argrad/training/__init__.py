"""Training: the loop, schedules, checkpoints, several processes."""

from argrad.training.files import BrokenFile, read_tensors
from argrad.training.loop import Diverged, Interrupted, LoopSettings, Progress, Task, Trained, train
from argrad.training.run_folder import RunFolder, settings_from_config
from argrad.training.schedules import Decay, WarmUp
from argrad.training.world import World

__all__ = [
    "BrokenFile",
    "Decay",
    "Diverged",
    "Interrupted",
    "LoopSettings",
    "Progress",
    "RunFolder",
    "Task",
    "Trained",
    "WarmUp",
    "World",
    "read_tensors",
    "settings_from_config",
    "train",
]
