"""Prediction: the answer to "will it fit?", and the record that every report is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from memfit.records.device import Device
from memfit.records.recipe import Recipe
from memfit.records.replay import Replay
from memfit.records.timeline import Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The highest bytes of a run, as each layer of the machine counts them."""

    requested_bytes: int
    """What the tensors need."""

    allocated_bytes: int
    """The allocator's blocks handed out (``torch.cuda.memory_allocated``)."""

    reserved_bytes: int
    """What the allocator holds of the device (``torch.cuda.memory_reserved``)."""

    device_bytes: int
    """All that the run takes of the device (``nvidia-smi``); on the CPU the tensors alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Where in the run something happens."""

    step: int
    phase: str
    op: str
    module: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LargeTensor:
    """One of the largest blocks that are live at the peak."""

    num_bytes: int
    shape: str
    """``[8, 1024, 768]``; empty when unknown."""

    dtype: str
    op: str
    module: str
    category: str


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a run needs: peaks, where they are, and what they are made of."""

    job: str
    """The job's name."""

    seq_len: int | None
    """Tokens of a sample, where samples are sequences."""

    recipe: Recipe
    device: Device

    budget_bytes: int
    """What it must fit into: ``--memory``, or all of the device."""

    peak: Peak
    at_peak: Moment

    breakdown: Mapping[str, int]
    """Category -> bytes at the peak; they sum to the allocated peak."""

    phases: Mapping[str, int]
    """Phase -> the highest allocated bytes in it."""

    largest: tuple[LargeTensor, ...]
    """The largest blocks at the peak, largest first."""

    num_parameters: int

    learnt_bytes: int
    """Bytes at the peak that were learnt by running an op, rather than traced or computed."""

    seconds: float
    """What the prediction took."""

    timeline: Timeline = field(repr=False)
    replay: Replay = field(repr=False)

    @property
    def fits(self) -> bool:
        """Whether the peak of the device is inside the budget."""
        return self.peak.device_bytes <= self.budget_bytes

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``memfit predict --json``: everything but the curves."""
        return {
            "job": self.job,
            "seq_len": self.seq_len,
            "peak": asdict(self.peak),
            "fits": "yes" if self.fits else "no",
            "budget_bytes": self.budget_bytes,
            "device": self.device.as_dict(),
            "recipe": self.recipe.as_dict(),
            "at_peak": asdict(self.at_peak),
            "breakdown": dict(self.breakdown),
            "phases": dict(self.phases),
            "largest": [
                {
                    ("bytes" if key == "num_bytes" else key): value
                    for key, value in asdict(t).items()
                }
                for t in self.largest
            ],
            "num_parameters": self.num_parameters,
            "learnt_bytes": self.learnt_bytes,
            "facts": dict(self.timeline.facts),
            "seconds": round(self.seconds, 3),
        }
