"""Traces of the scripts in tests/tracing/virtual/scripts, each made once, and what they hold."""

from __future__ import annotations

from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np

from memfit.allocator.version import TorchVersion
from memfit.devices.catalog import find
from memfit.records.timeline import CATEGORIES, PHASES, Timeline
from memfit.tracing.virtual.run import Traced
from memfit.tracing.virtual.script import trace_script

SCRIPTS = Path(__file__).parents[1] / "tracing" / "virtual" / "scripts"
VERSION = TorchVersion.parse("2.13")


@cache
def trace(name: str, *arguments: str, num_steps: int = 3) -> Traced:
    """The script ``name`` on a virtual RTX 4090."""
    return trace_script(
        SCRIPTS / f"{name}.py",
        arguments,
        card=find("rtx-4090"),
        version=VERSION,
        num_steps=num_steps,
    )


def course(timeline: Timeline) -> list[tuple[int, str]]:
    """(step, phase) in order, each as long as it lasts."""
    moments = zip(timeline.steps.tolist(), timeline.phases.tolist(), strict=True)
    return [(step, PHASES[phase]) for (step, phase), _ in groupby(moments)]


def bytes_at_end(timeline: Timeline) -> dict[str, int]:
    """Category -> requested bytes that live when the trace ends."""
    alive = np.zeros(len(timeline.num_bytes), dtype=bool)
    numbers = np.abs(timeline.events) - 1
    alive[numbers[timeline.events > 0]] = True
    alive[numbers[timeline.events < 0]] = False
    return {
        name: int(timeline.num_bytes[alive & (timeline.categories == code)].sum())
        for code, name in enumerate(CATEGORIES)
    }


def requests_of_step(timeline: Timeline, step: int) -> list[int]:
    """Bytes of all blocks that a step's passes ask for, in order."""
    passes = [PHASES.index(name) for name in ("forward", "backward", "optimizer")]
    inside = (timeline.steps == step) & np.isin(timeline.phases, passes) & (timeline.events > 0)
    sizes: list[int] = timeline.num_bytes[timeline.events[inside] - 1].tolist()
    return sizes
