"""The segment map: bars true to scale, and nothing lost that is not counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_runs import WrittenRun

from memfit.records.segments import Segment, SegmentBlock
from memfit.records.timeline import Timeline
from memfit.reports.segments import NUM_LINES, Bar, segment_map
from memfit.units import MiB


def a_timeline() -> Timeline:
    run = WrittenRun()
    run.take(MiB, "parameters", module="body.weight", tensor="float32[512, 512]")
    run.take(MiB, "activations")
    return run.timeline()


TIMELINE = a_timeline()


def segment(*blocks: tuple[int, int], address: int = 0, **more: bool) -> Segment:
    """A segment of (bytes, block number or -1) blocks."""
    offset, found = 0, []
    for num_bytes, block in blocks:
        found.append(
            SegmentBlock(offset=offset, num_bytes=num_bytes, requested_bytes=0, block=block)
        )
        offset += num_bytes
    return Segment(
        address=address,
        num_bytes=offset,
        stream=0,
        is_small=more.get("is_small", False),
        is_expandable=more.get("is_expandable", False),
        blocks=tuple(found),
    )


def kinds(bar: Bar) -> list[tuple[str, float]]:
    return [(cell.kind, round(cell.share, 6)) for cell in bar.cells]


def test_a_segment_is_a_bar_with_a_cell_for_each_block():
    segments = [segment((6 * MiB, 0), (10 * MiB, -1), (4 * MiB, 1), address=k) for k in range(24)]

    found = segment_map(segments, TIMELINE)

    assert len(found.bars) == 24
    assert {bar.share for bar in found.bars} == {100.0}
    assert kinds(found.bars[0]) == [("parameters", 30.0), ("free", 50.0), ("activations", 20.0)]
    assert [cell.title for cell in found.bars[0].cells] == [
        "Parameters, 6.0 MiB · float32[512, 512] · body.weight",
        "Free, 10.0 MiB",
        "Activations, 4.0 MiB",
    ]
    assert (found.num_segments, found.num_bytes, found.free_bytes) == (24, 480 * MiB, 240 * MiB)


def test_the_largest_come_first_and_equal_ones_by_address():
    segments = [
        segment((2 * MiB, 0), address=1, is_small=True),
        segment((20 * MiB, 0), address=3),
        segment((20 * MiB, 1), address=2),
    ]

    found = segment_map(segments, TIMELINE)

    firsts = [
        bar
        for bar, before in zip(found.bars, [None, *found.bars], strict=False)
        if before is None or not before.goes_on
    ]
    assert [(bar.title, bar.cells[0].kind) for bar in firsts] == [
        ("Segment of 20.0 MiB, large", "activations"),
        ("Segment of 20.0 MiB, large", "parameters"),
        ("Segment of 2.0 MiB, small", "parameters"),
    ]


def test_a_segment_longer_than_a_line_goes_on_in_the_next():
    found = segment_map([segment((48 * MiB, 0), (48 * MiB, -1), is_expandable=True)], TIMELINE)

    assert len(found.bars) == NUM_LINES
    assert [bar.goes_on for bar in found.bars] == [True] * (NUM_LINES - 1) + [False]
    assert [kinds(bar) for bar in found.bars[::23]] == [[("parameters", 100)], [("free", 100)]]
    assert found.bars[0].title == "Segment of 96.0 MiB, expandable"


def test_blocks_too_narrow_to_see_are_drawn_together_as_what_most_of_them_are():
    many = [(512, k % 3 - 1) for k in range(3)] * 2
    big = segment((24 * 400 * MiB, 0), *many, (MiB, 1))

    found = segment_map([big], TIMELINE)

    last = found.bars[-1].cells[-1]
    assert last.title.startswith("7 blocks: Activations 1.0 MiB, ")
    assert last.kind == "activations"


def test_segments_too_narrow_to_see_are_counted():
    large = segment((24 * 400 * 2 * MiB, 0))
    small = [segment((2 * MiB, 1), address=k, is_small=True) for k in range(1, 4)]

    found = segment_map([large, *small], TIMELINE)

    assert (found.num_left_out, found.left_out_bytes) == (3, 6 * MiB)
    assert found.num_segments == 4


blocks = st.lists(
    st.tuples(st.integers(1, 1 << 16).map(lambda n: 512 * n), st.sampled_from([-1, 0, 1])),
    min_size=1,
    max_size=12,
)


@given(st.lists(blocks, min_size=1, max_size=20))
def test_what_is_drawn_and_what_is_counted_are_all_there_is(layout):
    segments = [segment(*some, address=k) for k, some in enumerate(layout)]

    found = segment_map(segments, TIMELINE)

    drawn = sum(bar.share for bar in found.bars) * found.line_bytes / 100
    assert drawn + found.left_out_bytes == pytest.approx(found.num_bytes)
    for bar in found.bars:
        assert sum(cell.share for cell in bar.cells) == pytest.approx(100)
        assert bar.share <= 100 + 1e-9
    assert found.free_bytes == sum(b for some in layout for b, block in some if block < 0)
