"""Reads the memory snapshots of PyTorch: ``torch.cuda.memory._dump_snapshot("file.pickle")``.

A snapshot is a pickle of plain dicts and lists: what the allocator did, as far back as its buffer
reaches, and the layout at the end.  A pickle can run code, so this one is read with everything
but plain data refused.  Events carry the bytes asked for; the sizes of blocks stand only in the
final layout.  The layout at the start is rebuilt from the final one, undoing event by event.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from memfit.allocator.layout import Held, Layout
from memfit.errors import BadInput, DamagedFile
from memfit.profiler.rewind import Rewind
from memfit.records.segments import Segment

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "annotate",
)
"""What an event can be: the names in torch/csrc/cuda/Module.cpp."""


class Frame(NamedTuple):
    """One line of the stack that made an event, the innermost first."""

    file: str
    line: int
    function: str


class TraceEvent(NamedTuple):
    """One thing that the allocator did."""

    action: str
    """One of ACTIONS."""

    address: int
    """Of the block or segment; of ``oom``, the bytes that were free on the device."""

    num_bytes: int
    """What was asked for, of a block; all of it, of a segment."""

    stream: int
    """The CUDA stream's handle; 0 is the default one."""

    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What one device's allocator did, and what it held before and after.

    Blocks are numbered as in a Timeline: first the ones that are live at the start, by address,
    then the events' allocations in order.
    """

    device: int
    settings: str
    """The ``PYTORCH_ALLOC_CONF`` string that was in force; empty when none was, or not known."""

    events: tuple[TraceEvent, ...]
    start_segments: tuple[Segment, ...]
    """The layout before the first event."""

    segments: tuple[Segment, ...]
    """The layout after the last event."""

    @property
    def starts_empty(self) -> bool:
        """Whether the allocator held nothing when the recording began."""
        return not self.start_segments


def load_recording(path: Path, device: int | None = None) -> Recording:
    """Reads a snapshot.

    Args:
        device: which GPU's part; None: the one that there is.

    Raises:
        BadInput: no such file, not a snapshot, or it holds no or several devices.
        DamagedFile: cut short or altered, saying what could be read; or it holds something else
            than plain data, which is never loaded.
    """
    try:
        with open(path, "rb") as file:
            document = _load_plain(path, file)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from error
    if isinstance(document, list):  # torch.cuda.memory_snapshot(): the layout alone
        document = {"segments": document, "device_traces": []}
    if not isinstance(document, dict) or not {"segments", "device_traces"} <= document.keys():
        raise BadInput(
            f"{path} is a pickle, but not a memory snapshot of PyTorch: write one with "
            'torch.cuda.memory._dump_snapshot("file.pickle")'
        )
    try:
        return _recording(path, document, device)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise DamagedFile(
            f"{path} is damaged: {type(error).__name__} in its {_part(error)}: {error}"
        ) from error


def _part(error: Exception) -> str:
    notes = getattr(error, "__notes__", None)
    return str(notes[0]) if notes else "contents"


def _recording(path: Path, document: Mapping[str, Any], device: int | None) -> Recording:
    traces, all_segments = document["device_traces"], document["segments"]
    devices = {segment["device"] for segment in all_segments}
    devices |= {index for index, trace in enumerate(traces) if trace}
    if device is None:
        if len(devices) != 1:
            found = ", ".join(map(str, sorted(devices))) or "none"
            raise BadInput(f"{path} holds memory of several devices or none ({found}): name one")
        (device,) = devices
    elif device not in devices:
        raise BadInput(f"{path} holds nothing of device {device}, only of {sorted(devices)}")
    raw_events = traces[device] if device < len(traces) else []
    events = _events(raw_events)
    final = Layout()
    for index, raw in enumerate(all_segments):
        if raw["device"] == device:
            try:
                _add_segment(final, raw)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                error.add_note(f"segment {index} of {len(all_segments)}")
                raise
    start = Rewind(final)
    for index in range(len(events) - 1, -1, -1):
        event = events[index]
        try:
            start.undo(event.action, event.address, event.num_bytes, event.stream)
        except ValueError as error:
            error.add_note(f"event {index} of {len(events)}, going backwards from its final layout")
            raise
    numbers = start.number_blocks()
    count = len(numbers)
    start_segments = start.segments(numbers)
    for event in events:
        if event.action == "alloc":
            numbers[event.address] = count
            count += 1
    settings = document.get("allocator_settings") or {}
    return Recording(
        device=device,
        settings=str(settings.get("PYTORCH_CUDA_ALLOC_CONF", "")),
        events=tuple(events),
        start_segments=start_segments,
        segments=final.segments(numbers),
    )


def _events(raw_events: Sequence[Mapping[str, Any]]) -> list[TraceEvent]:
    """The events; stacks that share lines in the file share them here."""
    frames: dict[int, Frame] = {}
    events: list[TraceEvent] = []
    for index, raw in enumerate(raw_events):
        try:
            events.append(_event(raw, frames))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            error.add_note(f"event {index}")
            raise
    return events


def _event(raw: Mapping[str, Any], known: dict[int, Frame]) -> TraceEvent:
    """One event.  ``known`` holds the frames built so far by the identity of their dicts."""
    action = raw["action"]
    if action not in ACTIONS:
        raise ValueError(f"there is no action {action!r:.40}")
    address = raw["device_free"] if action == "oom" else raw["addr"]
    numbers = (address, raw["size"], raw["stream"])
    if any(type(number) is not int for number in numbers):
        raise TypeError(f"address, size and stream are {numbers!r:.60}, not whole numbers")
    lines = raw.get("frames", ())
    for line in lines:
        if id(line) not in known:
            frame = Frame(str(line["filename"]), int(line["line"]), str(line["name"]))
            known[id(line)] = frame
    return TraceEvent(action, *numbers, tuple([known[id(line)] for line in lines]))


def _add_segment(layout: Layout, raw: Mapping[str, Any]) -> None:
    address, num_bytes = raw["address"], raw["total_size"]
    layout.add(
        address,
        Held(
            num_bytes,
            raw["stream"],
            raw["segment_type"] == "small",
            bool(raw.get("is_expandable", False)),
        ),
    )
    offset = 0
    for block in raw["blocks"]:
        size = block["size"]
        if block["state"] != "inactive":
            layout.used[address + offset] = (size, block.get("requested_size", size))
        offset += size
    if offset != num_bytes:
        raise ValueError(f"its blocks sum to {offset} bytes, where it has {num_bytes}")


class _Refused(Exception):
    """The pickle asks for something that is not plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _Refused(f"a persistent object {pid!r:.80}")


