"""Expandable segments: memory is mapped in units behind one range of addresses."""

import pytest

from memfit.allocator.caching import CachingAllocator
from memfit.allocator.out_of_memory import OutOfMemory
from memfit.allocator.settings import Settings
from memfit.allocator.version import NEWEST, OLDEST, TorchVersion
from memfit.units import GiB, MiB


def allocator(capacity: int | None = None, version: TorchVersion = NEWEST) -> CachingAllocator:
    return CachingAllocator(
        version=version,
        settings=Settings(expandable_segments=True),
        capacity_bytes=None if capacity is None else capacity * MiB,
        total_bytes=8 * GiB,
    )


def layout(gpu: CachingAllocator) -> list[list[tuple[int, bool]]]:
    """Per contiguous mapped range: (MiB, in use) of each block."""
    return [
        [(block.num_bytes // MiB, block.block >= 0) for block in segment.blocks]
        for segment in gpu.segments()
    ]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_free_end_is_extended_by_as_many_units_as_the_request_needs(
    version: TorchVersion,
) -> None:
    gpu = allocator(version=version)
    first = gpu.malloc(30 * MiB)
    assert gpu.reserved_bytes == 40 * MiB
    gpu.free(first)
    assert gpu.malloc(45 * MiB) == first
    assert (gpu.allocated_bytes, gpu.reserved_bytes) == (45 * MiB, 60 * MiB)
    assert layout(gpu) == [[(45, True), (15, False)]]


def test_nothing_is_handed_out_beyond_the_rounded_request() -> None:
    gpu = allocator()
    gpu.malloc(11_850_000)
    assert (gpu.allocated_bytes, gpu.reserved_bytes) == (11_850_240, 20 * MiB)


def test_small_blocks_have_a_range_of_their_own_in_units_of_2_mib() -> None:
    gpu = allocator()
    for _ in range(3):
        gpu.malloc(MiB)
    gpu.malloc(2 * MiB)
    assert gpu.reserved_bytes == 4 * MiB + 20 * MiB
    assert sorted(layout(gpu)) == [[(1, True)] * 3 + [(1, False)], [(2, True), (18, False)]]


def test_only_reserved_bytes_are_counted_not_segments() -> None:
    gpu = allocator()
    gpu.malloc(30 * MiB)
    stats = gpu.stats()
    assert stats["segment.all.current"] == 0 and stats["reserved_bytes.all.current"] == 40 * MiB
    assert stats["inactive_split_bytes.all.peak"] == 0
    assert stats["num_device_alloc"] == 1


def test_a_hole_that_fits_is_taken_before_the_end_that_can_grow() -> None:
    gpu = allocator()
    hole, _, end = gpu.malloc(12 * MiB), gpu.malloc(2 * MiB), gpu.malloc(41 * MiB)
    gpu.free(hole)
    assert layout(gpu) == [[(12, False), (2, True), (41, True), (5, False)]]
    assert gpu.malloc(4 * MiB) == hole  # 12 MiB, where 5 MiB at the end are the closer fit
    gpu.free(end)


def test_each_stream_has_a_range_of_its_own() -> None:
    gpu = allocator()
    gpu.malloc(2 * MiB)
    gpu.malloc(2 * MiB, stream=3)
    assert [(s.stream, s.num_bytes // MiB) for s in gpu.segments()] == [(0, 20), (3, 20)]
    assert all(s.is_expandable for s in gpu.segments())


def test_emptying_the_cache_unmaps_whole_units_and_leaves_the_edges() -> None:
    gpu = allocator()
    first, middle, last = gpu.malloc(30 * MiB), gpu.malloc(60 * MiB), gpu.malloc(5 * MiB)
    gpu.free(middle)
    gpu.empty_cache()  # of 30..90 MiB the units 40..80
    assert gpu.reserved_bytes == 60 * MiB
    assert layout(gpu) == [[(30, True), (10, False)], [(10, False), (5, True), (5, False)]]
    assert gpu.stats()["num_device_free"] == 1
    gpu.free(first)
    gpu.free(last)


def test_a_range_that_is_wholly_unmapped_is_gone() -> None:
    gpu = allocator()
    gpu.free(gpu.malloc(30 * MiB))
    gpu.empty_cache()
    assert gpu.segments() == () and gpu.reserved_bytes == 0
    gpu.malloc(2 * MiB)
    assert gpu.reserved_bytes == 20 * MiB


def test_unmapped_units_in_the_middle_are_mapped_again() -> None:
    gpu = allocator()
    first, middle, last = gpu.malloc(30 * MiB), gpu.malloc(60 * MiB), gpu.malloc(5 * MiB)
    gpu.free(middle)
    gpu.empty_cache()
    assert gpu.malloc(60 * MiB) == middle
    assert gpu.reserved_bytes == 100 * MiB
    gpu.free(first)
    gpu.free(last)


def test_units_that_do_not_fit_any_more_run_the_device_out_of_memory() -> None:
    gpu = allocator(capacity=50)
    gpu.malloc(15 * MiB)
    with pytest.raises(OutOfMemory):
        gpu.malloc(26 * MiB)
    assert gpu.reserved_bytes == 20 * MiB
    gpu.malloc(25 * MiB)
    assert gpu.reserved_bytes == 40 * MiB


def test_free_units_elsewhere_are_given_back_before_asking_again() -> None:
    gpu = allocator(capacity=60)
    gpu.free(gpu.malloc(40 * MiB, stream=3))
    gpu.malloc(35 * MiB)
    assert gpu.reserved_bytes == 40 * MiB
    assert gpu.stats()["num_alloc_retries"] == 1
