"""Scratch memory of CPU kernels that follows from a formula, with the formula's source."""

from __future__ import annotations

from memfit.tracing.calls import Call
from memfit.tracing.hidden.sequences import Sequence


def formula(call: Call, num_outputs: int) -> Sequence | None:
    """What happens inside the call; None where no formula is known."""
    return None
