"""A traced run on a rig: its steps repeated until nothing changes, and what the allocator does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memfit.allocator.addresses import POLICIES
from memfit.planner import answer
from memfit.planner.rig import Rig
from memfit.records.prediction import Attempt, OutOfMemory
from memfit.records.replay import Replay
from memfit.records.timeline import Timeline


class Simulated(NamedTuple):
    """A run as the allocator sees it."""

    timeline: Timeline
    is_steady: bool
    """Whether the allocator's state at the end of a step had repeated an earlier one."""

    unlimited: Replay
    """With all the room it wants."""

    attempt: Attempt
    """In the room that is expected to be there."""

    replay: Replay
    """In that room when it goes through, else with all it wants: what it would need."""


def simulate(timeline: Timeline, rig: Rig) -> Simulated:
    """Repeats the last step of ``timeline`` until it is steady, and replays the run."""
    repeated, is_steady = rig.repeat(timeline)
    return replay_in_room(repeated, rig, is_steady=is_steady)


def replay_in_room(timeline: Timeline, rig: Rig, *, is_steady: bool) -> Simulated:
    """Replays a run as it is, without limit and in the room that is expected."""
    unlimited, room = rig.replay(timeline), rig.expected_room_bytes
    if unlimited.peak_reserved_bytes <= room and not rig.collects_garbage:
        # Nothing is refused, so nothing differs.
        attempt = Attempt(
            room_bytes=room, addresses=POLICIES[0], num_alloc_retries=0, out_of_memory=None
        )
        return Simulated(timeline, is_steady, unlimited, attempt, unlimited)
    attempt, limited = attempt_in(timeline, rig, room)
    replay = limited if attempt.out_of_memory is None else unlimited
    return Simulated(timeline, is_steady, unlimited, attempt, replay)


def attempts(simulated: Simulated, rig: Rig, leanest: Timeline) -> tuple[Attempt, ...]:
    """The run in the room that is expected and, if that fails, in the most there may be.

    ``leanest`` is the run with everything that is only estimated at its smallest.
    """
    found = [simulated.attempt]
    if simulated.attempt.out_of_memory is not None:
        for addresses in (POLICIES[0], *rig.other_addresses):
            attempt, _ = attempt_in(leanest, rig, rig.most_room_bytes, addresses)
            found.append(attempt)
    return tuple(found)


def attempt_in(
    timeline: Timeline, rig: Rig, room_bytes: int, addresses: str = POLICIES[0]
) -> tuple[Attempt, Replay]:
    """The run where the allocator can take ``room_bytes`` of the device, and not more."""
    replay = rig.replay(timeline, room_bytes=room_bytes, addresses=addresses)
    event, out_of_memory = replay.out_of_memory_event, None
    if event >= 0:
        block = int(timeline.events[event]) - 1
        out_of_memory = OutOfMemory(
            moment=answer.moment(timeline, event),
            asked_bytes=int(timeline.num_bytes[block]),
            reserved_bytes=int(replay.reserved[event]),
        )
    attempt = Attempt(
        room_bytes=room_bytes,
        addresses=addresses,
        num_alloc_retries=replay.num_alloc_retries,
        out_of_memory=out_of_memory,
    )
    return attempt, replay


def reserved_growth_of_last_step(simulated: Simulated) -> int:
    """What the last step added to the reserved peak, in bytes: 0 when it repeats."""
    steps, reserved = simulated.timeline.steps, simulated.unlimited.reserved
    before = reserved[steps < steps.max(initial=0)]
    return int(reserved.max(initial=0) - before.max(initial=0)) if np.any(steps > 1) else 0
