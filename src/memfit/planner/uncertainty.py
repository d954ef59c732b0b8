"""What a prediction for a GPU cannot know, each part with its bytes and its reason.

The parts are added up: the most that a run may take is its predicted peak and all that may come
on top at once.  Nothing here is a margin: a part has bytes because another replay gives them, or
because a document does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memfit.devices.context import Estimate
from memfit.planner.rig import Rig
from memfit.planner.simulate import Simulated, reserved_growth_of_last_step
from memfit.records.prediction import Lengths, Uncertainty
from memfit.records.replay import Replay
from memfit.records.timeline import ORIGINS, Timeline

_UNBOUNDED = {
    "unknown values read": "the run may take another way where it asks for values that a "
    "prediction does not have",
    "sizes from unknown values": "results whose size hangs on values are taken at their largest",
    "no steps": "without an optimizer step this is only a part of training",
    "scratch unknown": "ops whose scratch memory has no rule",
    "record_stream": "when another stream is done with a tensor hangs on time",
    "CUDA graphs": "a captured graph keeps a pool of its own",
    "ranks": "only one rank is run, and what NCCL takes is not counted",
    "compile": "compiled code fuses ops, and frees and keeps other tensors than eager code",
}
"""Facts of a Timeline that a prediction should be weighed by, and why."""

_ESTIMATED = "estimated workspaces"


def parts(
    simulated: Simulated, rig: Rig, *, lengths: Lengths | None = None
) -> tuple[tuple[Uncertainty, ...], tuple[int, int]]:
    """All that is uncertain about a run on a rig, and the range of its allocated peak.

    Only parts that can move a peak are listed: the device's, or the allocated one alone.
    """
    others = [rig.replay(simulated.timeline, addresses=name) for name in rig.other_addresses]
    unlimited = simulated.unlimited
    estimated = [rig.replay(variant) for variant in _estimates_at_their_ends(simulated.timeline)]
    found = [
        _between(
            "segment addresses",
            unlimited,
            others,
            f"torch {rig.version} takes the lower address of equal free blocks, and where the "
            "driver puts segments is not known",
        ),
        _between(
            _ESTIMATED,
            unlimited,
            estimated,
            "libraries choose kernels at run time: the workspaces are taken at nothing and at "
            "twice their estimate",
        ),
        _full_card(simulated),
        _lengths(lengths) if lengths is not None else _unsteady(simulated),
        _estimate("CUDA context", rig.context),
        _estimate("driver's growth", rig.growth),
    ]
    allocated = [r.peak_allocated_bytes for r in (simulated.replay, unlimited, *others, *estimated)]
    moves_allocated = any(
        replay.peak_allocated_bytes != unlimited.peak_allocated_bytes for replay in estimated
    )
    bounded = tuple(
        part
        for part in found
        if part.below_bytes or part.above_bytes or (part.name == _ESTIMATED and moves_allocated)
    )
    return bounded + _unbounded(simulated.timeline), (min(allocated), max(allocated))


def leanest(timeline: Timeline) -> Timeline:
    """The run with everything that is only estimated at its smallest."""
    return next(iter(_estimates_at_their_ends(timeline)), timeline)


def _estimates_at_their_ends(timeline: Timeline) -> list[Timeline]:
    """The run with estimated blocks at 0 bytes, and at twice their size; nothing without any."""
    estimated = timeline.origins == ORIGINS.index("estimate")
    if not np.any(estimated):
        return []
    return [
        replace(
            timeline, num_bytes=np.where(estimated, factor * timeline.num_bytes, timeline.num_bytes)
        )
        for factor in (0, 2)
    ]


def _between(name: str, expected: Replay, others: list[Replay], reason: str) -> Uncertainty:
    peaks = [replay.peak_reserved_bytes for replay in (expected, *others)]
    return Uncertainty(
        name=name,
        below_bytes=peaks[0] - min(peaks),
        above_bytes=max(peaks) - peaks[0],
        reason=reason,
    )


def _full_card(simulated: Simulated) -> Uncertainty:
    wanted, held = simulated.unlimited.peak_reserved_bytes, simulated.replay.peak_reserved_bytes
    return Uncertainty(
        name="a full card",
        below_bytes=max(0, held - wanted),
        above_bytes=max(0, wanted - held),
        reason="the allocator gives cached memory back and asks again when the card is full; with "
        "more room it would keep this",
    )


def _unsteady(simulated: Simulated) -> Uncertainty:
    steps = int(simulated.timeline.steps.max(initial=0))
    return Uncertainty(
        name="steps that do not repeat",
        below_bytes=0,
        above_bytes=0 if simulated.is_steady else reserved_growth_of_last_step(simulated),
        reason=f"the allocator's state had not repeated after {steps} steps; as much as the last "
        "one added may come again",
    )


def _lengths(lengths: Lengths) -> Uncertainty:
    return Uncertainty(
        name="batch lengths",
        below_bytes=max(0, lengths.growth_bytes),
        above_bytes=lengths.other_orders_bytes,
        reason=f"what {lengths.num_steps} steps of drawn lengths reserve beyond the longest alone, "
        "and what other draws reserve beyond that",
    )


def _estimate(name: str, size: Estimate) -> Uncertainty:
    return Uncertainty(
        name=name,
        below_bytes=size.num_bytes - size.low,
        above_bytes=size.high - size.num_bytes,
        reason=size.source,
        is_outside=True,
    )


def _unbounded(timeline: Timeline) -> tuple[Uncertainty, ...]:
    return tuple(
        Uncertainty(
            name=fact, below_bytes=0, above_bytes=None, reason=f"{why}: {timeline.facts[fact]}"
        )
        for fact, why in _UNBOUNDED.items()
        if fact in timeline.facts
    )
