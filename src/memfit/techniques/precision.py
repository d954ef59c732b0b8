"""Precision: in which dtype the forward pass and the loss are computed.

``bf16`` is autocast over fp32 parameters: matrix products run in bfloat16, losses and norms as
PyTorch's lists say; gradients and optimizer state stay fp32.  ``bf16-pure`` has everything in
bfloat16: parameters, gradients and optimizer state take 2 bytes a number, and small updates of
large weights are lost to rounding.  bfloat16 has fp32's range, so no gradient scaler belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from memfit.records.recipe import Recipe


def forward_context(recipe: Recipe, device_type: str) -> AbstractContextManager[object]:
    """The context that a forward pass and its loss run in.

    A fresh one each time: leaving the outermost region drops the bf16 copies of the weights.
    """
    return torch.autocast(device_type, dtype=torch.bfloat16, enabled=recipe.precision == "bf16")


@contextmanager
def building_context(recipe: Recipe) -> Iterator[None]:
    """The context that a model is built in: ``bf16-pure`` makes its parameters in bfloat16.

    Made so from the start, the model never takes its fp32 size; what the model asks for in fp32
    by name, such as a table of angles, stays fp32.
    """
    before = torch.get_default_dtype()
    if recipe.precision == "bf16-pure":
        torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def input_dtype(recipe: Recipe) -> torch.dtype | None:
    """What floating tensors of a batch are cast to; None for as they come."""
    return torch.bfloat16 if recipe.precision == "bf16-pure" else None
