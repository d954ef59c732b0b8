"""Activation checkpointing: a block keeps its input only, and is run again in backward.

The blocks are found, not asked for: the longest list of alike modules in the model, which is what
every Transformer calls its layers.  Non-reentrant checkpointing keeps the generators' and
autocast's state, so the second run gives the same numbers and gradients are bit-identical.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; the mechanism is
``torch.utils.checkpoint`` with ``use_reentrant=False``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from memfit.errors import BadInput
from memfit.records.recipe import Recipe


def checkpoint_blocks(model: nn.Module, recipe: Recipe) -> None:
    """Makes every N-th block of ``model``, from the first, recompute itself in backward.

    Raises:
        BadInput: the recipe asks for it and the model has no repeated blocks.
    """
    every = recipe.checkpoint_every
    if every is None:
        return
    for block in repeated_blocks(model)[::every]:
        # On the instance, so that names in state_dict stay as they are.
        block.forward = partial(_checkpointed, block.forward)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The model's layers: its longest list of modules of one class; of two, the heavier one.

    Raises:
        BadInput: no list holds two modules of one class.
    """
    candidates = [
        list(container)
        for container in model.modules()
        if isinstance(container, (nn.ModuleList, nn.Sequential))
        and len(container) > 1
        and len({type(child) for child in container}) == 1
    ]
    if not candidates:
        raise BadInput(
            f"{type(model).__name__} has no repeated blocks to checkpoint (a ModuleList or "
            "Sequential of alike modules): use checkpointing none"
        )
    return max(candidates, key=lambda blocks: (len(blocks), _num_parameters(blocks)))


def _num_parameters(blocks: list[nn.Module]) -> int:
    return sum(p.numel() for block in blocks for p in block.parameters())


def _checkpointed(forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
