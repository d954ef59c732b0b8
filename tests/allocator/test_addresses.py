"""Where the driver is taken to put segments."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.allocator.addresses import POLICIES, addresses
from memfit.errors import UnknownName
from memfit.units import MiB


def offsets(policy: str, *sizes: int) -> list[int]:
    """MiB from the first segment."""
    places = addresses(policy)
    taken = [places.take(size * MiB) for size in sizes]
    return [(address - taken[0]) // MiB for address in taken]


def test_ranges_are_multiples_of_32_mib_one_after_the_other() -> None:
    assert offsets("ascending", 20, 32, 34, 32) == [0, 32, 64, 128]
    assert offsets("descending", 20, 32, 34, 32) == [0, -32, -96, -128]


def test_smaller_segments_go_into_the_gap_of_the_newest_range_that_has_room() -> None:
    assert offsets("ascending", 20, 100, 26, 20, 2, 2, 12) == [0, 32, 132, 160, 180, 182, 20]
    assert offsets("descending", 20, 100, 26, 20, 2, 2, 12) == [0, -128, -28, -160, -140, -138, 20]


def test_what_is_given_back_inside_a_range_is_used_again() -> None:
    places = addresses("ascending")
    first, second, third = (places.take(10 * MiB) for _ in range(3))
    places.give_back(second, 10 * MiB)
    places.give_back(first, 10 * MiB)
    assert places.take(20 * MiB) == first
    assert places.take(2 * MiB) == third + 10 * MiB


def test_a_range_that_is_wholly_given_back_is_gone() -> None:
    places = addresses("ascending")
    first = places.take(20 * MiB)
    places.give_back(first, 20 * MiB)
    assert places.take(20 * MiB) == first + 32 * MiB


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownName, match="nearest: ascending, descending; there are: ascending, descending"
    ):
        addresses("ascend")


@given(
    st.sampled_from(POLICIES),
    st.lists(
        st.tuples(st.sampled_from([2, 2, 10, 20, 26, 34, 100]), st.integers(0, 3)), max_size=40
    ),
)
def test_segments_never_overlap(policy: str, script: list[tuple[int, int]]) -> None:
    places = addresses(policy)
    held: dict[int, int] = {}
    for size, drop in script:
        if drop == 0 and held:
            address = sorted(held)[size % len(held)]
            places.give_back(address, held.pop(address))
        address = places.take(size * MiB)
        held[address] = size * MiB
        ordered = sorted(held.items())
        assert all(one + size <= other for (one, size), (other, _) in pairwise(ordered))
