"""Precision: in which dtype the forward pass and the loss are computed.

``bf16`` and ``fp16`` are autocast over fp32 parameters: matrix products run in 16 bits, losses and
norms as PyTorch's lists say; gradients and optimizer state stay fp32.  bfloat16 has fp32's range,
so no gradient scaler belongs to it.  fp16 has not, so its losses are scaled up, and a step whose
gradients overflow is left out (Micikevicius et al. 2017, "Mixed Precision Training", section 3.2).

``bf16-pure`` has everything in bfloat16: parameters, gradients and optimizer state take 2 bytes a
number.  An update smaller than half a step of bfloat16 would be lost, so it is rounded up or down
by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from memfit.errors import BadInput
from memfit.records.recipe import Recipe

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def forward_context(recipe: Recipe, device_type: str) -> AbstractContextManager[object]:
    """The context that a forward pass and its loss run in.

    A fresh one each time: leaving the outermost region drops the 16-bit copies of the weights.
    """
    dtype = _AUTOCAST.get(recipe.precision)
    return torch.autocast(device_type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def gradient_scaler(recipe: Recipe, device_type: str) -> torch.amp.GradScaler | None:
    """The scaler that fp16 needs, with PyTorch's settings; None for every other precision."""
    return torch.amp.GradScaler(device_type) if recipe.precision == "fp16" else None


def check_parameters(model: nn.Module, recipe: Recipe) -> None:
    """Refuses what a gradient scaler cannot unscale.

    Raises:
        BadInput: the recipe is fp16, and a parameter is float16 itself.
    """
    if recipe.precision != "fp16":
        return
    for name, parameter in model.named_parameters():
        if parameter.dtype == torch.float16:
            raise BadInput(
                f"parameter {name} is float16, and the gradients of float16 parameters cannot be "
                "unscaled without overflowing: with precision fp16 parameters stay fp32 and "
                "autocast narrows them; build the model in fp32 (without .half() or "
                "torch_dtype=float16), or choose precision bf16-pure to have 2 bytes a parameter"
            )


def loss_divisor(num_targets: int) -> int:
    """What the sum of ``num_targets`` losses is divided by before it is scaled, in fp16.

    A scaled sum over thousands of targets would overflow at once.  It is a power of two, so that
    dividing by it, and later by the rest, rounds nothing.
    """
    return 1 << max(0, math.ceil(math.log2(max(1, num_targets))))


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
