"""Listens to PyTorch's CPU allocator: every allocation and free of this thread, in order.

PyTorch has no ``torch.cuda.memory_allocated`` for the CPU; its profiler is told of each block
instead.  Here the profiler runs with everything but memory switched off, which costs a few
microseconds a block.  Blocks that OpenMP worker threads take are not reported (PyTorch keeps the
profiler's state per thread); ``docs/concepts/tracing.md`` lists what that hides.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from memfit.errors import MemfitError

# Kineto announces every start and stop on stderr otherwise; it reads this once, at the first use.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

MARK_BYTES = 7919
"""Size of a mark: a block that is held for a while, to tell a stretch of the stream apart."""


class Allocation(NamedTuple):
    """One event of the allocator."""

    address: int
    num_bytes: int
    """Positive when the block is allocated, negative when it is freed."""

    total_bytes: int
    """What the allocator counts as live after the event."""


def mark() -> torch.UntypedStorage:
    """A mark in the stream: +MARK_BYTES now, -MARK_BYTES when the caller lets go of it."""
    return torch.UntypedStorage(MARK_BYTES)


@dataclass
class CpuAllocations:
    """A context that fills ``events`` when it ends.

    Raises:
        MemfitError: a profiler is running already.
    """

    events: list[Allocation] = field(default_factory=list)

    def __enter__(self) -> CpuAllocations:
        autograd: Any = torch._C._autograd  # its stubs are behind its functions
        profiler = torch._C._profiler
        if autograd._profiler_enabled():
            raise MemfitError(
                "a torch profiler, or another trace or recording of memfit, is running: all listen "
                "to the allocator through one hook, so run them one at a time"
            )
        config = profiler.ProfilerConfig(
            profiler.ProfilerState.KINETO,
            False,  # shapes
            True,  # memory
            False,  # stacks
            False,  # flops
            False,  # modules
            profiler._ExperimentalConfig(),
        )
        activities = {profiler.ProfilerActivity.CPU}
        autograd._prepare_profiler(config, activities)
        # With only user-defined ranges in scope, no op is recorded: the memory events remain.
        autograd._enable_profiler(config, activities, {profiler.RecordScope.USER_SCOPE})
        return self

    def __exit__(self, *exception: object) -> None:
        result = torch._C._autograd._disable_profiler()
        # Depth first is in order of time: a range such as "Optimizer.step" holds what it saw.
        waiting: list[Any] = list(reversed(result.experimental_event_tree()))
        while waiting:
            event = waiting.pop()
            if event.tag == torch._C._profiler._EventType.Allocation:
                fields = event.extra_fields
                self.events.append(
                    Allocation(fields.ptr, fields.alloc_size, fields.total_allocated)
                )
            waiting.extend(reversed(event.children))
