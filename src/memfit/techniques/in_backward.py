"""The optimizer's update of each parameter inside backward."""

from __future__ import annotations

import torch
from torch import nn

from memfit.records.recipe import Recipe


def update_in_backward(
    model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe
) -> None:
    """Updates each parameter as soon as its gradient is there, where the recipe says so."""
