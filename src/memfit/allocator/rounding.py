"""How a request becomes a block, and a miss a segment: PyTorch's sizes.

The constants are the ones at the head of c10/core/AllocatorConfig.h and
c10/cuda/CUDACachingAllocator.cpp; they are the same in torch 2.0 to 2.14.
"""

from __future__ import annotations

from collections.abc import Sequence

from memfit.units import MiB

MIN_BLOCK_BYTES = 512
"""Every block's size is a multiple of this (kMinBlockSize)."""

SMALL_BYTES = 1 * MiB
"""Rounded requests up to this size come from the small pool (kSmallSize)."""

SMALL_SEGMENT_BYTES = 2 * MiB
"""What the small pool takes from the driver at a time (kSmallBuffer)."""

LARGE_SEGMENT_BYTES = 20 * MiB
"""What the large pool takes for requests below OWN_SEGMENT_BYTES (kLargeBuffer)."""

OWN_SEGMENT_BYTES = 10 * MiB
"""A rounded request of at least this size gets a segment of its own (kMinLargeAlloc)."""

SEGMENT_STEP_BYTES = 2 * MiB
"""... of its size rounded up to a multiple of this (kRoundLarge)."""

NUM_ROUNDUP_INTERVALS = 16
"""Powers of two from 1 MiB to 64 GiB, each with its own divisions
(kRoundUpPowerOfTwoIntervals)."""


def round_size(num_bytes: int, divisions: Sequence[int] = ()) -> int:
    """The block's size for a request of ``num_bytes`` > 0.

    Args:
        divisions: NUM_ROUNDUP_INTERVALS entries of ``roundup_power2_divisions``, or none.
    """
    if num_bytes < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    if divisions:
        interval = num_bytes.bit_length() - MiB.bit_length()
        parts = divisions[min(max(interval, 0), NUM_ROUNDUP_INTERVALS - 1)]
        if parts > 1 and num_bytes > MIN_BLOCK_BYTES * parts:
            return _next_division(num_bytes, parts)
    return -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def _next_division(num_bytes: int, parts: int) -> int:
    """The next of ``parts`` equal steps between the powers of two around ``num_bytes``."""
    floor = 1 << (num_bytes.bit_length() - 1)
    if num_bytes == floor:
        return num_bytes
    step = floor >> (parts.bit_length() - 1)
    if step == 0:
        return 2 * floor
    return -(-num_bytes // step) * step


def segment_bytes(size: int, large_segment_bytes: int = LARGE_SEGMENT_BYTES) -> int:
    """What is taken from the driver when no free block holds ``size`` (rounded) bytes."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < OWN_SEGMENT_BYTES:
        return large_segment_bytes
    return -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
