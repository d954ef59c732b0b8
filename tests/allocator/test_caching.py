"""PyTorch's caching allocator: which block serves a request, and what is counted."""

from __future__ import annotations

import pytest

from memfit.allocator.caching import CachingAllocator
from memfit.allocator.settings import Settings
from memfit.allocator.version import NEWEST, OLDEST, TorchVersion
from memfit.units import GiB, MiB

CUBLAS_WORKSPACE_BYTES = 8_519_680


def allocator(version: TorchVersion = NEWEST, **options: object) -> CachingAllocator:
    return CachingAllocator(version=version, **options)  # type: ignore[arg-type]


def state(gpu: CachingAllocator) -> tuple[int, int, int]:
    return gpu.requested_bytes, gpu.allocated_bytes, gpu.reserved_bytes


def inactive(gpu: CachingAllocator) -> tuple[int, int]:
    stats = gpu.stats()
    return stats["inactive_split.all.current"], stats["inactive_split_bytes.all.current"]


# ---- worked by hand from PyTorch's rules ----


def test_a_cublas_workspace_takes_a_segment_of_20_mib_and_leaves_the_rest_free() -> None:
    gpu = allocator()
    gpu.malloc(CUBLAS_WORKSPACE_BYTES)
    assert state(gpu) == (CUBLAS_WORKSPACE_BYTES, CUBLAS_WORKSPACE_BYTES, 20_971_520)
    assert inactive(gpu) == (1, 12_451_840)


def test_up_to_1_mib_that_is_left_over_is_handed_out_with_the_block() -> None:
    gpu = allocator()
    address = gpu.malloc(11_850_000)
    assert state(gpu) == (11_850_000, 12_582_912, 12_582_912)
    assert gpu.block_bytes(address) == 12_582_912
    assert inactive(gpu) == (0, 0)


def test_a_request_of_32_mib_gets_a_segment_of_32_mib() -> None:
    gpu = allocator()
    gpu.malloc(32 * MiB)
    assert state(gpu) == (32 * MiB,) * 3


def test_one_byte_takes_512_of_2_mib() -> None:
    gpu = allocator()
    gpu.malloc(1)
    assert state(gpu) == (1, 512, 2 * MiB)


