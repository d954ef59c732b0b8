"""Activations that wait in host memory until backward needs them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from memfit.records.recipe import Recipe


class ActivationOffload:
    """Moves what backward needs to the host, as much as the recipe says."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._recipe = recipe

    def forward(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        return nullcontext()

    def step_ends(self) -> None:
        """The step is over, or was given up."""
