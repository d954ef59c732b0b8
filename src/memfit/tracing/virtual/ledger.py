"""What the virtual GPU's memory went through: every block, in order, on a live allocator.

The allocator answers ``torch.cuda.memory_allocated`` while the run goes on; the order of blocks is
kept as a Timeline, so that it can be replayed under other rules.  Its room is unlimited: a run that
does not fit is predicted to its end, and the replay says where it would have died.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch

from memfit.allocator.caching import CachingAllocator
from memfit.records.timeline import CATEGORIES, ORIGINS, PHASES, Action, Timeline
from memfit.tracing.categories import category_code
from memfit.tracing.log import PhaseSpan, Use

_WORKSPACE = CATEGORIES.index("workspace")
_NO_SIZE: list[int] = []


@dataclass(slots=True)
class Block:
    """Bytes asked of the device."""

    num_bytes: int
    op: str
    module: str
    dtype: torch.dtype | None
    """None for a kernel's scratch."""

    size: list[int]

    numel: int
    span: int
    """Index into ``Ledger.spans``: when it was born."""

    in_module: bool
    origin: str
    stream: int
    address: int
    """The allocator's."""

    use: Use = Use.UNKNOWN
    died: int = -1
    """Index into ``Ledger.spans``: when it was freed; -1 while it lives."""


class Ledger:
    """Blocks and events, in order."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.blocks: list[Block] = []
        self.spans: list[PhaseSpan] = [PhaseSpan("init", 0, 0)]
        self.actions: list[Action] = []
        self.first_of_span = 0
        """The first block of the current span."""

        self._events: list[int] = []
        self._event_spans: list[int] = []
        self._lock = threading.RLock()

    def begin(self, phase: str, step: int) -> None:
        """What follows belongs to this phase of this step."""
        with self._lock:
            self.spans.append(PhaseSpan(phase, step, 0))
            self.first_of_span = len(self.blocks)

    def take(
        self,
        num_bytes: int,
        op: str,
        module: str,
        *,
        dtype: torch.dtype | None = None,
        size: list[int] = _NO_SIZE,
        numel: int = 0,
        in_module: bool = False,
        origin: str = "traced",
        stream: int = 0,
    ) -> int:
        """Allocates ``num_bytes`` (at least 1); the block's number."""
        with self._lock:
            address = self.allocator.malloc(num_bytes, stream)
            self.blocks.append(
                Block(
                    num_bytes,
                    op,
                    module,
                    dtype,
                    size,
                    numel,
                    len(self.spans) - 1,
                    in_module,
                    origin,
                    stream,
                    address,
                )
            )
            number = len(self.blocks)
            self._events.append(number)
            self._event_spans.append(len(self.spans) - 1)
            return number - 1

    def free(self, number: int) -> None:
        """Gives a block back."""
        with self._lock:
            block = self.blocks[number]
            block.died = len(self.spans) - 1
            self.allocator.free(block.address)
            self._events.append(-number - 1)
            self._event_spans.append(len(self.spans) - 1)

    def act(self, action: str) -> None:
        """What the run asked of the allocator: empty_cache, reset_peak or synchronize."""
        with self._lock:
            getattr(self.allocator, action)()
            self.actions.append(Action(len(self._events), action))

    def forget_span(self) -> None:
        """Takes back what happened since the last ``begin``; the run must end here."""
        with self._lock:
            end = bisect_left(self._event_spans, len(self.spans) - 1)
            for event in self._events[end:]:
                if event < 0:
                    self.blocks[-event - 1].died = -1
            del self._events[end:], self._event_spans[end:]
            del self.blocks[self.first_of_span :]
            self.actions = [action for action in self.actions if action.event < end]

    def timeline(self, device: str, facts: dict[str, str]) -> Timeline:
        """All of it, as a record."""
        names: dict[str, int] = {"": 0}

        def name(text: str) -> int:
            return names.setdefault(text, len(names))

        columns = np.array(
            [
                (
                    block.num_bytes,
                    self._category(block),
                    ORIGINS.index(block.origin),
                    name(block.op),
                    name(block.module),
                    name(_label(block)),
                    block.stream,
                )
                for block in self.blocks
            ],
            dtype=np.int64,
        ).reshape(-1, 7)
        spans = np.array(self._event_spans, dtype=np.int64)
        codes = np.array([PHASES.index(span.name) for span in self.spans], dtype=np.uint8)
        steps = np.array([span.step for span in self.spans], dtype=np.int32)
        return Timeline(
            device=device,
            events=np.array(self._events, dtype=np.int32),
            phases=codes[spans],
            steps=steps[spans],
            num_bytes=columns[:, 0].copy(),
            categories=columns[:, 1].astype(np.uint8),
            origins=columns[:, 2].astype(np.uint8),
            ops=columns[:, 3].astype(np.int32),
            modules=columns[:, 4].astype(np.int32),
            tensors=columns[:, 5].astype(np.int32),
            streams=columns[:, 6].astype(np.int32),
            names=tuple(names),
            actions=tuple(self.actions),
            facts=facts,
        )

    def _category(self, block: Block) -> int:
        if block.dtype is None:
            return _WORKSPACE
        return category_code(
            block.use,
            self.spans[block.span],
            died_within=block.died == block.span,
            in_module=block.in_module,
        )


def _label(block: Block) -> str:
    """``float32[8, 1024]``; empty for a kernel's scratch."""
    return "" if block.dtype is None else f"{str(block.dtype).removeprefix('torch.')}{block.size}"