def test_exactly_1_mib_left_over_is_not_split_off_and_a_byte_more_is() -> None:
    gpu = allocator()
    first, _ = gpu.malloc(15 * MiB), gpu.malloc(15 * MiB)
    assert state(gpu) == (30 * MiB, 32 * MiB, 32 * MiB)
    gpu.free(first)
    again = gpu.malloc(14 * MiB + MiB // 2)
    assert again == first
    assert state(gpu) == (29 * MiB + MiB // 2, 30 * MiB + MiB // 2, 32 * MiB)
    assert inactive(gpu) == (1, MiB + MiB // 2)


def test_freed_neighbours_become_one_block() -> None:
    gpu = allocator()
    first, second, third = (gpu.malloc(512) for _ in range(3))
    gpu.free(first)
    gpu.free(third)
    assert [(b.num_bytes, b.block) for b in gpu.segments()[0].blocks] == [
        (512, -1),
        (512, 1),
        (2 * MiB - 1024, -1),
    ]
    gpu.free(second)
    assert [b.num_bytes for b in gpu.segments()[0].blocks] == [2 * MiB]
    assert inactive(gpu) == (0, 0)


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    gpu = allocator()
    four, keep = gpu.malloc(4 * MiB), gpu.malloc(16 * MiB)  # 20 MiB, and a segment of its own
    rest = gpu.malloc(16 * MiB - 512)
    three = gpu.malloc(3 * MiB)
    blocker = gpu.malloc(17 * MiB)
    assert len({four, keep, rest, three, blocker}) == 5
    gpu.free(four)
    gpu.free(three)
    before = gpu.allocated_bytes
    assert gpu.malloc(2 * MiB + MiB // 2) in (three, four)
    assert gpu.allocated_bytes - before <= 3 * MiB + MiB // 2


def test_a_tail_of_half_a_mib_is_handed_out_with_a_block_of_3_mib() -> None:
    gpu = allocator()
    four, _, three, _ = (gpu.malloc(n * MiB) for n in (4, 16, 3, 17))
    gpu.free(four)
    gpu.free(three)
    assert gpu.malloc(2 * MiB + MiB // 2) == three
    assert gpu.block_bytes(three) == 3 * MiB


# ---- the edges of the pools ----


@pytest.mark.parametrize(
    ("num_bytes", "reserved"),
    [
        (1 * MiB, 2 * MiB),
        (1 * MiB + 1, 20 * MiB),
        (10 * MiB - 512, 20 * MiB),
        (10 * MiB - 511, 10 * MiB),
        (10 * MiB, 10 * MiB),
        (10 * MiB + 1, 12 * MiB),
    ],
)
def test_the_rounded_request_decides_the_segment(num_bytes: int, reserved: int) -> None:
    gpu = allocator()
    gpu.malloc(num_bytes)
    assert gpu.reserved_bytes == reserved


def test_no_bytes_are_no_block() -> None:
    gpu = allocator()
    assert gpu.malloc(0) == 0
    gpu.free(0)
    assert gpu.block_bytes(0) == 0
    assert set(gpu.stats().values()) == {0, -1}  # -1: no limit on splitting


def test_a_negative_request_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot allocate -1 bytes"):
        allocator().malloc(-1)


def test_freeing_twice_is_an_error() -> None:
    gpu = allocator()
    address = gpu.malloc(5)
    gpu.free(address)
    with pytest.raises(KeyError):
        gpu.free(address)


def test_the_small_pool_does_not_serve_large_requests_nor_the_other_way_round() -> None:
    gpu = allocator()
    gpu.free(gpu.malloc(2 * MiB))
    gpu.malloc(MiB)
    assert gpu.reserved_bytes == 22 * MiB


def test_a_stream_does_not_use_what_another_one_freed() -> None:
    gpu = allocator()
    gpu.free(gpu.malloc(5 * MiB, stream=7))
    gpu.malloc(5 * MiB)
    assert gpu.reserved_bytes == 40 * MiB
    assert [(s.stream, s.num_bytes) for s in gpu.segments()] == [(7, 20 * MiB), (0, 20 * MiB)]


# ---- ties among equal blocks ----


class TwoPlaces:
    """A driver that puts the second segment below the first."""

    def __init__(self) -> None:
        self._places = [1 << 40, 1 << 39, 1 << 41]

    def take(self, num_bytes: int) -> int:
        return self._places.pop(0)

    def give_back(self, address: int, num_bytes: int) -> None:
        pass


@pytest.mark.parametrize(
    ("version", "winner"),
    [(OLDEST, 1), (TorchVersion(2, 12), 1), (TorchVersion(2, 13), 0), (NEWEST, 0)],
)
def test_the_lowest_address_wins_up_to_2_12_and_the_oldest_segment_from_2_13_on(
    version: TorchVersion, winner: int
) -> None:
    gpu = CachingAllocator(version=version, addresses=TwoPlaces())
    blocks = [gpu.malloc(32 * MiB), gpu.malloc(32 * MiB)]
    for block in blocks:
        gpu.free(block)
    assert gpu.malloc(32 * MiB) == blocks[winner]


def test_within_a_segment_the_lowest_address_wins() -> None:
    gpu = allocator()
    blocks = [gpu.malloc(2 * MiB) for _ in range(6)]
    for index in (4, 0, 2):
        gpu.free(blocks[index])
    assert [gpu.malloc(2 * MiB) for _ in range(3)] == [blocks[0], blocks[2], blocks[4]]


# ---- what is given back ----


def test_freeing_gives_nothing_back_and_emptying_the_cache_gives_whole_segments() -> None:
    gpu = allocator()
    used, unused = gpu.malloc(4 * MiB), gpu.malloc(30 * MiB)
    gpu.free(unused)
    assert gpu.reserved_bytes == 50 * MiB
    gpu.empty_cache()
    assert gpu.reserved_bytes == 20 * MiB
    gpu.free(used)
    gpu.empty_cache()
    assert gpu.segments() == () and gpu.reserved_bytes == 0
    assert gpu.peak_reserved_bytes == 50 * MiB


def test_a_peak_that_was_reset_starts_from_now() -> None:
    gpu = allocator()
    keep, drop = gpu.malloc(2 * MiB), gpu.malloc(30 * MiB)
    gpu.free(drop)
    gpu.reset_peak()
    peaks = (gpu.peak_requested_bytes, gpu.peak_allocated_bytes, gpu.peak_reserved_bytes)
    assert peaks == (2 * MiB, 2 * MiB, 50 * MiB)
    gpu.free(keep)


# ---- statistics ----


def test_statistics_have_pytorchs_names_in_its_order() -> None:
    metrics = [
        "active",
        "active_bytes",
        "allocated_bytes",
        "allocation",
        "inactive_split",
        "inactive_split_bytes",
        "requested_bytes",
        "reserved_bytes",
        "segment",
    ]
    kinds = ("allocated", "current", "freed", "peak")
    names = [
        f"{m}.{p}.{k}" for m in metrics for p in ("all", "large_pool", "small_pool") for k in kinds
    ]
    names += [f"oversize_{m}.{k}" for m in ("allocations", "segments") for k in kinds]
    names += ["max_split_size", "num_alloc_retries", "num_device_alloc", "num_device_free"]
    names += ["num_ooms", "num_sync_all_streams"]
    assert list(allocator(TorchVersion(2, 11)).stats()) == sorted(names)
    later = set(allocator(NEWEST).stats()) - set(names)
    assert later == {"num_oom_rejections"}


def test_statistics_of_a_short_life() -> None:
    gpu = allocator()
    small, large = gpu.malloc(100), gpu.malloc(3 * MiB)
    gpu.free(small)
    stats = gpu.stats()

    def of(name: str) -> dict[str, tuple[int, ...]]:
        kinds = ("current", "peak", "allocated", "freed")
        pools = ("all", "large_pool", "small_pool")
        return {pool: tuple(stats[f"{name}.{pool}.{kind}"] for kind in kinds) for pool in pools}

    assert of("allocation") == {
        "all": (1, 2, 2, 1),
        "large_pool": (1, 1, 1, 0),
        "small_pool": (0, 1, 1, 1),
    }
    assert of("active") == of("allocation")
    assert of("allocated_bytes") == {
        "all": (3 * MiB, 3 * MiB + 512, 3 * MiB + 512, 512),
        "large_pool": (3 * MiB, 3 * MiB, 3 * MiB, 0),
        "small_pool": (0, 512, 512, 512),
    }
    assert of("requested_bytes")["all"] == (3 * MiB, 3 * MiB + 100, 3 * MiB + 100, 100)
    assert of("reserved_bytes") == {
        "all": (22 * MiB, 22 * MiB, 22 * MiB, 0),
        "large_pool": (20 * MiB, 20 * MiB, 20 * MiB, 0),
        "small_pool": (2 * MiB, 2 * MiB, 2 * MiB, 0),
    }
    assert of("segment") == {
        "all": (2, 2, 2, 0),
        "large_pool": (1, 1, 1, 0),
        "small_pool": (1, 1, 1, 0),
    }
    assert of("inactive_split")["all"] == (1, 2, 2, 1)
    assert of("inactive_split_bytes")["small_pool"] == (
        0,
        2 * MiB - 512,
        2 * MiB - 512,
        2 * MiB - 512,
    )
    assert (stats["num_device_alloc"], stats["num_device_free"]) == (2, 0)
    gpu.free(large)


# ---- another stream uses the block too ----


def test_a_block_that_another_stream_uses_stays_active_until_streams_are_synchronized() -> None:
    gpu = allocator()
    address = gpu.malloc(3 * MiB)
    gpu.record_stream(address, 5)
    gpu.free(address)
    assert (gpu.allocated_bytes, gpu.active_bytes, gpu.requested_bytes) == (0, 3 * MiB, 3 * MiB)
    other = gpu.malloc(3 * MiB)
    assert other != address
    gpu.synchronize()
    assert gpu.active_bytes == 6 * MiB  # it is noticed by the next request
    assert gpu.malloc(3 * MiB) == address
    assert gpu.active_bytes == 6 * MiB
    assert gpu.stats()["active_bytes.all.peak"] == 6 * MiB
    assert gpu.stats()["allocated_bytes.all.peak"] == 6 * MiB


def test_peaks_of_what_is_active_count_blocks_that_are_still_in_use_elsewhere() -> None:
    gpu = allocator()
    address = gpu.malloc(3 * MiB)
    gpu.record_stream(address, 5)
    gpu.free(address)
    gpu.malloc(2 * MiB)
    stats = gpu.stats()
    assert stats["active_bytes.all.peak"] == 5 * MiB and stats["active.large_pool.peak"] == 2
    assert stats["allocated_bytes.all.peak"] == 3 * MiB and stats["allocation.all.peak"] == 1


def test_without_waiting_the_use_by_another_stream_ends_before_the_next_request() -> None:
    gpu = allocator(waits_for_streams=False)
    address = gpu.malloc(3 * MiB)
    gpu.record_stream(address, 5)
    gpu.free(address)
    assert gpu.active_bytes == 3 * MiB
    assert gpu.malloc(3 * MiB) == address


def test_the_blocks_own_stream_is_no_other_stream() -> None:
    gpu = allocator()
    address = gpu.malloc(3 * MiB, stream=5)
    gpu.record_stream(address, 5)
    gpu.free(address)
    assert gpu.active_bytes == 0


def test_a_block_in_use_elsewhere_is_not_joined_with_its_neighbours() -> None:
    gpu = allocator()
    first, second = gpu.malloc(3 * MiB), gpu.malloc(3 * MiB)
    gpu.record_stream(first, 5)
    gpu.free(first)
    gpu.free(second)
    assert [b.num_bytes // MiB for b in gpu.segments()[0].blocks] == [3, 17]
    gpu.empty_cache()  # it waits for all streams
    assert gpu.segments() == ()


# ---- settings ----


def test_a_limit_on_splitting_keeps_large_blocks_for_requests_of_their_size() -> None:
    gpu = allocator(settings=Settings(max_split_size_bytes=64 * MiB))
    large = gpu.malloc(100 * MiB)
    gpu.free(large)
    assert gpu.malloc(30 * MiB) != large  # smaller than the limit: not from a large block
    assert gpu.malloc(80 * MiB) != large  # 20 MiB or more would be lost
    assert gpu.malloc(81 * MiB) == large
    assert gpu.block_bytes(large) == 100 * MiB
    stats = gpu.stats()
    assert stats["max_split_size"] == 64 * MiB
    assert stats["oversize_allocations.current"] == 2 and stats["oversize_segments.current"] == 2


def test_the_loss_that_is_allowed_can_be_set() -> None:
    gpu = allocator(
        settings=Settings(max_split_size_bytes=64 * MiB, max_non_split_rounding_bytes=32 * MiB)
    )
    large = gpu.malloc(100 * MiB)
    gpu.free(large)
    assert gpu.malloc(68 * MiB) != large
    assert gpu.malloc(69 * MiB) == large


def test_rounding_up_to_divisions_counts_as_allocated() -> None:
    gpu = allocator(settings=Settings(roundup_power2_divisions=(4,) * 16))
    gpu.malloc(33 * MiB)
    assert state(gpu) == (33 * MiB, 40 * MiB, 40 * MiB)


def test_another_large_segment_size() -> None:
    gpu = allocator(settings=Settings(large_segment_bytes=64 * MiB))
    for _ in range(3):
        gpu.malloc(9 * MiB)
    assert gpu.reserved_bytes == 64 * MiB


def test_old_free_segments_are_given_back_above_the_threshold() -> None:
    gpu = allocator(
        settings=Settings(garbage_collection_threshold=0.5, per_process_memory_fraction=0.5),
        total_bytes=2 * GiB,
    )
    old, recent = gpu.malloc(300 * MiB), gpu.malloc(310 * MiB)
    gpu.free(old)
    for _ in range(4):
        gpu.free(gpu.malloc(512))
        gpu.malloc(3 * MiB)
    gpu.free(recent)
    gpu.malloc(320 * MiB)  # 630 MiB are held, of which 512 may be
    assert sorted(s.num_bytes // MiB for s in gpu.segments()) == [2, 20, 310, 320]
    assert gpu.stats()["num_alloc_retries"] == 0


def test_without_a_limit_there_is_no_garbage_collection_from_2_9_on() -> None:
    settings = Settings(garbage_collection_threshold=0.1)
    for version, collects in ((TorchVersion(2, 8), True), (TorchVersion(2, 9), False)):
        gpu = CachingAllocator(version=version, settings=settings, total_bytes=1 * GiB)
        gpu.set_memory_fraction(1.0)
        gpu.free(gpu.malloc(200 * MiB))
        gpu.malloc(300 * MiB)
        assert (gpu.reserved_bytes == 300 * MiB) == collects


def test_a_share_of_an_unknown_device_is_an_error() -> None:
    with pytest.raises(ValueError, match="give total_bytes"):
        allocator(settings=Settings(per_process_memory_fraction=0.5))
    with pytest.raises(ValueError, match="between 0 and 1"):
        allocator(total_bytes=1).set_memory_fraction(1.5)
