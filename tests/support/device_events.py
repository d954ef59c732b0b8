"""What a run on the virtual GPU asked of its memory, read back from the Timeline."""

from __future__ import annotations

import torch

from memfit.records.timeline import Timeline

_MARK_BYTES = 12_345


def mark() -> None:
    """Inside a run: what comes before it does not count."""
    torch.empty(_MARK_BYTES, dtype=torch.uint8, device="cuda")


def events(timeline: Timeline) -> list[tuple[str, int]]:
    """(op, bytes) of every allocation behind the mark; frees have negative bytes."""
    found: list[tuple[str, int]] = []
    is_counted = _MARK_BYTES not in timeline.num_bytes
    for event in timeline.events.tolist():
        block = abs(event) - 1
        num_bytes = int(timeline.num_bytes[block])
        if num_bytes == _MARK_BYTES:
            is_counted = event < 0
        elif is_counted:
            op = timeline.names[timeline.ops[block]].removeprefix("aten::")
            found.append((op, num_bytes if event > 0 else -num_bytes))
    return found


def allocations(timeline: Timeline) -> list[tuple[str, int]]:
    """(op, bytes) of every allocation behind the mark."""
    return [(op, num_bytes) for op, num_bytes in events(timeline) if num_bytes > 0]
