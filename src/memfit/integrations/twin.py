"""A model and its optimizer without data: what another trainer's step is traced on.

A deep copy in which each parameter and buffer is a new tensor that nobody has filled; data sets
stay the model's.  So wrapped forward methods, frozen parameters, dtypes and the optimizer's own
settings are those of the run, whatever built them.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset


class CannotTell(Exception):
    """The trainer cannot be predicted; the text says why."""


def twins(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: str
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """``(model, optimizer)`` on ``device``, without gradients and state.

    Raises:
        CannotTell: a parameter is no plain tensor, the optimizer has parameters that the model
            has not, or the model cannot be copied.
    """
    made: dict[int, Any] = {id(tensor): _anew(tensor, device) for tensor in _tensors(model)}
    made |= {
        id(data): data for data in _attributes(model) if isinstance(data, (Dataset, DataLoader))
    }
    try:
        groups = [
            {**group, "params": [made[id(p)] for p in group["params"]]}
            for group in optimizer.param_groups
        ]
    except KeyError:
        raise CannotTell("its optimizer has parameters that its model has not") from None
    try:
        other: nn.Module = copy.deepcopy(model, made)
    except Exception as error:
        raise CannotTell(f"{type(model).__name__} cannot be copied: {error}") from error
    return other, _optimizer(optimizer, groups, device)


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    yield from (value for value in _attributes(model) if isinstance(value, Tensor))


def _attributes(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        yield from vars(module).values()


def _anew(tensor: Tensor, device: str) -> Tensor:
    if type(tensor) not in (Tensor, nn.Parameter):
        raise CannotTell(f"its model has tensors of a kind of their own, {type(tensor).__name__}")
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


_OF_THE_RUN = (
    "state",
    "param_groups",
    "step",
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
)
"""Attributes of an optimizer that its twin has of its own; a scheduler puts ``step`` there."""


def _optimizer(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], device: str
) -> torch.optim.Optimizer:
    """One that has taken no step.  Its class is not called: what that was given is not known."""
    other: torch.optim.Optimizer = object.__new__(type(optimizer))
    kept = {name: value for name, value in vars(optimizer).items() if name not in _OF_THE_RUN}
    vars(other).update(tree_map_only(Tensor, lambda x: _anew(x, device), kept))
    other.param_groups, other.state = groups, defaultdict(dict)
    other._optimizer_step_pre_hooks = OrderedDict()
    other._optimizer_step_post_hooks = OrderedDict()
    return other
