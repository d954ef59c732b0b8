"""What happens inside one call of an op: its outputs and its scratch memory, in order."""

from __future__ import annotations

from typing import NamedTuple


class Output(NamedTuple):
    """The call's output number ``index`` is allocated."""

    index: int


class Take(NamedTuple):
    """Scratch block ``slot`` of ``num_bytes`` is allocated."""

    slot: int
    num_bytes: int


class Give(NamedTuple):
    """Scratch block ``slot`` is freed."""

    slot: int


class Sequence(NamedTuple):
    """The events inside a call, and how they are known: ``traced``, ``formula`` or ``learnt``."""

    events: tuple[Output | Take | Give, ...]
    origin: str


def outputs_only(num_outputs: int) -> Sequence:
    """A call that allocates its outputs, in order, and nothing else."""
    return Sequence(tuple(Output(index) for index in range(num_outputs)), "traced")


def around_outputs(num_outputs: int, scratch: list[int], *, before: bool = False) -> Sequence:
    """Scratch taken after the outputs (or before them), all given back in reverse order."""
    outputs = tuple(Output(index) for index in range(num_outputs))
    takes = tuple(Take(slot, size) for slot, size in enumerate(scratch))
    gives = tuple(Give(slot) for slot in reversed(range(len(scratch))))
    events = takes + outputs + gives if before else outputs + takes + gives
    return Sequence(events, "formula")
