"""``torch.cuda.Stream`` and ``Event``: memory belongs to the stream it was allocated on.

Ops on the virtual GPU are done as soon as they are called, so waiting for a stream is nothing, and
events tell the time of day.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from memfit.tracing.virtual.dispatch import Dispatch

CUDA_DEVICE_TYPE = 1
"""``c10::DeviceType::CUDA`` (c10/core/DeviceType.h)."""

_STREAMS_PER_POOL = 32
"""After so many, ``torch.cuda.Stream()`` gives the first again (c10/cuda/CUDAStream.cpp:
kStreamsPerPool)."""


class Event:
    """A point in a stream's work."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        **device: Any,
    ) -> None:
        self._is_timing = enable_timing
        self._seconds: float | None = None
        self.device = torch.device("cuda", 0)

    def record(self, stream: Any = None) -> None:
        """Notes the time."""
        self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing is outstanding."""

    def query(self) -> bool:
        """Everything is done."""
        return True

    def synchronize(self) -> None:
        """Nothing is outstanding."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of this machine, not of the GPU, from this event to another."""
        if not (self._is_timing and end_event._is_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return 1000 * (end_event._seconds - self._seconds)


class Stream:
    """A queue of work; ``stream_id`` is what the allocator knows it by, 0 the default one."""

    _made = 0

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        stream_id: int | None = None,
        device_index: int = 0,
        device_type: int = CUDA_DEVICE_TYPE,
        stream_ptr: int | None = None,
    ) -> None:
        if stream_id is None:
            stream_id = Stream._made % _STREAMS_PER_POOL + 1
            Stream._made += 1
        self.stream_id = stream_id
        self.device_index = device_index
        self.device_type = device_type
        self.priority = priority
        self.device = torch.device("cuda", 0)
        self.cuda_stream = stream_id

    def wait_event(self, event: Any) -> None:
        """Nothing is outstanding."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing is outstanding."""

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event here."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Everything is done."""
        return True

    def synchronize(self) -> None:
        """Nothing is outstanding."""

    def is_capturing(self) -> bool:
        """Graphs are captured by running their work (``graphs``)."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.stream_id == other.stream_id

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __enter__(self) -> Stream:
        self._before: Any = torch.cuda.current_stream()
        _select(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _select(self._before)


def _select(stream: Any) -> None:
    torch.cuda.set_stream(stream)


def install(gpu: Dispatch) -> None:
    """Replaces the classes, and what reads and sets the current stream."""

    def current(device_index: int) -> tuple[int, int, int]:
        return gpu.stream, 0, CUDA_DEVICE_TYPE

    def select(stream_id: int, device_index: int, device_type: int) -> None:
        gpu.stream = stream_id

    def record(tensor: torch.Tensor, stream: Any) -> None:
        # Whether the other stream is done when the tensor is freed only a clock could tell.
        gpu.facts["record_stream"] = "tensors used by another stream are freed without waiting"

    module: Any
    for module in (torch.cuda, torch.cuda.streams):
        module.Stream = module.ExternalStream = Stream
        module.Event = Event
    driver: Any = torch._C
    tensors: Any = torch.Tensor
    driver._cuda_getCurrentStream = current
    driver._cuda_getDefaultStream = lambda device_index: (0, 0, CUDA_DEVICE_TYPE)
    driver._cuda_getStreamFromExternal = lambda pointer, device_index: (
        pointer,
        0,
        CUDA_DEVICE_TYPE,
    )
    driver._cuda_setStream = select
    driver._accelerator_getStream = lambda device_index: Stream(stream_id=gpu.stream)
    driver._accelerator_setStream = lambda stream: select(stream.stream_id, 0, CUDA_DEVICE_TYPE)
    tensors.record_stream = record
