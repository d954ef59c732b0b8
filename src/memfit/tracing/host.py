"""What torch allocates on the CPU beside its ops, in the real run as in the trace.

Python numbers that an op wraps into tensors (8 bytes; autograd may keep them until backward) and
copies of generator states (5,056 bytes; checkpointing keeps one a block) never pass a dispatcher.
They are real in a trace, so the allocator's own stream tells of them: what lies between the
marks that the trace leaves around its ops.  It also tells when a small tensor dies that an op made
for real.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memfit.devices.cpu_allocations import MARK_BYTES, Allocation


@dataclass(slots=True)
class HostEvent:
    """A block beside the ops comes (``num_bytes`` > 0) or goes, after mark number ``mark``."""

    mark: int
    block: int
    """Numbers the host's blocks from 0; below 0: ``-1 - b`` for block ``b`` of the log."""

    num_bytes: int


def host_events(stream: list[Allocation], real: Mapping[int, Mapping[int, int]]) -> list[HostEvent]:
    """The allocations outside all marks, and their frees, in order.

    Args:
        stream: what the allocator did.
        real: mark -> (address -> block) of the blocks that the op behind that mark made for real;
            their frees are among the events.
    """
    found: list[HostEvent] = []
    numbers: dict[int, int] = {}
    open_marks: list[int] = []
    num_blocks = marks = 0
    for event in stream:
        address, num_bytes = event.address, event.num_bytes
        if num_bytes == MARK_BYTES:
            marks += 1
            open_marks.append(marks)
        elif num_bytes == -MARK_BYTES:
            open_marks.pop()
        elif num_bytes > 0:
            numbers.pop(address, None)
            if not open_marks:
                numbers[address] = num_blocks
                found.append(HostEvent(marks, num_blocks, num_bytes))
                num_blocks += 1
            else:
                block = real.get(open_marks[-1], {}).get(address)
                if block is not None:
                    numbers[address] = -1 - block
        elif address in numbers and not _is_inside_its_op(numbers[address], open_marks, real):
            found.append(HostEvent(marks, numbers.pop(address), num_bytes))
    return found


def _is_inside_its_op(
    block: int, open_marks: list[int], real: Mapping[int, Mapping[int, int]]
) -> bool:
    """Scratch at an address that the op's output takes later is no death of the output."""
    return bool(open_marks) and -1 - block in real.get(open_marks[-1], {}).values()
