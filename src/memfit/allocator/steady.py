"""Repeats the last traced step until the allocator's state repeats.

A trace takes a few steps.  The blocks of the next one come from what the last one left behind, so
reserved memory can grow, and blocks can be taken with other tails, for several steps more; then
the layout at a step's end is one that was there before, and nothing new can happen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from memfit.allocator.blocks import Block
from memfit.allocator.caching import CachingAllocator
from memfit.allocator.replay import Run
from memfit.allocator.settings import Settings
from memfit.allocator.version import TorchVersion
from memfit.records.timeline import PHASES, Action, Timeline

STEP_PHASES = tuple(PHASES.index(name) for name in ("forward", "backward", "optimizer"))


def repeat_until_steady(
    timeline: Timeline,
    *,
    version: TorchVersion,
    settings: Settings = Settings(),  # noqa: B008  # frozen
    capacity_bytes: int | None = None,
    addresses: str = "ascending",
    total_bytes: int | None = None,
    max_steps: int = 16,
) -> tuple[Timeline, bool]:
    """The Timeline with its last whole step repeated, and whether a state came back.

    The copies stand before what follows the last step (an evaluation, say).  A copy frees the
    blocks of the copy before it where the step freed those of the step before it.  When the last
    two steps do not ask for the same sizes in the same order, or memory runs out, the Timeline is
    returned as it is, with False.

    Args:
        max_steps: the most steps that the result has, traced ones included.
    """
    last = _last_step(timeline)
    if last is None:
        return timeline, False
    allocator = CachingAllocator(
        version=version,
        settings=settings,
        capacity_bytes=capacity_bytes,
        addresses=addresses,
        total_bytes=total_bytes,
    )
    num_steps = int(timeline.steps[last.start])
    most = last.repeated(max(max_steps - num_steps, 0))
    run = Run(most, allocator)
    seen: set[Hashable] = set()
    for copies in range(max(max_steps - num_steps, 0) + 1):
        run.play(last.end + copies * last.num_events)
        if run.out_of_memory_event >= 0:
            return timeline, False
        state = _state(run, last, copies)
        if state in seen:
            return last.repeated(copies), True
        seen.add(state)
    return most, False


def _state(run: Run, last: _LastStep, copies: int) -> Hashable:
    """The layout, which decides all that comes: equal states are followed by equal steps.

    Segments stand in the order in which equal blocks are chosen from them; where they lie does
    not matter otherwise, and changes when a step empties the cache.  Blocks made in steps are
    named by how many steps ago and by which allocation.
    """
    first = last.first_block + copies * last.num_blocks
    names: dict[Block, tuple[int, int]] = {}
    for number, block in run.blocks.items():
        if number < last.first_block - last.num_blocks:
            names[block] = (0, -1 - number)
        else:
            names[block] = divmod(number - first, last.num_blocks)
    chains = sorted(run.allocator.chains(), key=lambda chain: chain[0].rank)
    return tuple((_place(chain[0]), *_contents(chain, names)) for chain in chains)


def _place(head: Block) -> Hashable:
    unmapped_before = head.prev.size if head.prev is not None else 0
    return head.stream, head.pool.is_small, unmapped_before


def _contents(chain: list[Block], names: dict[Block, tuple[int, int]]) -> Iterator[Hashable]:
    return ((block.size, block.state, names.get(block)) for block in chain)


def _last_step(timeline: Timeline) -> _LastStep | None:
    """The last step, when it and the one before it are alike; None when they are not."""
    in_step = np.isin(timeline.phases, STEP_PHASES)
    if not in_step.any():
        return None
    number = int(timeline.steps[in_step].max())
    ends: list[tuple[int, int]] = []
    for step in (number - 1, number):
        places = np.flatnonzero(in_step & (timeline.steps == step))
        if step < 1 or not len(places) or places[-1] - places[0] + 1 != len(places):
            return None
        ends.append((int(places[0]), int(places[-1]) + 1))
    (before_start, before_end), (start, end) = ends
    before, last = _LastStep(timeline, before_start, before_end), _LastStep(timeline, start, end)
    return last if before.sizes() == last.sizes() and last.can_follow_itself(before) else None


class _LastStep:
    """A stretch of a Timeline that can be repeated.  Its blocks have numbers in a row."""

    def __init__(self, timeline: Timeline, start: int, end: int) -> None:
        self.timeline = timeline
        self.start, self.end = start, end
        self.num_events = end - start
        events = timeline.events
        self.first_block = int(np.count_nonzero(events[:start] > 0))
        self.num_blocks = int(np.count_nonzero(events[start:end] > 0))

    def sizes(self) -> tuple[list[int], list[int]]:
        """Bytes asked for, and streams, in order."""
        rows = slice(self.first_block, self.first_block + self.num_blocks)
        return self.timeline.num_bytes[rows].tolist(), self.timeline.streams[rows].tolist()

    def can_follow_itself(self, before: _LastStep) -> bool:
        """Whether all that the step frees was made in it, or in the step before it."""
        if self.first_block != before.first_block + before.num_blocks:
            return False
        events = self.timeline.events[self.start : self.end]
        freed = set((-events[events < 0] - 1).tolist())
        carried = {number + self.num_blocks for number in freed if number < self.first_block}
        # A block that the step frees although a copy of it outlived the step before could not be
        # freed again by the step's copy.
        return min(freed, default=self.first_block) >= before.first_block and not carried & freed

    def repeated(self, copies: int) -> Timeline:
        """The Timeline with ``copies`` more of the step."""
        if not copies:
            return self.timeline
        old, start, end = self.timeline, self.start, self.end
        step = old.events[start:end]
        shifts = np.arange(1, copies + 1, dtype=np.int32) * self.num_blocks
        more = [np.where(step > 0, step + shift, step - shift) for shift in shifts]
        events = np.concatenate([old.events[:end], *more, self._after(copies)])
        rows = slice(self.first_block, self.first_block + self.num_blocks)
        columns: dict[str, Any] = {"events": events.astype(np.int32)}
        for field in fields(old):
            column = getattr(old, field.name)
            if not isinstance(column, np.ndarray) or field.name == "events":
                continue
            per_event = len(column) == len(old.events) and field.name in ("phases", "steps")
            part, cut = (slice(start, end), end) if per_event else (rows, rows.stop)
            columns[field.name] = np.concatenate(
                [column[:cut], *[column[part]] * copies, column[cut:]]
            )
        for copy in range(1, copies + 1):
            columns["steps"][end + (copy - 1) * self.num_events :] += 1
        return replace(old, **columns, actions=self._actions(copies))

    def _after(self, copies: int) -> np.ndarray:
        """What follows the step, freeing the last copy's blocks in place of the step's."""
        after = self.timeline.events[self.end :]
        shift = copies * self.num_blocks
        numbers = np.abs(after) - 1
        moved = np.where(numbers >= self.first_block, numbers + shift, numbers)
        events: np.ndarray = np.where(after > 0, moved + 1, -moved - 1)
        return events

    def _actions(self, copies: int) -> tuple[Action, ...]:
        actions = self.timeline.actions
        inside = [a for a in actions if self.start <= a.event < self.end]
        moves = range(1, copies + 1)
        return (
            *(a for a in actions if a.event < self.end),
            *(Action(a.event + n * self.num_events, a.name) for n in moves for a in inside),
            *(
                Action(a.event + copies * self.num_events, a.name)
                for a in actions
                if a.event >= self.end
            ),
        )
