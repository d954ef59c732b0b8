"""Two streams of allocations side by side."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy import alignment
from benchmarks.accuracy.alignment import align, common_subsequence

STREAM = [(1, 512), (2, 1024), (-1, 512), (3, 512), (-2, 1024)]


def longest(left: list[int], right: list[int]) -> int:
    """The length of the longest common subsequence, by the slow and sure way."""
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
            )
    return table[-1][-1]


items = st.lists(st.integers(0, 2), max_size=12)


@given(items, items)
def test_as_many_items_are_paired_as_can_be(left: list[int], right: list[int]) -> None:
    pairs = common_subsequence(left, right)
    assert len(pairs) == longest(left, right)
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))


def test_a_stream_is_equal_to_itself() -> None:
    result = align(STREAM, STREAM)
    assert result.is_equal
    assert (result.num_equal, result.num_same_block) == (5, 5)
    assert (result.only_recorded, result.only_predicted) == ((), ())


def test_an_allocation_more_stands_alone() -> None:
    predicted = [(1, 512), (2, 8), (3, 1024), (-1, 512), (-2, 8), (4, 512), (-3, 1024)]
    result = align(STREAM, predicted)
    assert not result.is_equal
    assert (result.num_equal, result.only_predicted) == (5, (1, 4))


def test_the_free_of_another_block_of_that_size_is_seen() -> None:
    recorded = [(1, 512), (2, 512), (-1, 512)]
    result = align(recorded, [(1, 512), (2, 512), (-2, 512)])
    assert (result.num_equal, result.num_same_block) == (3, 2)


def test_frees_of_what_was_there_before_both_streams_are_the_same() -> None:
    result = align([(1, 512), (-77, 8)], [(5, 512), (-2, 8)])
    assert (result.num_equal, result.num_same_block) == (2, 2)


def test_frees_in_another_order_leave_as_many_events() -> None:
    recorded = [(1, 512), (2, 1024), (-1, 512), (-2, 1024)]
    result = align(recorded, [(1, 512), (2, 1024), (-2, 1024), (-1, 512)])
    assert not result.is_equal
    assert result.is_equal_but_for_order


def test_streams_of_different_programs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MAX_DIFFERENCES", 3)
    with pytest.raises(ValueError, match="more than 3 events"):
        common_subsequence([1, 2], [3, 4])
