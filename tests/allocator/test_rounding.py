"""Sizes of blocks and segments at the edges of every rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.allocator.rounding import round_size, segment_bytes
from memfit.units import GiB, MiB


@pytest.mark.parametrize(
    ("requested", "size"),
    [
        (1, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (1 * MiB, 1 * MiB),
        (1 * MiB + 1, 1_049_088),
        (11_850_000, 11_850_240),
    ],
)
def test_a_block_is_a_multiple_of_512_bytes(requested: int, size: int) -> None:
    assert round_size(requested) == size


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MiB),
        (1 * MiB, 2 * MiB),
        (1 * MiB + 512, 20 * MiB),
        (10 * MiB - 512, 20 * MiB),
        (10 * MiB, 10 * MiB),
        (10 * MiB + 512, 12 * MiB),
        (32 * MiB, 32 * MiB),
    ],
)
def test_a_segment_is_2_mib_20_mib_or_as_large_as_the_request(size: int, segment: int) -> None:
    assert segment_bytes(size) == segment


def test_another_large_segment_size_serves_the_requests_below_10_mib_alone() -> None:
    sizes = [1 * MiB, 2 * MiB, 10 * MiB]
    assert [segment_bytes(size, 64 * MiB) for size in sizes] == [2 * MiB, 64 * MiB, 10 * MiB]


@pytest.mark.parametrize(
    ("requested", "size"),
    [
        (1200, 1536),  # not 1280: below 512 bytes a step the usual rounding is enough
        (2049, 2560),
        (2500, 2560),
        (3 * MiB + 1, 3 * MiB + 512 * 1024),
        (4 * MiB, 4 * MiB),
        (5 * GiB + 1, 6 * GiB),
    ],
)
def test_four_divisions_make_four_steps_between_powers_of_two(requested: int, size: int) -> None:
    assert round_size(requested, (4,) * 16) == size


def test_a_power_of_two_stays_as_it_is_with_any_divisions() -> None:
    assert round_size(64 * MiB, (8,) * 16) == 64 * MiB


def test_each_interval_has_its_own_divisions() -> None:
    divisions = (0, 0, 2) + (0,) * 12 + (2,)
    assert round_size(3 * MiB + 1, divisions) == 3 * MiB + 512  # from 2 MiB on: none
    assert round_size(5 * MiB, divisions) == 6 * MiB  # from 4 MiB on: two
    assert round_size(65 * GiB, divisions) == 96 * GiB  # the last one has no end


@given(st.integers(1, 1 << 40), st.sampled_from([0, 1, 2, 4, 8, 16, 32, 64]))
def test_a_block_holds_its_request_and_is_less_than_twice_as_large_from_512_on(
    requested: int, parts: int
) -> None:
    size = round_size(requested, (parts,) * 16)
    assert requested <= size < 2 * max(requested, 512) and size % 512 == 0


@given(st.integers(1, 1 << 40))
def test_a_segment_holds_its_block(requested: int) -> None:
    size = round_size(requested)
    assert size <= segment_bytes(size) <= max(size + 2 * MiB - 1, 20 * MiB)
