"""Activation checkpointing: a block keeps its input only, and is run again in backward.

The blocks are found, not asked for (``techniques.blocks``).  A block is recomputed whole, or
selectively: ``techniques.selective`` says how.  Non-reentrant checkpointing
keeps the generators' and autocast's state, so the second run gives the same numbers and gradients
are bit-identical.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; the mechanism is
``torch.utils.checkpoint`` with ``use_reentrant=False``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from memfit.errors import BadInput, MemfitWarning
from memfit.records.recipe import Recipe
from memfit.techniques import selective
from memfit.techniques.blocks import repeated_blocks

SHORTEST_CHAIN = 4
"""Modules of a Sequential that is worth cutting: two pieces of two."""


def checkpoint_blocks(model: nn.Module, recipe: Recipe) -> None:
    """Makes blocks of ``model`` recompute themselves in backward, as many as the recipe says.

    Raises:
        BadInput: the recipe asks for it and the model has nothing that repeats, or it asks for
            more blocks than there are.
    """
    if recipe.checkpointing == "none":
        return
    _do_without_cache(model)
    for block, is_whole in chosen_blocks(_parts_said(model), recipe):
        # On the instance, so that names in state_dict stay as they are; as a method of it, so that
        # the block of a deep copy checkpoints itself and not the one it was copied from.
        before = block.__dict__.get("forward")
        if getattr(before, "__func__", None) not in (_checkpointed, _selective):
            block._forward_before = before  # type: ignore[assignment]  # no module of it
        block.forward = MethodType(_checkpointed if is_whole else _selective, block)


def chosen_blocks(blocks: list[nn.Module], recipe: Recipe) -> list[tuple[nn.Module, bool]]:
    """The blocks that are recomputed, each with whether it is recomputed whole.

    Of ``blocks:W:S`` the first W are recomputed whole, the next S selectively, and the last not at
    all.  Memory is highest when backward begins, at the last block, whose tensors would have to be
    there at once anyway; when it reaches the first ones, the others' are gone.

    Raises:
        BadInput: ``blocks:W:S`` asks for more blocks than there are.
    """
    if recipe.checkpoint_every is not None:
        return [(block, True) for block in blocks[:: recipe.checkpoint_every]]
    if recipe.checkpointing == "selective":
        return [(block, False) for block in blocks]
    numbers = recipe.checkpoint_blocks
    assert numbers is not None, "a budget becomes a recipe by prediction (planner.settle)"
    whole, partly = numbers
    if whole + partly > len(blocks):
        raise BadInput(
            f"checkpointing {recipe.checkpointing} asks for {whole} + {partly} blocks, but the "
            f"model has {len(blocks)}: write numbers that add up to {len(blocks)} or less"
        )
    return [(block, index < whole) for index, block in enumerate(blocks[: whole + partly])]


def parts_of(model: nn.Module) -> list[nn.Module]:
    """What can be recomputed one by one: the repeated blocks, else pieces of the longest chain.

    The chain is the Sequential with the most modules, cut into about as many pieces as a piece has
    modules (Chen et al. 2016, section 4.1).  Its names in ``state_dict`` stay as they are.

    Raises:
        BadInput: nothing repeats, and no Sequential has four modules.
    """
    blocks = repeated_blocks(model)
    if blocks:
        return blocks
    chains = [module for module in model.modules() if isinstance(module, nn.Sequential)]
    chain = max(chains, key=len, default=None)
    if chain is None or len(chain) < SHORTEST_CHAIN:
        raise BadInput(
            f"{type(model).__name__} has no repeated blocks to checkpoint (modules in a "
            "ModuleList, ModuleDict or Sequential), nor a Sequential of "
            f"{SHORTEST_CHAIN} modules or more to cut into pieces: use checkpointing none, or put "
            "layers that follow one another into a Sequential"
        )
    return _cut(chain)


def _parts_said(model: nn.Module) -> list[nn.Module]:
    """The parts to recompute; says so where they are not repeated blocks."""
    parts = parts_of(model)
    if not repeated_blocks(model):
        num_modules = sum(len(part) for part in parts if isinstance(part, nn.Sequential))
        warnings.warn(
            f"{type(model).__name__} has no repeated blocks: checkpointing takes {len(parts)} "
            f"pieces of its longest Sequential instead, which has {num_modules} modules",
            MemfitWarning,
            stacklevel=3,
        )
    return parts


def _cut(chain: nn.Sequential) -> list[nn.Module]:
    """Makes ``chain`` run in pieces, and gives them."""
    modules = list(chain)
    size = math.isqrt(len(modules))
    pieces = [nn.Sequential(*modules[at : at + size]) for at in range(0, len(modules), size)]
    # In a list, so that they are no submodules: the modules keep the names they have.
    chain.pieces = pieces  # type: ignore[assignment]
    chain.forward = MethodType(_piece_by_piece, chain)  # type: ignore[method-assign]
    return list(pieces)


def _piece_by_piece(chain: Any, x: Any) -> Any:
    for piece in chain.pieces:
        x = piece(x)
    return x


def _do_without_cache(model: nn.Module) -> None:
    """Turns off Hugging Face models' cache of keys, to which a second run would add again."""
    # Parts may have configurations of their own: a decoder's is a copy of the model's.
    for module in model.modules():
        if getattr(getattr(module, "config", None), "use_cache", False):
            module.config.use_cache = False  # type: ignore[union-attr]


def _checkpointed(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return _run(
        block, args, kwargs, lambda: (nullcontext(), _Again(lambda: [_statistics_kept(block)]))
    )


def _selective(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    def contexts() -> tuple[AbstractContextManager[None], _Again]:
        region = selective.Region(block, (args, kwargs))
        return region.first_run(), _Again(lambda: [_statistics_kept(block), region.second_run()])

    return _run(block, args, kwargs, contexts)


def _run(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], contexts: Callable[[], Any]
) -> Any:
    # Another library may have put a forward on this very block; a deep copy has its own of it.
    forward = block.__dict__["_forward_before"] or MethodType(type(block).forward, block)
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    with set_checkpoint_early_stop(True):
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


class _Again:
    """Contexts that can be entered more than once: as often as backward asks for a graph."""

    def __init__(self, make: Callable[[], list[AbstractContextManager[None]]]) -> None:
        self._make = make

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for context in self._make():
                stack.enter_context(context)
            self._entered = stack.pop_all()

    def __exit__(self, *exception: Any) -> bool | None:
        return self._entered.__exit__(*exception)


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
