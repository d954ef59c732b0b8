"""Activation checkpointing: a block keeps its input only, and is run again in backward.

The blocks are found, not asked for: of the modules that stand in lists of their own kind, the kind
that holds the most parameters, which is what every Transformer calls its layers.  Non-reentrant
checkpointing keeps the generators' and autocast's state, so the second run gives the same numbers
and gradients are bit-identical.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; the mechanism is
``torch.utils.checkpoint`` with ``use_reentrant=False``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
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
        # On the instance, so that names in state_dict stay as they are; as a method of it, so that
        # the block of a deep copy checkpoints itself and not the one it was copied from.
        block.forward = MethodType(_checkpointed, block)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The model's layers, in order: the modules of one class that stand in lists of that class.

    Of several such classes it is the one with the most parameters, and not the experts or the
    convolutions inside; of two that hold the same, the one with more blocks.

    Raises:
        BadInput: no class has two modules in lists.
    """
    kinds: dict[type[nn.Module], list[nn.Module]] = defaultdict(list)
    for container in model.modules():
        if isinstance(container, (nn.ModuleList, nn.Sequential)):
            children = list(container)
            if len({type(child) for child in children}) == 1:
                kinds[type(children[0])].extend(children)
    candidates = [blocks for blocks in kinds.values() if len(blocks) > 1]
    if not candidates:
        raise BadInput(
            f"{type(model).__name__} has no repeated blocks to checkpoint (a ModuleList or "
            "Sequential of alike modules): use checkpointing none"
        )
    return max(candidates, key=lambda blocks: (_num_parameters(blocks), len(blocks)))


def _num_parameters(blocks: list[nn.Module]) -> int:
    return sum(p.numel() for block in blocks for p in block.parameters())


def _checkpointed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = type(block).forward
    if not torch.is_grad_enabled():
        return forward(block, *args, **kwargs)
    return checkpoint(
        forward,
        block,
        *args,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _statistics_kept(block)),
        **kwargs,
    )


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Lets the second run update copies of running statistics: the first has updated them."""
    kept = [
        (norm, name, buffer)
        for norm in block.modules()
        if isinstance(norm, _NormBase)
        for name, buffer in norm._buffers.items()
        if buffer is not None
    ]
    for norm, name, buffer in kept:
        norm._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for norm, name, buffer in kept:
            norm._buffers[name] = buffer
