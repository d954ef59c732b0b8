"""What a job's loss function returns, in the one form that a step goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, NoReturn

from torch import Tensor

from memfit.errors import BadInput


def loss_and_targets(found: Any) -> tuple[Tensor, int | None]:
    """``(sum of losses, number of targets)``, or ``(mean, None)``.

    A mapping with a ``"loss"`` is its mean: what Hugging Face's models return when they are given
    labels, and what Lightning's ``training_step`` may.

    Raises:
        BadInput: it is nothing of that; the message says what to return.
    """
    if isinstance(found, Mapping):
        if found.get("loss") is None:
            given = f'without a "loss": it has {", ".join(map(str, found)) or "nothing"}'
            _refuse(f"a {type(found).__name__} {given}")
        found = found["loss"]
    is_pair = isinstance(found, (tuple, list)) and len(found) == 2
    loss, num_targets = found if is_pair else (found, None)
    if not isinstance(loss, Tensor):
        _refuse(_described(found))
    if loss.numel() != 1:
        raise BadInput(
            f"the loss is a tensor of shape {list(loss.shape)}: return the mean over the "
            "batch, a scalar, or the sum of the losses and the number of targets"
        )
    if num_targets is None:
        return loss, None
    is_one = isinstance(num_targets, Real) or (
        isinstance(num_targets, Tensor) and num_targets.numel() == 1
    )
    if not is_one:
        _refuse(f"a loss and {_described(num_targets)}, which is no number of targets")
    return loss, int(num_targets)


def _described(found: Any) -> str:
    if found is None:
        return "None"
    if isinstance(found, Tensor):
        return f"a tensor of shape {list(found.shape)}"
    if isinstance(found, (tuple, list)):
        return f"a {type(found).__name__} of {len(found)}"
    if isinstance(found, Real):
        return f"the number {float(found):g}, through which nothing can be learnt"
    return f"a {type(found).__name__}"


def _refuse(what: str) -> NoReturn:
    raise BadInput(
        f"the loss function returned {what}: return the mean over the batch, a tensor (not its "
        '.item()); or a mapping with it as "loss"; or a tuple of the sum of the losses, a tensor, '
        "and the number of targets"
    )
