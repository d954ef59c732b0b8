"""What each block was for, told from when it was born, when it died, and what it became."""

from __future__ import annotations

from memfit.records.timeline import CATEGORIES
from memfit.tracing.log import PhaseSpan, Use

LOSS_OPS = {
    "aten::_log_softmax",
    "aten::binary_cross_entropy",
    "aten::binary_cross_entropy_with_logits",
    "aten::mse_loss",
}
"""Ops whose first argument is what a loss is computed from: blocks of its size are its logits."""

_SEEN = {
    Use.PARAMETER: "parameters",
    Use.GRADIENT: "gradients",
    Use.OPTIMIZER_STATE: "optimizer_state",
    Use.INPUT: "inputs",
    Use.SAVED: "activations",
    Use.LOSS: "loss",
}


def category_code(use: Use, phase: PhaseSpan, *, died_within: bool, in_module: bool) -> int:
    """Index into CATEGORIES of a block that an op made.

    Args:
        use: what the block was seen to be.
        phase: the stretch it was born in.
        died_within: whether it was freed before that stretch ended.
        in_module: whether a module's forward was running when it was born.
    """
    return CATEGORIES.index(_category(use, phase.name, died_within, in_module))


def _category(use: Use, phase: str, died_within: bool, in_module: bool) -> str:
    if use in _SEEN and not (use is Use.LOSS and phase not in ("forward", "eval")):
        return _SEEN[use]
    if died_within:
        return "temporaries"
    if phase == "forward":
        return "activations"
    if phase == "backward":
        return "activations" if in_module else "temporaries"
    if phase == "optimizer":
        return "optimizer_state"
    return "other"
