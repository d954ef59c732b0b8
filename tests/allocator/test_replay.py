"""A Timeline through the CUDA allocator: curves, blocks, the layout at the peak, failures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from timelines import Script

from memfit.allocator.caching import CachingAllocator
from memfit.allocator.replay import Run, replay_on_cuda
from memfit.allocator.settings import Settings
from memfit.allocator.version import NEWEST, TorchVersion
from memfit.records.replay import Segment, SegmentBlock
from memfit.units import MiB

V2_11 = TorchVersion(2, 11)


def test_curves_say_what_is_requested_allocated_and_reserved_after_each_event() -> None:
    timeline = Script().take("a", 100).take("b", 15 * MiB).give("a").give("b").timeline()
    replay = replay_on_cuda(timeline, version=V2_11)
    assert replay.allocator == "cuda 2.11"
    assert replay.requested.tolist() == [100, 15 * MiB + 100, 15 * MiB, 0]
    assert replay.allocated.tolist() == [512, 16 * MiB + 512, 16 * MiB, 0]
    assert replay.reserved.tolist() == [2 * MiB, 18 * MiB, 18 * MiB, 18 * MiB]
    assert replay.block_bytes.tolist() == [512, 16 * MiB]
    assert (replay.out_of_memory_event, replay.num_alloc_retries) == (-1, 0)


def test_the_layout_is_that_of_the_allocated_peak_with_the_timelines_numbers() -> None:
    timeline = (
        Script().take("a", 512).take("gone", 512).take("b", 30 * MiB, 4).give("gone").give("b")
    ).timeline()
    replay = replay_on_cuda(timeline, version=V2_11)
    assert replay.peak_event == 2
    small, large = replay.segments
    assert small == Segment(
        address=small.address,
        num_bytes=2 * MiB,
        stream=0,
        is_small=True,
        is_expandable=False,
        blocks=(
            SegmentBlock(offset=0, num_bytes=512, requested_bytes=512, block=0),
            SegmentBlock(offset=512, num_bytes=512, requested_bytes=512, block=1),
            SegmentBlock(offset=1024, num_bytes=2 * MiB - 1024, requested_bytes=0, block=-1),
        ),
    )
    assert (large.stream, large.is_small) == (4, False)
    assert [block.block for block in large.blocks] == [2]


def test_blocks_of_no_bytes_take_nothing() -> None:
    replay = replay_on_cuda(Script().take("a", 0).give("a").timeline(), version=V2_11)
    assert replay.reserved.tolist() == [0, 0] and replay.block_bytes.tolist() == [0]


def test_an_empty_timeline_has_an_empty_replay() -> None:
    replay = replay_on_cuda(Script().timeline(), version=V2_11)
    assert (len(replay.requested), replay.segments, replay.peak_event) == (0, (), -1)


def test_actions_happen_before_their_event() -> None:
    script = Script().take("a", 30 * MiB).give("a").act("empty_cache").take("b", 1)
    timeline = script.act("synchronize").give("b").act("reset_peak").act("empty_cache").timeline()
    assert replay_on_cuda(timeline, version=V2_11).reserved.tolist() == [
        30 * MiB,
        30 * MiB,
        2 * MiB,
        2 * MiB,
    ]


def test_after_a_failed_allocation_the_curves_stay_where_they_are() -> None:
    script = Script().take("a", 30 * MiB).take("b", 90 * MiB).give("a").take("c", 1)
    replay = replay_on_cuda(script.timeline(), version=V2_11, capacity_bytes=100 * MiB)
    assert replay.out_of_memory_event == 1
    assert replay.allocated.tolist() == [30 * MiB] * 4
    assert replay.block_bytes.tolist() == [30 * MiB, 0, 0]
    assert replay.num_alloc_retries == 1


def test_memory_that_has_to_be_given_back_is_counted() -> None:
    script = Script().take("a", 60 * MiB).give("a").take("b", 70 * MiB)
    replay = replay_on_cuda(script.timeline(), version=V2_11, capacity_bytes=100 * MiB)
    assert replay.reserved.tolist() == [60 * MiB, 60 * MiB, 70 * MiB]
    assert (replay.num_alloc_retries, replay.out_of_memory_event) == (1, -1)


def test_settings_are_applied() -> None:
    timeline = Script().take("a", 30 * MiB).timeline()
    settings = Settings(expandable_segments=True)
    assert replay_on_cuda(timeline, version=NEWEST, settings=settings).reserved.tolist() == [
        40 * MiB
    ]


@given(st.lists(st.tuples(st.integers(0, 40 * MiB), st.booleans()), max_size=30))
def test_replaying_twice_gives_the_same_and_requested_is_the_timelines_curve(
    blocks: list[tuple[int, bool]],
) -> None:
    script = Script()
    for number, (size, drop) in enumerate(blocks):
        script.take(str(number), size)
        if drop:
            script.give(str(number))
    timeline = script.timeline()
    replay = replay_on_cuda(timeline, version=V2_11)
    assert replay == replay_on_cuda(timeline, version=V2_11)
    assert replay.requested.tolist() == timeline.curve().tolist()


@given(
    st.lists(st.tuples(st.integers(1, 40 * MiB), st.integers(0, 3)), max_size=30),
    st.booleans(),
    st.integers(0, 60),
)
def test_the_layout_after_any_event_is_the_allocators_own(
    blocks: list[tuple[int, int]], is_expandable: bool, event: int
) -> None:
    script = Script()
    live: list[str] = []
    for number, (size, fate) in enumerate(blocks):
        live.append(str(number))
        script.take(live[-1], size, stream=fate % 2)
        if fate > 1:
            script.give(live.pop(size % len(live)))
        if size % 7 == 0:
            script.act("empty_cache")
    timeline = script.take("last", 1).timeline()
    end = min(event + 1, len(timeline.events))

    def run() -> Run:
        chosen = Settings(expandable_segments=is_expandable)
        return Run(timeline, CachingAllocator(version=V2_11, settings=chosen))

    whole, part = run(), run()
    whole.play(len(timeline.events))
    part.play(end)
    for number, block in part.blocks.items():
        block.number = number
    assert whole.layout_after(end - 1) == part.allocator.segments()
