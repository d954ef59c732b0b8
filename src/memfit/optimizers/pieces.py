"""A step of some parameters only, by whatever optimizer they belong to.

What is kept in fewer bits is widened for one parameter at a time: the optimizer takes its own step
on that one, and what comes out is narrowed again.  So its arithmetic is never written twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def step_on(
    optimizer: torch.optim.Optimizer,
    step: Callable[[], Any],
    group: dict[str, Any],
    parameters: list[Tensor],
) -> None:
    """Runs ``step`` while ``optimizer`` has these parameters only, under the settings of ``group``.

    What the step notes in its group, such as a count, stays in ``group``.
    """
    groups = optimizer.param_groups
    alone = {**group, "params": parameters}
    optimizer.param_groups = [alone]
    try:
        step()
    finally:
        optimizer.param_groups = groups
        group.update({name: value for name, value in alone.items() if name != "params"})


def unhooked(step: Callable[..., Any]) -> Callable[[], Any]:
    """A bound ``step`` without the hooks that PyTorch wraps around it.

    ``Optimizer.__init__`` replaces the ``step`` of a class by one that calls the hooks.  A class
    that calls the ``step`` of its base for each parameter would call them as often.
    """
    if getattr(step, "hooked", False):
        bare, optimizer = step.__wrapped__, step.__self__  # type: ignore[attr-defined]
        return lambda: bare(optimizer)
    return step


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """What ``closure`` gives, run with gradients; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
