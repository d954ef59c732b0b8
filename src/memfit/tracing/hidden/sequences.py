"""What happens inside one call of an op: its outputs and its scratch memory, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Output:
    """The call's output number ``index`` is allocated."""

    index: int


@dataclass(frozen=True, slots=True)
class Take:
    """Scratch block ``slot`` of ``num_bytes`` is allocated."""

    slot: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Give:
    """Scratch block ``slot`` is freed."""

    slot: int


@dataclass(frozen=True, slots=True)
class Keep:
    """A block of ``num_bytes`` that lives until the process ends, once per thread and stream.

    The first call with this ``name`` on a thread and stream allocates it, here in its order; later
    ones find it (cuBLAS workspaces).
    """

    name: str
    num_bytes: int


Event: TypeAlias = Output | Take | Give | Keep


@dataclass(frozen=True, slots=True)
class Sequence:
    """The events inside a call, and how they are known.

    ``origin`` is ``traced`` (outputs only), ``formula``, ``learnt``, or ``unknown``.
    """

    events: tuple[Event, ...]
    origin: str


def outputs_only(num_outputs: int) -> Sequence:
    """A call that allocates its outputs, in order, and nothing else."""
    return Sequence(tuple(Output(index) for index in range(num_outputs)), "traced")
