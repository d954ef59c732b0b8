"""What batches of varying length do to reserved memory, the commonest cause of late failures.

A batch that is a little longer than the last one finds only blocks that are a little too small,
and the allocator takes new ones.  The step is traced once at each of a few lengths; these steps
are then put in a drawn order and replayed until reserved memory stops growing.  Only orders of
whole steps are made up: what happens in a step is as traced.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from memfit.errors import BadInput
from memfit.planner.rig import Rig
from memfit.planner.simulate import Simulated, replay_in_room
from memfit.records.prediction import Lengths
from memfit.records.timeline import PHASES, Timeline

_NUM_LENGTHS = 12
"""Lengths that are traced, in equal distances."""

_WINDOW = 16
"""Reserved memory has stopped growing when as many steps in a row added nothing."""

_MAX_STEPS = 64

_SEEDS = (0, 1, 2)
"""Of the orders that are drawn: the first is the prediction, the others say how far off it is."""

_IN_STEP = [PHASES.index(name) for name in ("forward", "backward", "optimizer")]


class LengthRange(NamedTuple):
    """Lengths of samples, in tokens; both ends occur."""

    shortest: int
    longest: int

    def check(self) -> None:
        """Raises BadInput when it is not a range."""
        if self.shortest < 1:
            raise BadInput(
                f"the lengths {self.shortest}..{self.longest} begin below 1: a sequence has at "
                "least one token"
            )
        if self.shortest > self.longest:
            raise BadInput(
                f"the lengths {self.shortest}..{self.longest} are no range: write the shortest "
                "first, as in 64..128"
            )

    def to_trace(self) -> list[int]:
        """The length of each step of the traced run.

        The first is a middle one, since it also makes the optimizer's state; then come the lengths
        that orders are drawn from, the longest last.
        """
        lengths = np.linspace(self.shortest, self.longest, _NUM_LENGTHS).round().astype(int)
        return [(self.shortest + self.longest) // 2, *sorted({int(length) for length in lengths})]


def simulate_lengths(
    timeline: Timeline, lengths: LengthRange, rig: Rig, constant: Simulated
) -> tuple[Simulated, Lengths]:
    """Replays steps of varying length until reserved memory stops growing.

    Args:
        timeline: a run whose steps have the lengths of ``lengths.to_trace()``.
        lengths: what a step's length is drawn from.
        rig: where it runs.
        constant: the run whose batches all have the longest length.
    """
    last = int(timeline.steps.max(initial=0))
    if can_reorder(timeline):
        orders = [_drawn_order(seed, last) for seed in _SEEDS]
        num_steps, has_settled = _settled_after(orders[0], timeline, rig)
        drawn, *others = (in_order(timeline, order[:num_steps]) for order in orders)
    else:
        # What one step leaves to the next would be lost: only the traced order is known.
        num_steps, has_settled, drawn, others = last, False, timeline, []
    simulated = replay_in_room(drawn, rig, is_steady=has_settled)
    varying = simulated.unlimited.peak_reserved_bytes
    most = max((rig.replay(other).peak_reserved_bytes for other in others), default=varying)
    return simulated, Lengths(
        shortest=lengths.shortest,
        longest=lengths.longest,
        num_steps=num_steps,
        has_settled=has_settled,
        constant_reserved_bytes=constant.unlimited.peak_reserved_bytes,
        varying_reserved_bytes=varying,
        other_orders_bytes=max(0, most - varying),
    )


def can_reorder(timeline: Timeline) -> bool:
    """Whether each step after the first one frees all that it takes, and nothing else."""
    freed = np.zeros(len(timeline.num_bytes), dtype=bool)
    owner = np.zeros(len(timeline.num_bytes), dtype=np.int64)
    for step, chunk in _steps(timeline).items():
        events = timeline.events[chunk]
        born, gone = events[events > 0] - 1, -events[events < 0] - 1
        owner[born] = step
        freed[gone] = True
        if step > 1 and np.any(owner[gone] != step):
            return False
    return not timeline.actions and bool(np.all(freed[owner > 1]))


def in_order(timeline: Timeline, order: Sequence[int]) -> Timeline:
    """The run with its steps in another order; steps may come twice, or not at all.

    What comes before the first step stays in front, what follows the last one at the end.  Steps
    are numbered anew, and blocks as they come.
    """
    steps, before = _steps(timeline), np.flatnonzero(timeline.steps == 0)
    pieces = [before, *(steps[step] for step in order), _rest(timeline)]
    numbers = [0, *range(1, len(order) + 1), len(order)]
    source = np.concatenate(pieces)  # (E of the result,) the traced event behind each event
    taken = timeline.events[source]
    blocks = taken[taken > 0] - 1  # (B of the result,) the traced block behind each block
    newest: dict[int, int] = {}
    events, num_blocks = [], 0
    for event in taken.tolist():
        if event > 0:
            num_blocks += 1
            newest[event] = num_blocks
            events.append(num_blocks)
        else:
            events.append(-newest[-event])
    columns = ("num_bytes", "categories", "origins", "ops", "modules", "tensors", "streams")
    return replace(
        timeline,
        events=np.array(events, dtype=np.int32),
        phases=timeline.phases[source],
        steps=np.repeat(numbers, [len(piece) for piece in pieces]).astype(np.int32),
        actions=(),
        **{name: getattr(timeline, name)[blocks] for name in columns},
    )


def _drawn_order(seed: int, last: int) -> list[int]:
    """The first step, then steps drawn from the others; the longest is among them."""
    order = [1, *random.Random(seed).choices(range(2, last + 1), k=_MAX_STEPS - 1)]
    return order if last in order else [*order[:-1], last]


def _settled_after(order: list[int], timeline: Timeline, rig: Rig) -> tuple[int, bool]:
    """How many steps of ``order`` it takes until reserved memory has not grown for a window.

    All of them, and False, when it never stops.  The longest step must have been among them.
    """
    drawn = in_order(timeline, order)
    reserved = np.maximum.accumulate(rig.replay(drawn).reserved)
    ends = np.searchsorted(drawn.steps, np.arange(1, len(order) + 1), side="right") - 1
    longest = order.index(max(order))
    for step in range(max(_WINDOW, longest), len(order)):
        if reserved[ends[step]] == reserved[ends[step - _WINDOW]]:
            return step + 1, True
    return len(order), False


def _steps(timeline: Timeline) -> dict[int, np.ndarray]:
    """Step -> its events, without what follows the last step."""
    rest = _rest(timeline)
    steps = timeline.steps[: len(timeline.steps) - len(rest)]
    return {int(step): np.flatnonzero(steps == step) for step in np.unique(steps) if step}


def _rest(timeline: Timeline) -> np.ndarray:
    """The events after the last step: an evaluation."""
    in_step = np.flatnonzero(np.isin(timeline.phases, _IN_STEP))
    return np.arange(int(in_step[-1]) + 1 if len(in_step) else 0, len(timeline.events))
