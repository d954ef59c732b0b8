"""Prediction: the answer to "will it fit?", and the record that every report is drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Outside:
    """Device memory that PyTorch's allocator does not see, in bytes."""

    context_bytes: int = 0
    """The CUDA context of the process."""

    growth_bytes: int = 0
    """What the driver takes on top when kernels run for the first time."""

    nccl_bytes: int = 0
    """Buffers of NCCL; 0 on one card."""

    @property
    def total_bytes(self) -> int:
        return self.context_bytes + self.growth_bytes + self.nccl_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """One thing that a prediction cannot know, and how far off that may put the device's peak."""

    name: str

    below_bytes: int
    """The true peak may be this much lower."""

    above_bytes: int | None
    """The true peak may be this much higher; None where nothing bounds it, and nothing is added."""

    reason: str
    """Why it is not known, and where the bytes come from."""

    is_outside: bool = False
    """Whether it is about memory outside the allocator: reserved bytes do not move with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """The allocation that a full device refuses."""

    moment: Moment
    asked_bytes: int
    reserved_bytes: int
    """What the allocator holds at that moment, after it has given back what it could."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """The run on a device that is too small for it to keep all it caches."""

    room_bytes: int
    """What the device leaves to the allocator."""

    addresses: str
    """Where the driver is taken to put fresh segments: one of the allocator's policies."""

    num_alloc_retries: int
    """How often cached memory had to be given back before an allocation succeeded."""

    out_of_memory: OutOfMemory | None
    """Where the run ends; None when it goes through."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """What batches of varying length do to reserved memory, beside the longest length alone."""

    shortest: int
    longest: int
    """Tokens of a sample: every step's are drawn from ``shortest`` to ``longest``."""

    num_steps: int
    """Steps until reserved memory had stopped growing, or until there were enough of them."""

    has_settled: bool
    """Whether it had stopped growing."""

    constant_reserved_bytes: int
    """The reserved peak when every batch has the longest length."""

    varying_reserved_bytes: int
    """The reserved peak when the lengths vary."""

    other_orders_bytes: int = 0
    """What other draws of the lengths reserve beyond that."""

    @property
    def growth_bytes(self) -> int:
        """What varying lengths reserve beyond the longest one."""
        return self.varying_reserved_bytes - self.constant_reserved_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """Whose allocator was simulated, and for how long."""

    torch: str
    """The release of PyTorch whose allocator and workspaces these are: ``2.11``."""

    alloc_conf: str
    """Its settings, as in ``PYTORCH_ALLOC_CONF``; empty for the defaults."""

    addresses: str
    """Where the driver is taken to put fresh segments."""

    num_steps: int
    is_steady: bool
    """Whether the allocator's state at a step's end had repeated an earlier one."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a run needs: peaks, where they are, and what they are made of."""

    job: str
    """The job's name; the command line of a script."""

    seq_len: int | None
    """Tokens of a sample, where samples are sequences; the longest, where they vary."""

    recipe: Recipe | None
    """None for a script, which runs as it is."""

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

    num_parameters: int | None
    """None for a script."""

    learnt_bytes: int
    """Bytes at the peak that were learnt by running an op, rather than traced or computed."""

    seconds: float
    """What the prediction took."""

    timeline: Timeline = field(repr=False)
    replay: Replay = field(repr=False)

    outside: Outside = Outside()
    """Nothing on the CPU, where the process is not counted."""

    uncertainty: tuple[Uncertainty, ...] = ()
    """What cannot be known; together they are the range around the device's peak."""

    attempts: tuple[Attempt, ...] = ()
    """The run on a full device, where it may come to that: first as expected, then with the most
    room there may be.  It does not fit when all of them run out."""

    allocated_range: tuple[int, int] | None = None
    """The least and the most that may be allocated; None where nothing moves it."""

    lengths: Lengths | None = None
    """None where all batches are of one length."""

    simulation: Simulation | None = None
    """None on the CPU."""

    @property
    def at_most_bytes(self) -> int:
        """The most that the run may take of the device, as far as that can be said."""
        return self.peak.device_bytes + sum(part.above_bytes or 0 for part in self.uncertainty)

    @property
    def at_least_bytes(self) -> int:
        """The least that the run may take of the device."""
        return self.peak.device_bytes - sum(part.below_bytes for part in self.uncertainty)

    @property
    def reserved_range(self) -> tuple[int, int]:
        """The least and the most that the allocator may hold."""
        inside = [part for part in self.uncertainty if not part.is_outside]
        peak = self.peak.reserved_bytes
        above = sum(part.above_bytes or 0 for part in inside)
        return peak - sum(part.below_bytes for part in inside), peak + above

    @property
    def fits(self) -> str:
        """``yes``: even the most it may take is inside the budget.  ``no``: it runs out of memory
        even with the most room there may be.  ``tight``: between the two.

        On the CPU, where nothing is uncertain, only yes and no.
        """
        if self.at_most_bytes <= self.budget_bytes:
            return "yes"
        return "tight" if any(a.out_of_memory is None for a in self.attempts) else "no"

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """Where the run is expected to end, when it does not fit."""
        if self.fits != "no" or not self.attempts:
            return None
        return self.attempts[0].out_of_memory

    def as_dict(self) -> dict[str, Any]:
        """The JSON of ``memfit predict --json``: everything but the curves."""
        least, most = self.reserved_range
        allocated = self.peak.allocated_bytes
        return {
            "job": self.job,
            "seq_len": self.seq_len,
            "peak": asdict(self.peak),
            "fits": self.fits,
            "budget_bytes": self.budget_bytes,
            "range": {
                "allocated_bytes": list(self.allocated_range or (allocated, allocated)),
                "reserved_bytes": [least, most],
                "device_bytes": [self.at_least_bytes, self.at_most_bytes],
            },
            "uncertainty": [asdict(part) for part in self.uncertainty],
            "outside": asdict(self.outside),
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "device": self.device.as_dict(),
            "recipe": None if self.recipe is None else self.recipe.as_dict(),
            "at_peak": asdict(self.at_peak),
            "breakdown": dict(self.breakdown),
            "phases": dict(self.phases),
            "largest": [dict(_tensor_items(tensor)) for tensor in self.largest],
            "fragmentation_bytes": self.replay.fragmentation_bytes,
            "segments": _segments(self.replay),
            "lengths": None if self.lengths is None else asdict(self.lengths),
            "simulation": None if self.simulation is None else asdict(self.simulation),
            "num_parameters": self.num_parameters,
            "learnt_bytes": self.learnt_bytes,
            "facts": dict(self.timeline.facts),
            "seconds": round(self.seconds, 3),
        }


def _tensor_items(tensor: LargeTensor) -> Iterator[tuple[str, Any]]:
    for key, value in asdict(tensor).items():
        yield ("bytes" if key == "num_bytes" else key), value


def _segments(replay: Replay) -> dict[str, int]:
    """The layout at the allocated peak in a few numbers."""
    segments = replay.segments
    free = (b.num_bytes for segment in segments for b in segment.blocks if b.block < 0)
    return {
        "count": len(segments),
        "bytes": sum(segment.num_bytes for segment in segments),
        "free_bytes": sum(free),
    }
