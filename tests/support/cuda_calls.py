"""Calls as they arrive on the virtual GPU, and what the table says of them, for the tests."""

from __future__ import annotations

from typing import Any

import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.table import sequence
from memfit.tracing.hidden.sequences import Give, Keep, Output, Take

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64

A100 = Kernels(
    capability=(8, 0),
    sms=108,
    threads_per_sm=2048,
    shared_memory_per_block_bytes=166_912,
    version=TorchVersion(2, 6),
)
RTX_4090 = Kernels(
    capability=(8, 9),
    sms=128,
    threads_per_sm=1536,
    shared_memory_per_block_bytes=101_376,
    version=TorchVersion(2, 11),
)
H100 = Kernels(
    capability=(9, 0),
    sms=132,
    threads_per_sm=2048,
    shared_memory_per_block_bytes=232_448,
    version=TorchVersion(2, 11),
)
B200 = Kernels(
    capability=(10, 0),
    sms=148,
    threads_per_sm=2048,
    shared_memory_per_block_bytes=232_448,
    version=TorchVersion(2, 11),
)


def of(
    *shape: int,
    dtype: torch.dtype = F32,
    stride: tuple[int, ...] | None = None,
    on_host: bool = False,
) -> TensorSpec:
    """A tensor of a storage of its own, contiguous unless a stride is given."""
    if stride is None:
        steps, step = [], 1
        for size in reversed(shape):
            steps.append(step)
            step *= size
        stride = tuple(reversed(steps))
    return TensorSpec(shape, stride, dtype, 0, 0, on_host)


def inside(
    kernels: Kernels, op: str, *args: Any, num_outputs: int = 0, **kwargs: Any
) -> list[tuple[Any, ...]] | None:
    """The events inside a call, readable; slots are numbered in order of appearance."""
    call = Call(f"aten::{op}", args, tuple(kwargs.items()))
    found = sequence(call, num_outputs, kernels)
    if found is None:
        return None
    slots: dict[int, int] = {}
    events: list[tuple[Any, ...]] = []
    for event in found.events:
        if isinstance(event, Output):
            events.append(("output", event.index))
        elif isinstance(event, Take):
            slots[event.slot] = len(slots)
            events.append(("take", slots[event.slot], event.num_bytes))
        elif isinstance(event, Give):
            events.append(("give", slots[event.slot]))
        elif isinstance(event, Keep):
            events.append(("keep", event.name, event.num_bytes))
    return events


def taken(kernels: Kernels, op: str, *args: Any, num_outputs: int = 0, **kwargs: Any) -> list[int]:
    """The sizes of the scratch blocks of a call, in order."""
    events = inside(kernels, op, *args, num_outputs=num_outputs, **kwargs) or []
    return [event[2] for event in events if event[0] == "take"]
