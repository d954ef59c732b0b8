"""What a Replay says about peaks and fragmentation, and which curves it refuses."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from memfit.records.replay import Replay, Segment, SegmentBlock


def replay(*moments: tuple[int, int, int]) -> Replay:
    """One (requested, allocated, reserved) a moment."""
    curves = np.array(moments, dtype="int64").reshape(-1, 3)
    return Replay(
        allocator="cpu", requested=curves[:, 0], allocated=curves[:, 1], reserved=curves[:, 2]
    )


def test_each_peak_is_the_highest_of_its_own_curve() -> None:
    seen = replay((10, 512, 2048), (300, 512, 2048), (20, 1024, 2048), (5, 1024, 4096))

    assert (seen.peak_requested_bytes, seen.peak_allocated_bytes, seen.peak_reserved_bytes) == (
        300,
        1024,
        4096,
    )


def test_the_peak_event_is_the_first_with_the_most_bytes_allocated() -> None:
    assert replay((1, 1, 1), (2, 9, 9), (3, 9, 20)).peak_event == 1


def test_fragmentation_is_what_is_never_handed_out_while_the_most_is_reserved() -> None:
    assert replay((1, 1, 1), (2, 9, 20), (3, 17, 20), (1, 1, 20)).fragmentation_bytes == 3
    assert replay((3, 19, 19), (1, 1, 20)).fragmentation_bytes == 19


def test_an_empty_replay_has_no_peak() -> None:
    empty = replay()

    assert (empty.peak_event, empty.peak_allocated_bytes, empty.fragmentation_bytes) == (-1, 0, 0)


@pytest.mark.parametrize("moment", [(2, 1, 3), (1, 3, 2)])
def test_requested_is_within_allocated_and_allocated_within_reserved(
    moment: tuple[int, int, int],
) -> None:
    with pytest.raises(ValueError, match="requested <= allocated <= reserved does not hold"):
        replay((1, 1, 1), moment)


def test_curves_of_unequal_length_or_type_are_refused() -> None:
    three, two = np.zeros(3, dtype="int64"), np.zeros(2, dtype="int64")

    with pytest.raises(ValueError, match="int64 and of one length"):
        Replay(allocator="cpu", requested=three, allocated=three, reserved=two)
    with pytest.raises(ValueError, match="int64 and of one length"):
        Replay(allocator="cpu", requested=three, allocated=three, reserved=three.astype("int32"))


def test_two_replays_are_equal_when_allocator_and_curves_are() -> None:
    assert replay((1, 2, 3)) == replay((1, 2, 3))
    assert replay((1, 2, 3)) != replay((1, 2, 4))
    assert replay((1, 2, 3)) != "a replay"


def test_a_file_of_version_1_knows_neither_blocks_nor_segments(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    wanted = replay((1, 2, 3), (4, 5, 6))
    wanted.save(path)
    document = json.loads(path.read_text())
    for name in ("segments", "out_of_memory_event", "num_alloc_retries"):
        del document[name]
    del document["columns"]["block_bytes"]
    path.write_text(json.dumps({**document, "version": 1}))
    assert Replay.load(path) == wanted
    assert (wanted.segments, wanted.out_of_memory_event, len(wanted.block_bytes)) == ((), -1, 0)


def test_an_event_that_is_not_there_cannot_run_out_of_memory() -> None:
    with pytest.raises(ValueError, match="there is no event 2 to run out of memory"):
        dataclasses.replace(replay((1, 1, 1), (1, 1, 1)), out_of_memory_event=2)


def test_sizes_of_blocks_are_whole_numbers() -> None:
    with pytest.raises(ValueError, match="block_bytes must be one int64 a block"):
        dataclasses.replace(replay((1, 1, 1)), block_bytes=np.zeros(1))


@pytest.mark.parametrize(("offset", "num_bytes"), [(4, 8), (12, 8), (8, 0)])
def test_blocks_fill_a_segment_without_a_gap(offset: int, num_bytes: int) -> None:
    first = SegmentBlock(offset=0, num_bytes=8, requested_bytes=3, block=0)
    second = SegmentBlock(offset=offset, num_bytes=num_bytes, requested_bytes=0, block=-1)
    with pytest.raises(ValueError, match="leave a gap, or overlap, at byte 8"):
        segment(16, first, second)


def test_blocks_are_as_large_as_their_segment() -> None:
    first = SegmentBlock(offset=0, num_bytes=8, requested_bytes=3, block=0)
    with pytest.raises(ValueError, match="a segment of 16 bytes has blocks of 8 bytes"):
        segment(16, first)


def segment(num_bytes: int, *blocks: SegmentBlock) -> Segment:
    return Segment(
        address=0,
        num_bytes=num_bytes,
        stream=0,
        is_small=True,
        is_expandable=False,
        blocks=blocks,
    )
