"""Records the CPU memory of a real run: the same Timeline that a prediction gives.

The recording knows bytes, order, phase and step.  What a block was for, and which op made it, it
does not know: its category is ``other``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from types import TracebackType
from typing import Any

import numpy as np
import torch

from memfit.devices.cpu_allocations import MARK_BYTES, CpuAllocations, mark
from memfit.records.timeline import CATEGORIES, ORIGINS, PHASES, Timeline


class Capture:
    """A context around a run, and the observer that the run tells its phases.

    ``timeline`` holds the recording when the context has ended.
    """

    timeline: Timeline

    def __init__(self) -> None:
        self._listener = CpuAllocations()
        self._spans = [(PHASES.index("init"), 0)]
        self._step = 0

    def __enter__(self) -> Capture:
        self._listener.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.__exit__(kind, error, traceback)
        self.timeline = self._build()

    def phase(self, name: str) -> None:
        """A phase of PHASES begins."""
        mark()
        self._spans.append((PHASES.index(name), self._step))

    def step(self, number: int) -> None:
        """Optimizer step ``number`` begins."""
        self._step = number

    def model(self, model: Any) -> None:
        """The model is built: a recording does not look inside."""

    def inputs(self, batch: Any) -> None:
        """A batch is built: a recording does not look inside."""

    @property
    def net_bytes(self) -> int:
        """Bytes allocated less bytes freed, of blocks from before the recording too."""
        return sum(self._changes())

    @property
    def rise_bytes(self) -> int:
        """How far live bytes rose above where they began; what is freed of before makes room."""
        return max(accumulate(self._changes()), default=0)

    def _changes(self) -> Iterator[int]:
        return (size for _, size, _ in self._listener.events if abs(size) != MARK_BYTES)

    def _build(self) -> Timeline:
        events: list[int] = []
        spans: list[int] = []
        sizes: list[int] = []
        live: dict[int, int] = {}
        span = 0
        for address, num_bytes, _ in self._listener.events:
            if abs(num_bytes) == MARK_BYTES:
                span += num_bytes > 0
                continue
            if num_bytes > 0:
                sizes.append(num_bytes)
                live[address] = len(sizes)
                events.append(len(sizes))
            elif address in live:
                events.append(-live.pop(address))
            else:
                continue
            spans.append(span)
        codes = np.array(self._spans, dtype=np.int64)[spans].reshape(-1, 2)
        num_blocks = len(sizes)
        return Timeline(
            device="cpu",
            events=np.array(events, dtype=np.int32),
            phases=codes[:, 0].astype(np.uint8),
            steps=codes[:, 1].astype(np.int32),
            num_bytes=np.array(sizes, dtype=np.int64),
            categories=np.full(num_blocks, CATEGORIES.index("other"), dtype=np.uint8),
            origins=np.full(num_blocks, ORIGINS.index("measured"), dtype=np.uint8),
            ops=np.zeros(num_blocks, dtype=np.int32),
            modules=np.zeros(num_blocks, dtype=np.int32),
            tensors=np.zeros(num_blocks, dtype=np.int32),
            facts={"torch": torch.__version__, "threads": str(torch.get_num_threads())},
        )
