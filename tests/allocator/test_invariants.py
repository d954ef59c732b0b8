"""What holds after any run of requests, under every setting and version."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from memfit.allocator.addresses import POLICIES
from memfit.allocator.caching import CachingAllocator
from memfit.allocator.out_of_memory import OutOfMemory
from memfit.allocator.settings import Settings
from memfit.allocator.version import TorchVersion
from memfit.units import GiB, MiB

sizes = st.sampled_from([1, 512, 513, 70_000, MiB - 1, MiB, MiB + 1, 3 * MiB, 9 * MiB]) | (
    st.integers(1, 90 * MiB)
)
requests = st.tuples(st.just("malloc"), sizes, st.sampled_from([0, 0, 0, 5]))
others = st.tuples(
    st.sampled_from(["free", "free", "free", "record_stream", "synchronize", "empty_cache"]),
    st.integers(0, 1 << 20),
    st.sampled_from([0, 5, 9]),
)
scripts = st.lists(requests | others, max_size=60)
options = st.sampled_from(
    [
        Settings(),
        Settings(expandable_segments=True),
        Settings(max_split_size_bytes=30 * MiB),
        Settings(roundup_power2_divisions=(4,) * 16),
        Settings(garbage_collection_threshold=0.3, per_process_memory_fraction=0.2),
        Settings(large_segment_bytes=32 * MiB, max_non_split_rounding_bytes=32 * MiB),
    ]
)
versions = st.sampled_from([TorchVersion(2, 6), TorchVersion(2, 12), TorchVersion(2, 14)])
capacities = st.sampled_from([None, 400 * MiB, 100 * MiB])


class Machine:
    """Runs a script on an allocator, and keeps the simplest possible account of it."""

    def __init__(self, gpu: CachingAllocator) -> None:
        self.gpu = gpu
        self.live: dict[int, int] = {}
        """Address -> bytes asked for."""

        self.peak_requested = self.peak_allocated = 0
        self.peaks: dict[str, int] = {}
        self.answers: list[int] = []

    def do(self, name: str, value: int, stream: int) -> None:
        gpu = self.gpu
        if name == "malloc":
            try:
                address = gpu.malloc(value, stream)
            except OutOfMemory:
                self.answers.append(-1)
            else:
                assert address not in self.live
                self.live[address] = value
                self.answers.append(address)
        elif name in ("free", "record_stream"):
            if self.live:
                address = sorted(self.live)[value % len(self.live)]
                if name == "free":
                    del self.live[address]
                    gpu.free(address)
                else:
                    gpu.record_stream(address, stream)
        elif name == "synchronize":
            gpu.synchronize()
        else:
            gpu.empty_cache()
        self.peak_requested = max(self.peak_requested, gpu.requested_bytes)
        self.peak_allocated = max(self.peak_allocated, gpu.allocated_bytes)

    def check(self) -> None:
        gpu = self.gpu
        segments = gpu.segments()
        blocks = {
            segment.address + block.offset: block
            for segment in segments
            for block in segment.blocks
        }
        used = {address: block for address, block in blocks.items() if block.block >= 0}

        # Segments do not overlap, nor do blocks: a Segment's blocks fill it one after the other.
        for one, other in pairwise(segments):
            assert one.address + one.num_bytes <= other.address

        # Every live block is where its owner was told, and holds what was asked for.
        assert all(used[a].requested_bytes == n <= used[a].num_bytes for a, n in self.live.items())
        assert all(gpu.block_bytes(a) == used[a].num_bytes for a in self.live)

        # Free neighbours are always joined.
        for segment in segments:
            for one, other in pairwise(segment.blocks):
                assert one.block >= 0 or other.block >= 0
        assert all(block.num_bytes % 512 == 0 for block in blocks.values())

        # The statistics are sums over the layout.
        stats = gpu.stats()
        assert gpu.reserved_bytes == sum(segment.num_bytes for segment in segments)
        assert gpu.active_bytes == sum(block.num_bytes for block in used.values())
        assert gpu.requested_bytes == sum(block.requested_bytes for block in used.values())
        assert gpu.allocated_bytes == sum(used[address].num_bytes for address in self.live)
        assert stats["allocation.all.current"] == len(self.live)
        assert stats["active.all.current"] == len(used)
        assert stats["segment.all.current"] == sum(not s.is_expandable for s in segments)
        split = [
            block.num_bytes
            for segment in segments
            if not segment.is_expandable and len(segment.blocks) > 1
            for block in segment.blocks
            if block.block < 0
        ]
        assert stats["inactive_split.all.current"] == len(split)
        assert stats["inactive_split_bytes.all.current"] == sum(split)
        check_sums(stats)

        # A peak is at least what was ever seen; only moments inside a request are not seen here.
        for key, value in stats.items():
            if key.endswith(".current"):
                name = key.removesuffix(".current")
                self.peaks[name] = max(self.peaks.get(name, 0), value)
                assert stats[f"{name}.peak"] >= self.peaks[name]
        assert gpu.requested_bytes <= gpu.active_bytes <= gpu.reserved_bytes
        assert gpu.allocated_bytes <= gpu.active_bytes
        assert gpu.peak_requested_bytes == self.peak_requested
        assert gpu.peak_allocated_bytes == self.peak_allocated


def check_sums(stats: dict[str, int]) -> None:
    """Both pools make up the whole, and what came minus what went is what is there."""
    for key, value in stats.items():
        name, _, kind = key.rpartition(".")
        if name.endswith(".all") and kind != "peak":
            stem = name.removesuffix(".all")
            assert value == stats[f"{stem}.small_pool.{kind}"] + stats[f"{stem}.large_pool.{kind}"]
        if kind == "current":
            assert value == stats[f"{name}.allocated"] - stats[f"{name}.freed"]
            assert 0 <= value <= stats[f"{name}.peak"] <= stats[f"{name}.allocated"]


def machine(
    version: TorchVersion,
    chosen: Settings,
    capacity: int | None = None,
    addresses: str = "ascending",
    waits: bool = True,
) -> Machine:
    return Machine(
        CachingAllocator(
            version=version,
            settings=chosen,
            capacity_bytes=capacity,
            addresses=addresses,
            total_bytes=2 * GiB,
            waits_for_streams=waits,
        )
    )


@given(scripts, versions, options, capacities, st.sampled_from(POLICIES), st.booleans())
def test_blocks_never_overlap_and_every_count_is_a_sum_over_the_layout(
    script: list[tuple[str, int, int]],
    version: TorchVersion,
    chosen: Settings,
    capacity: int | None,
    policy: str,
    waits: bool,
) -> None:
    run = machine(version, chosen, capacity, policy, waits)
    for command in script:
        run.do(*command)
        run.check()
        assert capacity is None or run.gpu.reserved_bytes <= capacity


@given(scripts, versions, options, capacities)
def test_the_same_requests_get_the_same_answers(
    script: list[tuple[str, int, int]],
    version: TorchVersion,
    chosen: Settings,
    capacity: int | None,
) -> None:
    runs = [machine(version, chosen, capacity) for _ in range(2)]
    for run in runs:
        for command in script:
            run.do(*command)
    first, second = runs
    assert first.answers == second.answers
    assert first.gpu.segments() == second.gpu.segments()
    assert first.gpu.stats() == second.gpu.stats()


@given(scripts, versions, options)
def test_when_all_is_freed_and_the_cache_emptied_nothing_is_left(
    script: list[tuple[str, int, int]], version: TorchVersion, chosen: Settings
) -> None:
    run = machine(version, chosen)
    for command in script:
        run.do(*command)
    for address in sorted(run.live):
        run.gpu.free(address)
    run.gpu.empty_cache()
    assert run.gpu.segments() == ()
    stats = run.gpu.stats()
    assert {value for key, value in stats.items() if key.endswith(".current")} == {0}


@given(scripts, versions, options)
def test_a_restored_layout_is_the_one_it_was_copied_from_and_joins_blocks_as_it_does(
    script: list[tuple[str, int, int]], version: TorchVersion, chosen: Settings
) -> None:
    run, copy = machine(version, chosen), machine(version, chosen)
    for command in script:
        if command[0] in ("malloc", "free"):
            run.do(*command)
    copy.gpu.restore(run.gpu.segments())
    for address in (0, *sorted(run.live, key=lambda address: address % 1009)):
        for gpu in (run.gpu, copy.gpu):
            gpu.free(address)
        assert copy.gpu.segments() == run.gpu.segments()
        now = {k: v for k, v in run.gpu.stats().items() if k.endswith(".current")}
        assert {k: v for k, v in copy.gpu.stats().items() if k.endswith(".current")} == now
