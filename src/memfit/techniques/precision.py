"""Precision: in which dtype the forward pass and the loss are computed.

``bf16`` is autocast over fp32 parameters: matrix products run in bfloat16, losses and norms as
PyTorch's lists say; gradients and optimizer state stay fp32.  bfloat16 has fp32's range, so no
gradient scaler belongs to it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from memfit.records.recipe import Recipe


def forward_context(recipe: Recipe, device_type: str) -> AbstractContextManager[object]:
    """The context that a forward pass and its loss run in.

    A fresh one each time: leaving the outermost region drops the bf16 copies of the weights.
    """
    return torch.autocast(device_type, dtype=torch.bfloat16, enabled=recipe.precision == "bf16")
