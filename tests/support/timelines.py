"""Timelines written by hand, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from memfit.records.timeline import PHASES, Timeline

Event = tuple[str, str, int]


class Script:
    """Writes a Timeline down event by event, blocks by name."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._events: list[int] = []
        self._phases: list[int] = []
        self._steps: list[int] = []
        self._sizes: list[int] = []
        self._streams: list[int] = []
        self._actions: list[tuple[int, str]] = []
        self._where = (0, 0)

    def at(self, phase: str, step: int) -> Script:
        self._where = (PHASES.index(phase), step)
        return self

    def take(self, name: str, num_bytes: int, stream: int = 0) -> Script:
        self._sizes.append(num_bytes)
        self._streams.append(stream)
        self._numbers[name] = len(self._sizes)
        return self._event(len(self._sizes))

    def give(self, name: str) -> Script:
        return self._event(-self._numbers.pop(name))

    def act(self, name: str) -> Script:
        self._actions.append((len(self._events), name))
        return self

    def timeline(self, **columns: Any) -> Timeline:
        num_blocks = len(self._sizes)
        return Timeline(
            **{
                "device": "gpu",
                "events": np.array(self._events, dtype=np.int32),
                "phases": np.array(self._phases, dtype=np.uint8),
                "steps": np.array(self._steps, dtype=np.int32),
                "num_bytes": np.array(self._sizes, dtype=np.int64),
                "categories": np.zeros(num_blocks, dtype=np.uint8),
                "origins": np.zeros(num_blocks, dtype=np.uint8),
                "ops": np.zeros(num_blocks, dtype=np.int32),
                "modules": np.zeros(num_blocks, dtype=np.int32),
                "tensors": np.zeros(num_blocks, dtype=np.int32),
                "streams": np.array(self._streams, dtype=np.int32),
                "actions": tuple(self._actions),
                **columns,
            }
        )

    def _event(self, number: int) -> Script:
        self._events.append(number)
        self._phases.append(self._where[0])
        self._steps.append(self._where[1])
        return self
