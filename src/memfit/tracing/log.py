"""The raw record of a trace: calls of ops, blocks, and deaths, in the order they happened.

A call's scratch memory is not known while it is traced (it may have to be learnt), so the log
holds the call and is unfolded into a Timeline afterwards, by ``assemble``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from memfit.tracing.calls import Call


class Use(Enum):
    """What a block was seen to be, beyond what its birth and death tell."""

    UNKNOWN = "unknown"
    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    INPUT = "input"
    SAVED = "saved for backward"
    LOSS = "loss"


@dataclass(slots=True)
class Block:
    """A storage that an op made."""

    num_bytes: int
    op: str
    module: str
    tensor: str
    """``float32[8, 1024]``."""

    numel: int
    use: Use = Use.UNKNOWN


@dataclass(slots=True)
class Ran:
    """An op ran: its call, the blocks of its outputs in order, and where the run was."""

    call: int
    """Index into ``Log.calls``."""

    blocks: list[int]
    phase: int
    """Index into ``Log.phases``."""

    mark: int
    """Which mark in the host's stream of allocations it left."""

    op: str
    module: str
    real: dict[int, int]
    """Address -> block, of the outputs that the op made for real."""

    in_module: bool
    """Whether a module's forward was running: in backward, that is a recomputation."""


@dataclass(slots=True)
class Died:
    """A storage was freed."""

    block: int
    phase: int
    mark: int


@dataclass(slots=True)
class PhaseSpan:
    """A stretch of the run: forward, backward, ... of one micro-batch of one step."""

    name: str
    step: int
    mark: int
    """Which mark it left when it began."""


@dataclass(slots=True)
class Log:
    """Everything a trace saw.  ``entries`` are in order; each left a mark in the host stream."""

    entries: list[Ran | Died] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    calls: dict[Call, int] = field(default_factory=dict)
    phases: list[PhaseSpan] = field(default_factory=lambda: [PhaseSpan("init", 0, 0)])
