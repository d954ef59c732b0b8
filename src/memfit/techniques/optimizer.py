"""Optimizers: AdamW, and SGD with momentum, with weight decay on matrices only."""

from __future__ import annotations

import torch
from torch import nn

from memfit.errors import BadInput
from memfit.records.recipe import Recipe

_ADAMW_BETAS = (0.9, 0.95)
"""As GPT-3 was trained (Brown et al. 2020, appendix B)."""

_SGD_MOMENTUM = 0.9


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimizer over the parameters of ``model`` that are trained.

    State bytes per fp32 parameter: AdamW 8, SGD with momentum 4.

    Raises:
        BadInput: no parameter is trained.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise BadInput(
            f"{type(model).__name__} has no parameter to train: none has requires_grad set"
        )
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.peak_learning_rate, betas=_ADAMW_BETAS)
    return torch.optim.SGD(groups, lr=recipe.peak_learning_rate, momentum=_SGD_MOMENTUM)
