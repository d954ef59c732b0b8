"""Unfolds a trace's log into a Timeline: calls become their outputs and scratch, in order."""

from __future__ import annotations

import bisect
from collections.abc import Mapping

import numpy as np

from memfit.records.timeline import CATEGORIES, ORIGINS, PHASES, Timeline
from memfit.tracing.categories import category_code
from memfit.tracing.hidden.sequences import Give, Output, Sequence, Take
from memfit.tracing.host import HostEvent
from memfit.tracing.log import Died, Log, Ran

_WORKSPACE = CATEGORIES.index("workspace")
_OTHER = CATEGORIES.index("other")
_HOST = ORIGINS.index("host")
_TRACED = ORIGINS.index("traced")


def assemble(
    log: Log, host: list[HostEvent], sequences: list[Sequence], facts: Mapping[str, str]
) -> Timeline:
    """The Timeline of a trace.

    Args:
        log: what the trace saw.
        host: what torch allocated beside the ops.
        sequences: what happens inside each of ``log.calls``.
        facts: what the figures hang on.
    """
    return _Assembly(log).run(host, sequences, facts)


class _Assembly:
    """Columns in the making.  Blocks of zero bytes take no memory and leave no event."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.deaths = {e.block: e.phase for e in log.entries if isinstance(e, Died)}
        self.names: dict[str, int] = {"": 0}
        self.events: list[int] = []
        self.phases: list[int] = []
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.traced: dict[int, int] = {}
        self.hosted: dict[int, int] = {}

    def run(
        self, host: list[HostEvent], sequences: list[Sequence], facts: Mapping[str, str]
    ) -> Timeline:
        pending = 0
        for entry in self.log.entries:
            while pending < len(host) and host[pending].mark < entry.mark:
                self._host(host[pending], entry.module if isinstance(entry, Ran) else "")
                pending += 1
            if isinstance(entry, Ran):
                self._ran(entry, sequences[entry.call])
            elif entry.block in self.traced:
                self._free(self.traced.pop(entry.block), entry.phase)
        for event in host[pending:]:
            self._host(event, "")
        return self._timeline(facts)

    def _ran(self, ran: Ran, sequence: Sequence) -> None:
        scratch: dict[int, int] = {}
        waiting = list(ran.blocks)
        for event in sequence.events:
            if isinstance(event, Output):
                if event.index < len(ran.blocks) and ran.blocks[event.index] in waiting:
                    waiting.remove(ran.blocks[event.index])
                    self._output(ran, ran.blocks[event.index])
            elif isinstance(event, Take):
                row = (
                    event.num_bytes,
                    _WORKSPACE,
                    ORIGINS.index(sequence.origin),
                    self._name(ran.op),
                    self._name(ran.module),
                    0,
                )
                scratch[event.slot] = self._take(row, ran.phase)
            elif isinstance(event, Give):
                self._give(scratch, event, ran.phase)
        for block in waiting:
            self._output(ran, block)

    def _output(self, ran: Ran, number: int) -> None:
        block = self.log.blocks[number]
        if block.num_bytes == 0:
            return
        category = category_code(
            block.use,
            self.log.phases[ran.phase],
            died_within=self.deaths.get(number) == ran.phase,
            in_module=ran.in_module,
        )
        row = (
            block.num_bytes,
            category,
            _TRACED,
            self._name(block.op),
            self._name(block.module),
            self._name(block.tensor),
        )
        self.traced[number] = self._take(row, ran.phase)

    def _host(self, event: HostEvent, module: str) -> None:
        """A block beside the ops, which serves the op that follows."""
        phase = bisect.bisect_right(self.log.phases, event.mark, key=lambda span: span.mark) - 1
        if event.num_bytes > 0:
            row = (event.num_bytes, _OTHER, _HOST, self._name("host"), self._name(module), 0)
            self.hosted[event.block] = self._take(row, phase)
        elif event.block >= 0:
            self._free(self.hosted.pop(event.block), phase)
        elif -1 - event.block in self.traced:
            self._free(self.traced.pop(-1 - event.block), phase)

    def _give(self, scratch: dict[int, int], event: Give, phase: int) -> None:
        self._free(scratch.pop(event.slot), phase)

    def _take(self, row: tuple[int, int, int, int, int, int], phase: int) -> int:
        self.rows.append(row)
        self.events.append(len(self.rows))
        self.phases.append(phase)
        return len(self.rows) - 1

    def _free(self, block: int, phase: int) -> None:
        self.events.append(-block - 1)
        self.phases.append(phase)

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _timeline(self, facts: Mapping[str, str]) -> Timeline:
        spans = self.log.phases
        codes = np.array([PHASES.index(span.name) for span in spans], dtype=np.uint8)
        steps = np.array([span.step for span in spans], dtype=np.int32)
        phases = np.array(self.phases, dtype=np.int64)
        table = np.array(self.rows, dtype=np.int64).reshape(-1, 6)
        return Timeline(
            device="cpu",
            events=np.array(self.events, dtype=np.int32),
            phases=codes[phases],
            steps=steps[phases],
            num_bytes=table[:, 0].copy(),
            categories=table[:, 1].astype(np.uint8),
            origins=table[:, 2].astype(np.uint8),
            ops=table[:, 3].astype(np.int32),
            modules=table[:, 4].astype(np.int32),
            tensors=table[:, 5].astype(np.int32),
            names=tuple(self.names),
            facts=dict(facts),
        )
