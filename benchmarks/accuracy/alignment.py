"""Two streams of allocations and frees, laid side by side.  No torch.

A stream is a list of events: ``(block, num_bytes)`` with the block counted from 1 in the order of
allocation, negative where it is freed, as in a Timeline.  Events are alike when they do the same
(allocate, free) to the same number of bytes; the alignment is one with the fewest events left over
(Myers, "An O(ND) difference algorithm and its variations", 1986).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Event = tuple[int, int]
"""(block, signed as in a Timeline; requested bytes)"""

MAX_DIFFERENCES = 2_000
"""More than so many events left over, and two streams are not of one program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """How far two streams agree."""

    num_recorded: int
    num_predicted: int

    num_equal: int
    """Events that stand opposite an event alike."""

    num_same_block: int
    """Of those: allocations, and frees of a block whose allocation stands opposite too, or whose
    allocation neither stream holds."""

    only_recorded: tuple[int, ...]
    """Positions of the recording's events that nothing stands opposite."""

    only_predicted: tuple[int, ...]

    @property
    def is_equal(self) -> bool:
        """Every event of each has its like in the other, in one order."""
        return self.num_equal == self.num_recorded == self.num_predicted

    @property
    def is_equal_but_for_order(self) -> bool:
        """As many events, and those that stand out of order come in pairs."""
        return self.num_recorded == self.num_predicted


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One recording beside its prediction."""

    name: str
    title: str
    alignment: Alignment
    recorded_segments: tuple[int, ...]
    """Bytes of the segments that were taken from the driver, in their order."""

    predicted_segments: tuple[int, ...]
    causes: str = ""
    seconds: float = 0.0


def align(recorded: Sequence[Event], predicted: Sequence[Event]) -> Alignment:
    """Lays ``predicted`` beside ``recorded``.

    Raises:
        ValueError: they differ in more than MAX_DIFFERENCES events.
    """
    left = [(block > 0, num_bytes) for block, num_bytes in recorded]
    right = [(block > 0, num_bytes) for block, num_bytes in predicted]
    pairs = common_subsequence(left, right)
    opposite = {recorded[i][0]: predicted[j][0] for i, j in pairs if recorded[i][0] > 0}
    born = {block for block, _ in predicted if block > 0}

    def is_same(recorded_block: int, predicted_block: int) -> bool:
        if recorded_block > 0:
            return True
        met = opposite.get(-recorded_block)
        return met == -predicted_block or (met is None and -predicted_block not in born)

    same = sum(is_same(recorded[i][0], predicted[j][0]) for i, j in pairs)
    met_left, met_right = {i for i, _ in pairs}, {j for _, j in pairs}
    return Alignment(
        num_recorded=len(recorded),
        num_predicted=len(predicted),
        num_equal=len(pairs),
        num_same_block=same,
        only_recorded=tuple(i for i in range(len(left)) if i not in met_left),
        only_predicted=tuple(j for j in range(len(right)) if j not in met_right),
    )


def common_subsequence(left: Sequence[object], right: Sequence[object]) -> list[tuple[int, int]]:
    """Positions of equal items, ascending in both, as many as there can be.

    Raises:
        ValueError: more than MAX_DIFFERENCES items of the two together would be left out.
    """
    furthest = {1: 0}
    """Diagonal i - j -> the furthest i reached on it with the differences spent so far."""
    trail: list[dict[int, int]] = []
    for differences in range(min(len(left) + len(right), MAX_DIFFERENCES) + 1):
        trail.append(furthest.copy())
        for diagonal in range(-differences, differences + 1, 2):
            down = diagonal == -differences or (
                diagonal != differences and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            i = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            j = i - diagonal
            while i < len(left) and j < len(right) and left[i] == right[j]:
                i, j = i + 1, j + 1
            furthest[diagonal] = i
            if i >= len(left) and j >= len(right):
                return _walk_back(trail, len(left), len(right))
    raise ValueError(f"the streams differ in more than {MAX_DIFFERENCES} events")


def _walk_back(trail: list[dict[int, int]], i: int, j: int) -> list[tuple[int, int]]:
    """The pairs on the path that the furthest points of each round lead back along."""
    pairs: list[tuple[int, int]] = []
    for differences in range(len(trail) - 1, -1, -1):
        furthest = trail[differences]
        diagonal = i - j
        down = diagonal == -differences or (
            diagonal != differences and furthest[diagonal - 1] < furthest[diagonal + 1]
        )
        before = diagonal + 1 if down else diagonal - 1
        i_before = furthest[before] if differences else 0
        j_before = i_before - before if differences else 0
        while i > i_before and j > j_before:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        i, j = i_before, j_before
    return pairs[::-1]
