"""Statistics that cost little while blocks come and go: entries now, sums when they are asked for.

Every block that is taken or given leaves one entry.  Values, peaks and totals of both pools are
computed from the entries in one go; following them one by one would take a third of the
allocator's time.
"""

from __future__ import annotations

import sys

import numpy as np

Entry = tuple[bool, int, int, int, int, int]
"""Small pool or large; and changes of allocated bytes, active bytes, requested bytes, and of the
number and bytes of free pieces of segments (``inactive_split``)."""

POOLS = ("all", "large_pool", "small_pool")

METRICS = (
    "allocation",
    "active",
    "allocated_bytes",
    "active_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "oversize_allocations",
)

_MAX_ENTRIES = 1 << 17
"""More are summed up at once, so that a long run does not fill the memory: about 25 MB."""


class Counter:
    """A value, its peak, and all that was ever added to it."""

    __slots__ = ("current", "peak", "total")

    def __init__(self) -> None:
        self.current = self.peak = self.total = 0

    def add(self, amount: int) -> None:
        self.current += amount
        if amount > 0:
            self.total += amount
            self.peak = max(self.peak, self.current)

    def reset_peak(self) -> None:
        self.peak = self.current

    def put(self, stats: dict[str, int], name: str) -> None:
        """Enters the four figures that PyTorch gives of each metric."""
        stats[f"{name}.current"] = self.current
        stats[f"{name}.peak"] = self.peak
        stats[f"{name}.allocated"] = self.total
        stats[f"{name}.freed"] = self.total - self.current


class Journal:
    """The entries, and what they came to so far.

    Args:
        oversize: from how many bytes on a block counts among ``oversize_allocations``.
    """

    def __init__(self, oversize: int = sys.maxsize) -> None:
        self.entries: list[Entry] = []
        self._oversize = oversize
        shape = (len(POOLS), len(METRICS))
        self._current = np.zeros(shape, dtype=np.int64)
        self._peak = np.zeros(shape, dtype=np.int64)
        self._total = np.zeros(shape, dtype=np.int64)

    def sum_up_if_long(self) -> None:
        """To be called now and then."""
        if len(self.entries) > _MAX_ENTRIES:
            self._sum_up()

    def peak(self, metric: str) -> int:
        """The most there ever was in both pools together."""
        self._sum_up()
        return int(self._peak[0, METRICS.index(metric)])

    def reset_peaks(self) -> None:
        self._sum_up()
        self._peak[:] = self._current

    def put(self, stats: dict[str, int]) -> None:
        """Enters every metric of every pool under PyTorch's names; oversize has no pools."""
        self._sum_up()
        for row, pool in enumerate(POOLS):
            for column, metric in enumerate(METRICS):
                is_oversize = metric == METRICS[-1]
                if is_oversize and row:
                    continue
                counter = Counter()
                counter.current = int(self._current[row, column])
                counter.peak = int(self._peak[row, column])
                counter.total = int(self._total[row, column])
                counter.put(stats, metric if is_oversize else f"{metric}.{pool}")

    def _sum_up(self) -> None:
        if not self.entries:
            return
        columns = np.array(self.entries, dtype=np.int64)
        self.entries.clear()
        is_small = columns[:, 0] != 0
        # Blocks have bytes, so the sign of a change says whether one came or went.
        counts = np.sign(columns[:, 1:3])
        oversize = counts[:, :1] * (np.abs(columns[:, 1:2]) >= self._oversize)
        changes = np.concatenate([counts, columns[:, 1:], oversize], axis=1)
        for row, rows in enumerate((slice(None), ~is_small, is_small)):
            steps = changes[rows]
            if not len(steps):
                continue
            values = self._current[row] + np.cumsum(steps, axis=0)
            self._current[row] = values[-1]
            self._peak[row] = np.maximum(self._peak[row], values.max(axis=0))
            self._total[row] += np.maximum(steps, 0).sum(axis=0)
