"""The allocator's counts under the names of ``torch.cuda.memory_stats()``."""

from __future__ import annotations

from memfit.allocator.blocks import Counts, Tally

_GROUPS = (
    ("allocation", "allocations"),
    ("allocated_bytes", "allocated"),
    ("requested_bytes", "requested"),
    ("inactive_split", "inactive"),
    ("inactive_split_bytes", "inactive_bytes"),
    ("segment", "segments"),
    ("reserved_bytes", "reserved"),
)


def group_statistics(pool: str, counts: Counts) -> dict[str, int]:
    """``allocated_bytes.all.peak`` and the other keys of one pool.

    Args:
        pool: ``all``, ``small_pool`` or ``large_pool``.
        counts: with totals.
    """
    stats: dict[str, int] = {}
    for name, attribute in _GROUPS:
        _put(
            stats,
            f"{name}.{pool}",
            current=getattr(counts, attribute),
            peak=getattr(counts, f"{attribute}_peak"),
            total=getattr(counts, f"{attribute}_total"),
        )
    # All that is allocated is active at first, and stays so while another stream may use it.
    _put(
        stats,
        f"active.{pool}",
        current=counts.allocations + counts.pending,
        peak=max(counts.allocations_peak, counts.active_peak),
        total=counts.allocations_total,
    )
    _put(
        stats,
        f"active_bytes.{pool}",
        current=counts.allocated + counts.pending_bytes,
        peak=max(counts.allocated_peak, counts.active_bytes_peak),
        total=counts.allocated_total,
    )
    return stats


def put_tally(stats: dict[str, int], name: str, tally: Tally) -> None:
    """``oversize_allocations`` or ``oversize_segments``, which are not told apart by pool."""
    _put(stats, name, current=tally.current, peak=tally.peak, total=tally.total)


def _put(stats: dict[str, int], key: str, *, current: int, peak: int, total: int) -> None:
    stats[f"{key}.current"] = current
    stats[f"{key}.peak"] = peak
    stats[f"{key}.allocated"] = total
    stats[f"{key}.freed"] = total - current


def add_totals(total: Counts, *pools: Counts) -> None:
    """The increases of both pools so far, which the hot path counts by pool only."""
    for name in Counts.__slots__:
        if name.endswith("_total"):
            setattr(total, name, sum(getattr(counts, name) for counts in pools))
