"""Statistics summed up late are those that were followed at every moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.allocator import journal as module
from memfit.allocator.caching import CachingAllocator
from memfit.allocator.journal import METRICS, POOLS, Counter, Journal
from memfit.allocator.version import NEWEST

changes = st.integers(-9, 9)
entries = st.lists(st.tuples(st.booleans(), *[changes] * 5), max_size=30)


NAMES = [f"{metric}.{pool}" for metric in METRICS[:-1] for pool in POOLS] + [METRICS[-1]]
OVERSIZE = 6


def followed(script: list[tuple[bool, int, int, int, int, int]]) -> dict[str, int]:
    """One counter a metric and pool, changed entry by entry."""
    counters = {name: Counter() for name in NAMES}
    for is_small, allocated, active, requested, pieces, piece_bytes in script:
        signs = [(x > 0) - (x < 0) for x in (allocated, active)]
        changes = [*signs, allocated, active, requested, pieces, piece_bytes]
        for metric, change in zip(METRICS[:-1], changes, strict=True):
            for pool in ("all", "small_pool" if is_small else "large_pool"):
                counters[f"{metric}.{pool}"].add(change)
        counters[METRICS[-1]].add(signs[0] * (abs(allocated) >= OVERSIZE))
    stats: dict[str, int] = {}
    for name, counter in counters.items():
        counter.put(stats, name)
    return stats


@given(entries, st.integers(0, 30))
def test_sums_of_any_stretch_are_those_followed_entry_by_entry(
    script: list[tuple[bool, int, int, int, int, int]], cut: int
) -> None:
    journal = Journal(OVERSIZE)
    journal.entries += script[:cut]
    journal.put({})
    journal.entries += script[cut:]
    stats: dict[str, int] = {}
    journal.put(stats)
    assert stats == followed(script)


@given(entries, entries)
def test_peaks_that_were_reset_start_from_the_values_of_then(
    before: list[tuple[bool, int, int, int, int, int]],
    after: list[tuple[bool, int, int, int, int, int]],
) -> None:
    journal = Journal(OVERSIZE)
    journal.entries += before
    journal.reset_peaks()
    journal.entries += after
    stats: dict[str, int] = {}
    journal.put(stats)
    # A reset is as if the run began anew from the values of then.
    base = followed(before)
    anew = Journal(OVERSIZE)
    anew.entries += after
    later: dict[str, int] = {}
    anew.put(later)
    for name in NAMES:
        start = base[f"{name}.current"]
        assert stats[f"{name}.peak"] == start + later[f"{name}.peak"]
        assert stats[f"{name}.current"] == start + later[f"{name}.current"]


def test_a_long_run_does_not_keep_its_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ENTRIES", 10)
    gpu = CachingAllocator(version=NEWEST)
    for size in range(1, 200):
        gpu.free(gpu.malloc(size))
        assert len(gpu.heap.journal.entries) <= 12
    assert gpu.stats()["allocation.all.allocated"] == 199
    assert gpu.stats()["requested_bytes.all.allocated"] == 199 * 200 // 2
