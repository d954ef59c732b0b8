"""Memory snapshots of PyTorch: what is read, what is rebuilt, and what is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.allocator.caching import CachingAllocator
from memfit.allocator.settings import Settings
from memfit.allocator.version import NEWEST
from memfit.errors import BadInput, DamagedFile
from memfit.profiler.snapshot import Frame, Recording, TraceEvent, load_recording
from memfit.units import MiB

BASE = 1 << 40


def block(num_bytes: int, requested: int = 0) -> dict[str, Any]:
    state = "active_allocated" if requested else "inactive"
    return {"size": num_bytes, "requested_size": requested, "state": state}


def segment(address: int, *blocks: dict[str, Any], **others: Any) -> dict[str, Any]:
    total = sum(one["size"] for one in blocks)
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "stream": 0,
        "segment_type": "small" if total == 2 * MiB else "large",
        "is_expandable": False,
        "blocks": list(blocks),
        **others,
    }


def event(action: str, address: int, num_bytes: int, **others: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": num_bytes, "stream": 0, **others}


def free(address: int, num_bytes: int) -> list[dict[str, Any]]:
    return [event(f"free_{what}", address, num_bytes) for what in ("requested", "completed")]


def recording(path: Path, segments: list[Any], events: list[Any], **others: Any) -> Recording:
    document = {"segments": segments, "device_traces": [events], **others}
    path.write_bytes(pickle.dumps(document))
    return load_recording(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.pickle"


# ---- what is read ----


def test_a_recording_from_the_start_has_events_and_both_layouts(path: Path) -> None:
    frames = [{"filename": "train.py", "line": 7, "name": "main"}]
    events = [
        event("segment_alloc", BASE, 2 * MiB),
        event("alloc", BASE, 100, frames=frames),
        event("alloc", BASE + 512, 600),
        *free(BASE, 100),
    ]
    final = segment(BASE, block(512), block(1024, 600), block(2 * MiB - 1536))
    seen = recording(
        path, [final], events, allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}
    )
    assert seen.starts_empty and seen.start_segments == ()
    assert seen.events[1] == TraceEvent("alloc", BASE, 100, 0, (Frame("train.py", 7, "main"),))
    assert [e.action for e in seen.events] == [e["action"] for e in events]
    assert [(b.offset, b.requested_bytes, b.block) for b in seen.segments[0].blocks] == [
        (0, 0, -1),
        (512, 600, 1),
        (1536, 0, -1),
    ]
    assert (seen.settings, seen.device) == ("backend:native", 0)


def test_the_layout_at_the_start_is_rebuilt_backwards(path: Path) -> None:
    gone = BASE + (1 << 30)
    events = [
        *free(BASE + 30 * MiB, 4 * MiB),
        event("segment_free", gone, 20 * MiB),
        event("segment_alloc", BASE - (1 << 30), 20 * MiB),
        event("alloc", BASE - (1 << 30), 3 * MiB),
        event("alloc", BASE + 30 * MiB, 2 * MiB),
    ]
    final = [
        segment(BASE - (1 << 30), block(3 * MiB, 3 * MiB), block(17 * MiB)),
        segment(BASE, block(30 * MiB, 30 * MiB), block(2 * MiB, 2 * MiB), block(8 * MiB)),
    ]
    seen = recording(path, final, events)
    assert not seen.starts_empty
    assert [(s.address, s.num_bytes) for s in seen.start_segments] == [
        (BASE, 40 * MiB),
        (gone, 20 * MiB),
    ]
    rows = [(b.num_bytes // MiB, b.block) for b in seen.start_segments[0].blocks]
    assert rows == [(30, 0), (4, 1), (6, -1)]
    # Numbers go on with the recording's own blocks.
    assert [b.block for s in seen.segments for b in s.blocks] == [2, -1, 0, 3, -1]


def test_a_gap_of_up_to_1_mib_behind_a_freed_block_was_its_unsplit_tail(path: Path) -> None:
    for size, wanted in ((15 * MiB, [16]), (14 * MiB, [14, 2])):
        seen = recording(path, [segment(BASE, block(16 * MiB))], free(BASE, size))
        assert [b.num_bytes // MiB for b in seen.start_segments[0].blocks] == wanted


def test_mapped_ranges_of_an_expandable_segment_are_taken_apart_and_joined(path: Path) -> None:
    expandable = {"is_expandable": True, "segment_type": "large"}
    events = [
        event("segment_unmap", BASE + 40 * MiB, 20 * MiB),
        event("segment_map", BASE + 20 * MiB, 20 * MiB),
    ]
    seen = recording(path, [segment(BASE, block(40 * MiB), **expandable)], events)
    assert [(s.address - BASE, s.num_bytes) for s in seen.start_segments] == [
        (0, 20 * MiB),
        (40 * MiB, 20 * MiB),
    ]
    assert all(s.is_expandable for s in seen.start_segments)


def test_a_block_that_waits_for_a_stream_is_still_there(path: Path) -> None:
    waiting = {"size": 3 * MiB, "requested_size": 3 * MiB, "state": "active_pending_free"}
    final = segment(BASE, waiting, block(17 * MiB))
    seen = recording(path, [final], free(BASE, 3 * MiB)[:1])
    assert seen.segments == seen.start_segments
    assert seen.segments[0].blocks[0].block == 0


def test_an_out_of_memory_event_says_what_the_device_had_left(path: Path) -> None:
    oom = {"action": "oom", "size": 5, "stream": 0, "device_free": 1234}
    assert recording(path, [segment(BASE, block(512))], [oom]).events[0].address == 1234


def test_a_list_of_segments_alone_is_a_recording_without_events(path: Path) -> None:
    path.write_bytes(pickle.dumps([segment(BASE, block(512, 5), block(512))]))
    seen = load_recording(path)
    assert (seen.events, len(seen.segments)) == ((), 1)


def test_one_of_several_devices_is_chosen(path: Path) -> None:
    both = [segment(BASE, block(512)), segment(BASE, block(1024), device=1)]
    with pytest.raises(BadInput, match=r"several devices or none \(0, 1\): name one"):
        recording(path, both, [])
    assert load_recording(path, device=1).segments[0].num_bytes == 1024
    with pytest.raises(BadInput, match=r"nothing of device 2, only of \[0, 1\]"):
        load_recording(path, device=2)


def test_a_recording_of_nothing_says_so(path: Path) -> None:
    with pytest.raises(BadInput, match=r"several devices or none \(none\)"):
        recording(path, [], [])


# ---- what is refused ----


class Runs:
    """Its pickle runs a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


