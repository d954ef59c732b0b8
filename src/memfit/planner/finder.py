"""The largest batch size that fits, by trying: a bisection that begins where prediction says.

Memory grows with the batch size, so what fits at a size fits at any smaller one.  A prediction is
seldom far off: the search looks beside it first, in steps that double, and bisects what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memfit.errors import BadInput


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundBatch:
    """What :func:`largest_batch` found."""

    batch_size: int
    accumulate: int
    """Micro-batches of a step; the last is shorter where the sizes do not divide."""

    tried: tuple[tuple[int, bool], ...]
    """Each batch size that was tried, in order, and whether it fitted."""


def largest_batch(
    fits: Callable[[int], bool], *, samples_per_step: int, predicted: int = 1
) -> FoundBatch:
    """The largest batch size, at most ``samples_per_step``, that ``fits``.

    Args:
        fits: tries a batch size; no size is tried twice.  It must be monotone.
        samples_per_step: samples behind one optimizer step, which stay the same.
        predicted: where to begin.

    Raises:
        BadInput: a number is below 1, or not even one sample fits.
    """
    for name, value in (("samples_per_step", samples_per_step), ("predicted", predicted)):
        if value < 1:
            raise BadInput(f"{name} is {value}: it must be at least 1")
    tried: dict[int, bool] = {}

    def works(size: int) -> bool:
        if size not in tried:
            tried[size] = fits(size)
        return tried[size]

    low, high = 0, samples_per_step + 1  # low fits, high does not
    size, stride = min(predicted, samples_per_step), 1
    first = works(size)
    low, high = (size, high) if first else (low, size)
    while high - low > 1:
        size = low + stride if first else high - stride
        if not low < size < high:
            break
        if works(size):
            low = size
        else:
            high = size
        if tried[size] != first:
            break
        stride *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if works(middle):
            low = middle
        else:
            high = middle
    if low == 0:
        raise BadInput(
            "not even one sample fits: make the sequence shorter, or choose --checkpointing full, "
            "--loss chunked or an optimizer with less state"
        )
    return even_batch(low, samples_per_step, tuple(tried.items()))


def even_batch(
    largest: int, samples_per_step: int, tried: tuple[tuple[int, bool], ...] = ()
) -> FoundBatch:
    """As few micro-batches as ``largest`` allows, of sizes as even as can be.

    8 samples where 7 fit make two micro-batches of 4, not one of 7 and one of 1.
    """
    accumulate = -(-samples_per_step // largest)
    return FoundBatch(
        batch_size=-(-samples_per_step // accumulate), accumulate=accumulate, tried=tried
    )
