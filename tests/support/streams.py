"""What a GPU was asked for, event by event: as it was recorded, and as it is predicted."""

from __future__ import annotations

from itertools import groupby, zip_longest

import numpy as np

from memfit.profiler.snapshot import Recording
from memfit.records.timeline import PHASES, Timeline

Event = tuple[int, int]
"""(block, requested bytes): the n-th allocation is block n, its free -n; blocks that are older than
the stream are 0 when they are freed."""


def recorded_stream(recording: Recording) -> list[Event]:
    """Every allocation and free of a recording."""
    numbers: dict[int, int] = {}
    stream: list[Event] = []
    count = 0
    for event in recording.events:
        if event.action == "alloc":
            count += 1
            numbers[event.address] = count
            stream.append((count, event.num_bytes))
        elif event.action == "free_completed":
            stream.append((-numbers.pop(event.address, 0), event.num_bytes))
    return stream


def predicted_stream(timeline: Timeline, phases: tuple[str, ...] = ()) -> list[Event]:
    """Every allocation and free in some phases of the last step; empty tensors are none.

    Without phases it is the whole run, up to its taking down in the phase ``save``.
    """
    if phases:
        codes = [PHASES.index(phase) for phase in phases]
        counts = (timeline.steps == timeline.steps.max()) & np.isin(timeline.phases, codes)
    else:
        counts = timeline.phases != PHASES.index("save")
    numbers: dict[int, int] = {}
    stream: list[Event] = []
    for event in timeline.events[counts].tolist():
        num_bytes = int(timeline.num_bytes[abs(event) - 1])
        if not num_bytes:
            continue
        if event > 0:
            numbers[event] = len(numbers) + 1
            stream.append((numbers[event], num_bytes))
        else:
            stream.append((-numbers.get(-event, 0), num_bytes))
    return stream


def frees_in_any_order(stream: list[Event]) -> list[Event]:
    """The stream with the frees between two allocations sorted."""
    ordered: list[Event] = []
    for is_free, run in groupby(stream, key=lambda event: event[0] <= 0):
        events = list(run)
        ordered += sorted(events) if is_free else events
    return ordered


def first_difference(recorded: list[Event], predicted: list[Event]) -> str:
    """Where two streams part, in words; empty when they do not."""
    for index, (left, right) in enumerate(zip_longest(recorded, predicted)):
        if left != right:
            return f"event {index}: recorded {left}, predicted {right}"
    return ""
