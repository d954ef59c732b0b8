"""When cached memory is given back to the driver, and when retries count as an out-of-memory.

``torch.cuda.empty_cache`` costs a synchronisation, and all that it gave back is asked for again
in the next step.  So it is never called by the clock.  It helps in two cases.  A *retry* of the
allocator says that the driver refused: the allocator has given back its unused segments and
asked again.  And *fragmentation* near the top of the card says that the next one is close.

Retries in step after step mean that the run trains, slowly, at the edge: *thrash*, which is
treated as an out-of-memory.  The rule is Composer's (``composer/trainer/trainer.py``,
``_update_num_consecutive_thrashes``): successive batches with new retries are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memfit.units import format_size

if TYPE_CHECKING:
    import torch

THRASH_STEPS = 2
"""Successive steps with retries that count as an out-of-memory.  The first may be chance, and
the cache is emptied after it; when that has not helped, nothing but a smaller step will."""

_FULL_SHARE, _UNUSED_SHARE = 0.9, 0.1
"""Of the card: reserved from the one on, of which never in use the other.  memfit's own choice: a
step that has a tenth of the card in pieces, and a tenth left, is one large tensor from a retry."""

Verdict = Literal["nothing", "empty", "thrash"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheNumbers:
    """What the caching allocator says after a step."""

    num_retries: int
    """``num_alloc_retries``: since the process began."""

    reserved_bytes: int
    peak_allocated_bytes: int
    """The highest of the step.  What is reserved above it was of no use to the step."""

    total_bytes: int
    """The memory of the card."""


class CacheWatch:
    """Says after each step what to do about the cache."""

    def __init__(self) -> None:
        self._num_retries: int | None = None
        self._retried_steps = 0
        self._was_fragmented = False

    def after_step(self, numbers: CacheNumbers) -> Verdict:
        """What the numbers call for.

        Returns:
            ``empty``: give the cache back.  ``thrash``: do as after an out-of-memory, halve the
            micro-batch.  ``nothing`` at nearly every step.
        """
        retries = 0 if self._num_retries is None else numbers.num_retries - self._num_retries
        self._num_retries = numbers.num_retries
        self._retried_steps = self._retried_steps + 1 if retries > 0 else 0
        unused = numbers.reserved_bytes - numbers.peak_allocated_bytes
        is_fragmented = (
            numbers.reserved_bytes >= _FULL_SHARE * numbers.total_bytes
            and unused >= _UNUSED_SHARE * numbers.total_bytes
        )
        # When it comes back at once, emptying does not help: once is enough until it has gone.
        newly_fragmented = is_fragmented and not self._was_fragmented
        self._was_fragmented = is_fragmented
        if self._retried_steps >= THRASH_STEPS:
            self._retried_steps = 0
            return "thrash"
        return "empty" if self._retried_steps or newly_fragmented else "nothing"


def explain(verdict: Verdict, numbers: CacheNumbers, advice: str | None = None) -> str:
    """A sentence for the log: what was done, and the numbers that called for it.

    ``advice``: what a person may do about thrash, where the micro-batch could not be halved.
    """
    held = (
        f"{format_size(numbers.reserved_bytes)} of {format_size(numbers.total_bytes)} reserved, "
        f"at most {format_size(numbers.peak_allocated_bytes)} of it in use"
    )
    if verdict == "thrash":
        done = (
            "and the micro-batch was halved"
            if advice is None
            else f"but the micro-batch cannot be halved, so steps stay slow: {advice}"
        )
        return (
            f"the allocator had to free its cache in {THRASH_STEPS} steps one after the other: "
            f"taken as an out-of-memory, {done} ({held})"
        )
    return f"cached memory was given back to the driver ({held})"


def read_cuda(device: torch.device) -> CacheNumbers:
    """The numbers of a CUDA device now.  Its peak is that since the last call, which ends here."""
    import torch

    statistics = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return CacheNumbers(
        num_retries=statistics.get("num_alloc_retries", 0),
        reserved_bytes=statistics.get("reserved_bytes.all.current", 0),
        peak_allocated_bytes=statistics.get("allocated_bytes.all.peak", 0),
        total_bytes=torch.cuda.get_device_properties(device).total_memory,
    )
