"""Timelines written by hand: a run as a list of what it takes and frees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memfit.records.timeline import CATEGORIES, ORIGINS, PHASES, Timeline
from memfit.units import MiB


class WrittenRun:
    """Writes events down and makes a Timeline of them."""

    def __init__(self) -> None:
        self.step, self.phase = 0, "init"
        self._names = {"": 0}
        self._events: list[tuple[int, int, int]] = []
        self._blocks: list[tuple[int, ...]] = []

    def begin(self, phase: str, step: int | None = None) -> None:
        """A phase begins; of a new step where one is given."""
        self.phase, self.step = phase, self.step if step is None else step

    def take(
        self,
        num_bytes: int,
        category: str = "activations",
        *,
        module: str = "",
        op: str = "aten::empty",
        tensor: str = "",
        origin: str = "traced",
    ) -> int:
        """A block is allocated; returns its number from 1."""
        codes = (CATEGORIES.index(category), ORIGINS.index(origin))
        words = (self._names.setdefault(text, len(self._names)) for text in (op, module, tensor))
        self._blocks.append((num_bytes, *codes, *words))
        self._event(len(self._blocks))
        return len(self._blocks)

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self._event(-block)

    def _event(self, event: int) -> None:
        self._events.append((event, PHASES.index(self.phase), self.step))

    def timeline(self, **facts: str) -> Timeline:
        events, phases, steps = np.array(self._events, dtype=np.int64).reshape(-1, 3).T
        sizes, *codes = np.array(self._blocks, dtype=np.int64).reshape(-1, 6).T
        categories, origins, ops, modules, tensors = codes
        return Timeline(
            device="rtx-4090",
            events=events.astype("int32"),
            phases=phases.astype("uint8"),
            steps=steps.astype("int32"),
            num_bytes=sizes,
            categories=categories.astype("uint8"),
            origins=origins.astype("uint8"),
            ops=ops.astype("int32"),
            modules=modules.astype("int32"),
            tensors=tensors.astype("int32"),
            names=tuple(self._names),
            facts=facts,
        )


def training(activations: Sequence[int] = (64 * MiB, 64 * MiB, 64 * MiB), **facts: str) -> Timeline:
    """A run with a model of 40 MiB: one step for each of ``activations``, and an evaluation.

    Each step keeps that many bytes from forward to backward and makes gradients of 40 MiB, the
    first one optimizer state of 80 MiB too.
    """
    run = WrittenRun()
    run.take(40 * MiB, "parameters", module="body.weight", tensor="float32[3200, 3277]")
    for step, num_bytes in enumerate(activations, start=1):
        run.begin("forward", step)
        batch = run.take(4096, "inputs")
        kept = run.take(num_bytes, module="body", op="aten::mm", tensor=f"float32[{step}]")
        run.begin("backward")
        gradient = run.take(40 * MiB, "gradients", module="body.weight", op="aten::mm")
        run.free(kept)
        run.begin("optimizer")
        if step == 1:
            run.take(80 * MiB, "optimizer_state", module="body.weight", op="aten::zeros_like")
        run.free(gradient, batch)
    run.begin("eval")
    run.free(run.take(activations[-1], "temporaries", module="body", op="aten::mm"))
    return run.timeline(**facts)
