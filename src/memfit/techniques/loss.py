"""The loss in chunks: logits are computed in pieces and never held."""

from __future__ import annotations

from torch import nn

from memfit.records.recipe import Recipe


def chunk_loss(model: nn.Module, recipe: Recipe) -> None:
    """Makes the head of ``model`` hand out logits that are computed in chunks."""
