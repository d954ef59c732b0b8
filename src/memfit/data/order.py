"""Orders that are drawn by chance and never change."""

from __future__ import annotations

import numpy as np


def shuffled(count: int, *seeds: int) -> np.ndarray:
    """(count,) int64: 0 to count - 1 in an order that follows from the seeds, each 0 or above."""
    return np.argsort(random_bits(count, *seeds), kind="stable")


def random_bits(count: int, *seeds: int) -> np.ndarray:
    """(count,) uint64.  Raw bits, as NumPy promises never to change them; it may others."""
    bits: np.ndarray = np.random.PCG64(list(seeds)).random_raw(count)
    return bits
