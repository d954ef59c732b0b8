"""What is read off a Timeline and its Replay: where the peak is, and what it is made of.

All bytes are those of the allocator's blocks, so that a breakdown sums to the allocated peak.
"""

from __future__ import annotations

import numpy as np

from memfit.records.prediction import LargeTensor, Moment
from memfit.records.replay import Replay
from memfit.records.timeline import CATEGORIES, ORIGINS, PHASES, Timeline

_NUM_LARGEST = 20


def moment(timeline: Timeline, event: int) -> Moment:
    """Where in the run ``event`` happens."""
    block = abs(int(timeline.events[event])) - 1
    return Moment(
        step=int(timeline.steps[event]),
        phase=PHASES[timeline.phases[event]],
        op=timeline.names[timeline.ops[block]],
        module=timeline.names[timeline.modules[block]],
    )


def breakdown(timeline: Timeline, replay: Replay) -> dict[str, int]:
    """Category -> bytes of its blocks at the peak, zero ones left out."""
    live = timeline.live_blocks(replay.peak_event)
    totals = np.zeros(len(CATEGORIES), dtype=np.int64)
    np.add.at(totals, timeline.categories[live], replay.block_bytes[live])
    return {name: int(total) for name, total in zip(CATEGORIES, totals, strict=True) if total}


def phase_peaks(timeline: Timeline, replay: Replay) -> dict[str, int]:
    """The highest allocated bytes in each phase that occurs."""
    return {
        name: int(replay.allocated[timeline.phases == code].max())
        for code, name in enumerate(PHASES)
        if np.any(timeline.phases == code)
    }


def largest(timeline: Timeline, event: int) -> tuple[LargeTensor, ...]:
    """The largest tensors that are live after ``event``, largest first, by requested bytes."""
    live = timeline.live_blocks(event)
    order = np.argsort(-timeline.num_bytes[live], kind="stable")[:_NUM_LARGEST]
    found = []
    for block in live[order]:
        dtype, bracket, shape = timeline.names[timeline.tensors[block]].partition("[")
        found.append(
            LargeTensor(
                num_bytes=int(timeline.num_bytes[block]),
                shape=bracket + shape,
                dtype=dtype,
                op=timeline.names[timeline.ops[block]],
                module=timeline.names[timeline.modules[block]],
                category=CATEGORIES[timeline.categories[block]],
            )
        )
    return tuple(found)


def learnt_bytes(timeline: Timeline, event: int) -> int:
    """Bytes live after ``event`` that were learnt by running an op once."""
    live = timeline.live_blocks(event)
    learnt = timeline.origins[live] == ORIGINS.index("learnt")
    return int(timeline.num_bytes[live][learnt].sum())
