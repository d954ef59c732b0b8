"""Where the driver puts fresh segments.

Addresses matter to sizes through one rule only: up to torch 2.12, the lowest address wins among
free blocks of one size.  CUDA does not say how it chooses them; recordings do:

* it takes virtual ranges in multiples of 32 MiB, one after the other, and puts the segment at the
  start of its range;
* what is left of a range serves later, smaller segments, the newest range first.

In recordings from Linux machines with Hopper GPUs ranges go downwards; pairwise, this model orders
0.9999, 1.0000 and 0.9976 of the segments of three recordings as they were.  Its mirror image,
upwards, gives every byte of the recorded peaks on B200 machines.  The direction cannot be known
without the machine, so a prediction's spread is the difference of the two.
"""

from __future__ import annotations

from typing import Protocol

from memfit.errors import UnknownName
from memfit.units import MiB

SLOT_BYTES = 32 * MiB
"""The driver's virtual ranges are multiples of this."""

POLICIES = ("ascending", "descending")

_LOWEST = 0x7F00_0000_0000
"""Where ranges start, in the part of the address space that Linux gives to mappings; nothing
hangs on it."""


class Addresses(Protocol):
    """Gives addresses to fresh segments, and takes those of released ones back."""

    def take(self, num_bytes: int) -> int:
        """The address of a new segment."""

    def give_back(self, address: int, num_bytes: int) -> None:
        """A segment was released."""


def addresses(policy: str) -> Addresses:
    """The addresses of a policy by its name.

    Raises:
        UnknownName: there is no such policy.
    """
    if policy not in POLICIES:
        raise UnknownName("address policy", policy, POLICIES, f"there are: {', '.join(POLICIES)}")
    return Slots(descending=policy == "descending")


class Slots:
    """Ranges of whole slots, and the gaps in them that later segments may take."""

    def __init__(self, *, descending: bool = False) -> None:
        self._descending = descending
        self._end = _LOWEST
        self._gaps: list[tuple[int, int]] = []
        """(address, bytes) of what is free inside ranges, the newest range last."""

    def take(self, num_bytes: int) -> int:
        gaps = self._gaps
        for index in range(len(gaps) - 1, -1, -1):
            address, room = gaps[index]
            if room >= num_bytes:
                if room == num_bytes:
                    del gaps[index]
                else:
                    gaps[index] = (address + num_bytes, room - num_bytes)
                return address
        span = -(-num_bytes // SLOT_BYTES) * SLOT_BYTES
        if self._descending:
            self._end -= span
            address = self._end
        else:
            address = self._end
            self._end += span
        if span > num_bytes:
            gaps.append((address + num_bytes, span - num_bytes))
        return address

    def give_back(self, address: int, num_bytes: int) -> None:
        self._gaps.append((address, num_bytes))
