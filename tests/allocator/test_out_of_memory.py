"""What happens when the device has no room: memory is given back, and then the error."""

import pytest

from memfit.allocator.caching import CachingAllocator
from memfit.allocator.out_of_memory import OutOfMemory
from memfit.allocator.settings import Settings
from memfit.allocator.version import NEWEST
from memfit.units import MiB


def allocator(capacity: int, **options: int | bool | float) -> CachingAllocator:
    total = options.pop("total_bytes", None)
    return CachingAllocator(
        version=NEWEST,
        settings=Settings(**options),  # type: ignore[arg-type]
        capacity_bytes=capacity * MiB,
        total_bytes=total,  # type: ignore[arg-type]
    )


def held(gpu: CachingAllocator) -> list[int]:
    return sorted(segment.num_bytes // MiB for segment in gpu.segments())


def test_the_last_byte_of_the_device_can_be_used() -> None:
    gpu = allocator(100)
    gpu.malloc(100 * MiB)
    assert gpu.reserved_bytes == 100 * MiB


def test_cached_segments_are_all_given_back_before_asking_again() -> None:
    gpu = allocator(100)
    gpu.malloc(30 * MiB)
    for address in [gpu.malloc(40 * MiB), gpu.malloc(MiB), gpu.malloc(20 * MiB)]:
        gpu.free(address)
    gpu.malloc(50 * MiB)
    assert held(gpu) == [30, 50]
    stats = gpu.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"], stats["num_sync_all_streams"]) == (
        1,
        0,
        1,
    )
    assert stats["num_device_free"] == 3


def test_the_error_carries_the_state_at_that_moment() -> None:
    gpu = allocator(100)
    gpu.malloc(60 * MiB)
    gpu.free(gpu.malloc(4 * MiB))
    with pytest.raises(OutOfMemory) as caught:
        gpu.malloc(41 * MiB + 5)
    error = caught.value
    assert (error.requested_bytes, error.segment_bytes) == (41 * MiB + 5, 42 * MiB)
    assert (error.capacity_bytes, error.free_bytes) == (100 * MiB, 40 * MiB)
    assert error.stats["num_ooms"] == 1 and error.stats["num_alloc_retries"] == 1
    assert error.segments == gpu.segments() and held(gpu) == [60]
    assert str(error) == (
        "CUDA out of memory: tried to allocate 42.0 MiB for a request of 42,991,621 bytes; of a "
        "room of 100.0 MiB 40.0 MiB is free; 60.0 MiB is allocated by PyTorch, and 0 B is "
        "reserved by PyTorch but unallocated"
    )


def test_the_allocator_goes_on_after_the_error() -> None:
    gpu = allocator(100)
    with pytest.raises(OutOfMemory):
        gpu.malloc(101 * MiB)
    gpu.malloc(100 * MiB)
    assert gpu.allocated_bytes == 100 * MiB


def test_blocks_that_another_stream_uses_are_waited_for() -> None:
    gpu = allocator(100)
    address = gpu.malloc(80 * MiB)
    gpu.record_stream(address, 3)
    gpu.free(address)
    gpu.malloc(90 * MiB)
    assert held(gpu) == [90]


def test_with_a_limit_on_splitting_only_the_smallest_segment_that_will_do_is_given_back() -> None:
    gpu = allocator(300, max_split_size_bytes=40 * MiB)
    for address in [gpu.malloc(n * MiB) for n in (30, 90, 140)]:
        gpu.free(address)
    gpu.malloc(65 * MiB)  # the driver has 40 MiB
    assert held(gpu) == [30, 66, 140]
    assert gpu.stats()["num_alloc_retries"] == 0


def test_with_a_limit_on_splitting_large_segments_are_given_back_until_they_sum_up() -> None:
    gpu = allocator(300, max_split_size_bytes=40 * MiB)
    for address in [gpu.malloc(n * MiB) for n in (30, 90, 140)]:
        gpu.free(address)
    gpu.malloc(200 * MiB)
    assert held(gpu) == [30, 200]
    assert gpu.stats()["num_alloc_retries"] == 0
    assert gpu.stats()["oversize_segments.current"] == 1


def test_the_share_of_the_process_is_a_limit_as_the_device_is() -> None:
    gpu = allocator(1000, per_process_memory_fraction=0.1, total_bytes=1000 * MiB)
    gpu.free(gpu.malloc(60 * MiB))
    gpu.malloc(90 * MiB)
    assert gpu.stats()["num_alloc_retries"] == 1
    with pytest.raises(OutOfMemory):
        gpu.malloc(12 * MiB)


def test_a_request_above_the_share_can_be_made_to_fail_at_once() -> None:
    gpu = allocator(
        1000,
        per_process_memory_fraction=0.1,
        throw_on_cudamalloc_oom=True,
        total_bytes=1000 * MiB,
    )
    gpu.free(gpu.malloc(60 * MiB))
    with pytest.raises(OutOfMemory):
        gpu.malloc(90 * MiB)
    assert held(gpu) == [60]
    assert gpu.stats()["num_oom_rejections"] == 1
