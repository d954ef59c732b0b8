"""The optimizer's update of each parameter inside backward.

As soon as the gradient of a parameter is whole, autograd calls a hook: the parameter is updated
and its gradient let go.  So never more than a few gradients are there, instead of all.  A weight
that is used in two places gets one gradient, the sum, and its hook is called once.

Source: Lv et al. 2023, "Full Parameter Fine-tuning for Large Language Models with Limited
Resources" (LOMO), https://arxiv.org/abs/2306.09782; the mechanism is
``Tensor.register_post_accumulate_grad_hook``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from memfit.optimizers.pieces import step_on
from memfit.optimizers.together import parts
from memfit.records.recipe import Recipe


def update_in_backward(model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe) -> None:
    """Updates each parameter as soon as its gradient is there, where the recipe says so.

    The optimizer keeps its groups and its state; its learning rates are those at the time of the
    update.  Its ``step`` does nothing any more.
    """
    if not recipe.optimizer_in_backward:
        return
    for part in parts(optimizer):
        for number, group in enumerate(part.param_groups):
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(_updating(part, number))
    # Bound to anything but the optimizer, which would then hold itself; a scheduler of PyTorch's
    # asks for a bound method.
    optimizer.step = MethodType(_nothing, recipe)  # type: ignore[method-assign]


def _updating(part: torch.optim.Optimizer, number: int) -> Callable[[Tensor], None]:
    """A hook that updates a parameter of group ``number``.

    It holds no optimizer: that holds the parameter, which holds the hook.
    """
    found = weakref.ref(part)

    def update(parameter: Tensor) -> None:
        part = found()
        if part is None:
            return
        # By number: loading a state makes other groups.
        group = part.param_groups[number]
        step_on(part, lambda: type(part).step(part), group, [parameter])
        parameter.grad = None

    return update


def _nothing(_: object, closure: Callable[[], Any] | None = None) -> None:
    """The step of an optimizer whose updates are done in backward."""