class _SlowUnpickler(pickle._Unpickler):
    """The same in Python, which keeps what it has read when the file ends too early."""

    memo: dict[int, Any]

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _Refused(f"a persistent object {pid!r:.80}")


_PICKLE_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    RecursionError,
)


def _load_plain(path: Path, file: BinaryIO) -> Any:
    try:
        return _PlainUnpickler(file).load()
    except _Refused as error:
        raise DamagedFile(
            f"{path} was not loaded: it asks for {error}, where a memory snapshot holds plain "
            "numbers, texts, lists and dicts only; a pickle that loads more can run any code"
        ) from error
    except _PICKLE_ERRORS as error:
        file.seek(0)
        raise DamagedFile(f"{path} is damaged: {error} ({_salvage(file)})") from error


def _salvage(file: BinaryIO) -> str:
    """What can be read of a broken snapshot, in words."""
    reader = _SlowUnpickler(file)
    try:
        reader.load()
    except (_Refused, *_PICKLE_ERRORS):
        pass
    dicts = [value for value in getattr(reader, "memo", {}).values() if isinstance(value, dict)]
    num_segments = sum("segment_type" in one for one in dicts)
    num_events = sum("action" in one for one in dicts)
    if not num_segments and not num_events:
        return "nothing of a memory snapshot could be read"
    return (
        f"{num_segments:,} segments and {num_events:,} events could be read, "
        f"{'the rest of the events' if num_events else 'no event'} and all after them could not: "
        "copy the file again, or record again"
    )
