"""Where the driver puts fresh segments.

Addresses matter to sizes through one rule only: up to torch 2.12, the lowest address wins among
free blocks of one size.  CUDA does not say how it chooses them; recordings do:

* it takes virtual ranges in multiples of 32 MiB, one after the other, and puts the segment at the
  start of its range;
* what is left of a range, or was given back in it, serves later, smaller segments, the newest
  range first; a range that is wholly given back is gone.

In recordings from Linux machines with Hopper GPUs ranges go downwards: of all pairs of the 783
segments of one of them, this model orders 0.9999 as they were.  Its mirror image, upwards, orders
0.93 to 0.99 of the pairs of recordings with low addresses, and gives every byte of peaks measured
on B200 machines.  The direction cannot be known without the machine, so a prediction's spread is
the difference of the two.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol

from memfit.errors import UnknownName
from memfit.units import MiB

SLOT_BYTES = 32 * MiB
"""The driver's virtual ranges are multiples of this."""

POLICIES = ("ascending", "descending")

_START = 1 << 46
"""Where the first range begins or ends: far from where Linux (near 1 << 47) and Windows (below
1 << 40) put memory, so that invented segments never meet those of a recorded layout."""


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
        self._end = _START
        self._ranges: list[tuple[int, int]] = []
        """(address, bytes) of the ranges, the newest last."""

        self._owner: dict[int, int] = {}
        """Address of a segment, or of a gap -> the index of its range."""

        self._gaps: dict[int, list[tuple[int, int]]] = {}
        """Bytes of a gap -> (index of its range, -address), sorted: the one to take is last."""

        self._sizes: dict[int, int] = {}
        """Address -> bytes of each gap."""

        self._ends: dict[int, int] = {}
        """Where a gap ends -> where it begins."""

    def take(self, num_bytes: int) -> int:
        newest: tuple[int, int] = (-1, 0)
        size = 0
        for gap_bytes, places in self._gaps.items():
            if gap_bytes >= num_bytes and places and places[-1] > newest:
                newest, size = places[-1], gap_bytes
        if size:
            owner, address = newest[0], -newest[1]
            self._remove_gap(address)
        else:
            owner, address = len(self._ranges), self._new_range(num_bytes)
            size = self._ranges[-1][1]
        self._owner[address] = owner
        if size > num_bytes:
            self._add_gap(address + num_bytes, size - num_bytes, owner)
        return address

    def give_back(self, address: int, num_bytes: int) -> None:
        owner = self._owner.pop(address)
        after = address + num_bytes
        if after in self._sizes and self._owner[after] == owner:
            num_bytes += self._remove_gap(after)
        before = self._ends.get(address)
        if before is not None and self._owner[before] == owner:
            num_bytes += self._remove_gap(before)
            address = before
        if (address, num_bytes) != self._ranges[owner]:
            self._add_gap(address, num_bytes, owner)

    def _new_range(self, num_bytes: int) -> int:
        span = -(-num_bytes // SLOT_BYTES) * SLOT_BYTES
        if self._descending:
            self._end -= span
            address = self._end
        else:
            address = self._end
            self._end += span
        self._ranges.append((address, span))
        return address

    def _add_gap(self, address: int, num_bytes: int, owner: int) -> None:
        insort(self._gaps.setdefault(num_bytes, []), (owner, -address))
        self._sizes[address] = num_bytes
        self._ends[address + num_bytes] = address
        self._owner[address] = owner

    def _remove_gap(self, address: int) -> int:
        num_bytes = self._sizes.pop(address)
        places = self._gaps[num_bytes]
        del places[bisect_left(places, (self._owner.pop(address), -address))]
        del self._ends[address + num_bytes]
        return num_bytes