def test_a_pickle_that_loads_code_is_refused_saying_what_and_runs_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Runs()]}))
    with pytest.raises(DamagedFile, match=r"was not loaded: it asks for (posix|nt)\.system, where"):
        load_recording(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_even_harmless_classes_are_refused_in_every_protocol(path: Path, protocol: int) -> None:
    path.write_bytes(pickle.dumps({"segments": Path("x")}, protocol=protocol))
    with pytest.raises(DamagedFile, match=r"it asks for \w+.*where a memory snapshot holds plain"):
        load_recording(path)


def test_a_persistent_object_is_refused(path: Path) -> None:
    path.write_bytes(b"\x80\x02X\x07\x00\x00\x00storageQ.")
    with pytest.raises(DamagedFile, match="it asks for a persistent object 'storage'"):
        load_recording(path)


@pytest.mark.parametrize("content", [5, "text", {"a": 1}, {"segments": []}], ids=str)
def test_another_pickle_is_refused(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(BadInput, match=r"not a memory snapshot.*_dump_snapshot"):
        load_recording(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04", b"PK\x03\x04", b"\x80\xff."])
def test_what_is_no_pickle_is_damage(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match="nothing of a memory snapshot could be read"):
        load_recording(path)


def test_a_file_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*: No such file"):
        load_recording(path)


def many_events(count: int) -> bytes:
    events = [event("snapshot", 0, index) for index in range(count)]
    segments = [segment(BASE, block(512)), segment(BASE + MiB, block(512))]
    return pickle.dumps({"segments": segments, "device_traces": [events]})


def test_a_file_that_is_cut_short_says_how_much_could_be_read(path: Path) -> None:
    whole = many_events(3000)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DamagedFile,
        match=r"is damaged: .*\(2 segments and 1,[45]\d\d events could be read, the rest of the "
        r"events and all after them could not",
    ):
        load_recording(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": "dance"}, "event 1: there is no action 'dance'"),
        ({"addr": "here"}, r"event 1: address, size and stream are \('here', 512, 0\)"),
        ({"size": None}, "event 1: address, size and stream are"),
        ({"addr": 5}, r"event 1 of 2, going backwards .*: no block begins at 0x5"),
    ],
)
def test_an_event_that_cannot_be_is_named(path: Path, change: dict[str, Any], message: str) -> None:
    events = [event("segment_alloc", BASE, 2 * MiB), event("alloc", BASE, 512) | change]
    with pytest.raises(DamagedFile, match=f"is damaged: .*{message}"):
        recording(path, [segment(BASE, block(512, 512), block(2 * MiB - 512))], events)


def test_an_event_without_its_fields_is_named(path: Path) -> None:
    with pytest.raises(DamagedFile, match="KeyError in its event 0: 'size'"):
        recording(path, [segment(BASE, block(512))], [{"action": "alloc", "addr": 1}])


def test_a_segment_whose_blocks_do_not_fill_it_is_named(path: Path) -> None:
    bad = segment(BASE, block(512), block(512), total_size=2048)
    with pytest.raises(DamagedFile, match="segment 0 of 1: its blocks sum to 1024 bytes, where it"):
        recording(path, [bad], [])


@given(data=st.data())
def test_a_file_with_any_byte_changed_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(many_events(3))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.pickle"
    path.write_bytes(whole)
    try:
        seen = load_recording(path)
    except BadInput:
        return
    assert isinstance(seen, Recording)


# ---- the way back is the way forth ----

moves = st.lists(st.tuples(st.integers(-20, 50_000_000), st.integers(0, 9)), max_size=40)


@given(moves, st.integers(0, 40), st.sampled_from([Settings(), Settings(expandable_segments=True)]))
def test_a_simulated_life_is_rebuilt_from_its_end(
    tmp_path_factory: pytest.TempPathFactory,
    script: list[tuple[int, int]],
    start: int,
    chosen: Settings,
) -> None:
    """The layout at the start is the real one, but for what an unsplit tail may hide."""
    events: list[dict[str, Any]] = []
    gpu = CachingAllocator(version=NEWEST, settings=chosen)
    live: dict[int, int] = {}
    before = gpu.segments()
    for index, (size, which) in enumerate(script):
        held = {(s.address, s.num_bytes) for s in gpu.segments()}
        if index == start:
            before, events = gpu.segments(), []
        if size > 0:
            address = gpu.malloc(size)
            live[address] = size
            if not chosen.expandable_segments:
                for place, total in {(s.address, s.num_bytes) for s in gpu.segments()} - held:
                    events.append(event("segment_alloc", place, total))
            else:
                events += mapped(held, {(s.address, s.num_bytes) for s in gpu.segments()})
            events.append(event("alloc", address, size))
        elif live:
            address = sorted(live)[which % len(live)]
            gpu.free(address)
            events += free(address, live.pop(address))
    if start >= len(script):
        before, events = gpu.segments(), []
    path = tmp_path_factory.getbasetemp() / "life.pickle"
    seen = recording(
        path, [as_pickled(s) for s in gpu.segments()] or [segment(1, block(512))], events
    )
    if not gpu.segments():
        return
    assert places(seen.start_segments) == places(before)
    assert places(seen.segments) == places(gpu.segments())


def mapped(before: set[tuple[int, int]], after: set[tuple[int, int]]) -> list[dict[str, Any]]:
    sizes = dict(before)
    return [
        event("segment_map", place + sizes.get(place, 0), total - sizes.get(place, 0))
        for place, total in after - before
    ]


def as_pickled(one: Any) -> dict[str, Any]:
    blocks = [block(b.num_bytes, b.requested_bytes) for b in one.blocks]
    return segment(
        one.address,
        *blocks,
        segment_type="small" if one.is_small else "large",
        is_expandable=one.is_expandable,
    )


def places(layout: Any) -> list[Any]:
    """Segments, and where the blocks in use begin."""
    return [
        (
            (s.address, s.num_bytes, s.is_small, s.is_expandable),
            [(b.offset, b.requested_bytes) for b in s.blocks if b.block >= 0],
        )
        for s in layout
    ]
