"""Fit the training run you want into the GPU memory you have.

The names in ``__all__`` are the public face; everything else is free to move.  Each is imported
when it is first used, so ``import memfit`` costs milliseconds and imports neither torch nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.api import apply, find_batch_size, train
    from memfit.errors import MemfitError
    from memfit.job import Job
    from memfit.models.huggingface import job_from_config
    from memfit.models.presets import preset
    from memfit.planner.predict import predict
    from memfit.records.device import Device
    from memfit.records.plan import Plan
    from memfit.records.prediction import Prediction
    from memfit.records.recipe import Recipe
    from memfit.records.replay import Replay
    from memfit.records.runlog import RunLog
    from memfit.records.timeline import Timeline

__version__ = "0.1.0"

__all__ = [
    "Device",
    "Job",
    "MemfitError",
    "Plan",
    "Prediction",
    "Recipe",
    "Replay",
    "RunLog",
    "Timeline",
    "__version__",
    "apply",
    "find_batch_size",
    "job_from_config",
    "predict",
    "preset",
    "train",
]

_HOMES = {
    "Device": "memfit.records.device",
    "Job": "memfit.job",
    "MemfitError": "memfit.errors",
    "Plan": "memfit.records.plan",
    "Prediction": "memfit.records.prediction",
    "Recipe": "memfit.records.recipe",
    "Replay": "memfit.records.replay",
    "RunLog": "memfit.records.runlog",
    "Timeline": "memfit.records.timeline",
    "apply": "memfit.api",
    "find_batch_size": "memfit.api",
    "job_from_config": "memfit.models.huggingface",
    "predict": "memfit.planner.predict",
    "preset": "memfit.models.presets",
    "train": "memfit.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memfit' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
