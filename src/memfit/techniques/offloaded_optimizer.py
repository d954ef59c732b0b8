"""The optimizer's state and update on the CPU."""

from __future__ import annotations

import torch
from torch import nn

from memfit.records.recipe import Recipe


def offload_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe
) -> torch.optim.Optimizer:
    """The optimizer itself, or one whose state is on the CPU where the recipe says so."""
    return optimizer
