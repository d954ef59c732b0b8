"""Settings: what ``PYTORCH_ALLOC_CONF`` can say about the native allocator."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.allocator.rounding import LARGE_SEGMENT_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The allocator's options, in bytes; the defaults are PyTorch's."""

    max_split_size_bytes: int | None = None
    """``max_split_size_mb``: larger blocks are not split; None: every block may be."""

    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    """``max_non_split_rounding_mb``: by how much a block above ``max_split_size_bytes`` may be
    larger than a request that it serves."""

    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    """``large_segment_size_mb``: the segment for requests between 1 and 10 MiB."""

    roundup_power2_divisions: tuple[int, ...] = ()
    """Steps between powers of two, for 1 MiB, 2 MiB, ... 32 GiB and more; empty: none."""

    garbage_collection_threshold: float = 0.0
    """Share of the memory limit above which old free segments are given back; 0: never."""

    expandable_segments: bool = False

    per_process_memory_fraction: float = 1.0
    """Share of the device that the process may reserve."""

    throw_on_cudamalloc_oom: bool = False
    """Whether a request above that share fails at once, without giving cached memory back."""
