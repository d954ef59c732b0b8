"""What checkpointing computes twice, in FLOPs: counted in a step without data, not assumed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop

from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.accumulation import on_device
from memfit.techniques.checkpointing import checkpoint_blocks, parts_of
from memfit.techniques.precision import building_context, forward_context, input_dtype
from memfit.techniques.returned_loss import loss_and_targets
from memfit.tracing.dispatch import Dispatch
from memfit.tracing.log import Log
from memfit.tracing.modules import ModulePaths


class Recomputation(NamedTuple):
    """What running blocks again costs.  FLOPs are the mean over the blocks."""

    num_blocks: int
    whole: int
    """FLOPs of a block that is recomputed whole."""

    selective: int
    """FLOPs of a block that is recomputed selectively."""


def recomputation_of(job: Job, recipe: Recipe, length: int) -> Recomputation:
    """Counts one micro-batch of ``length`` tokens, forward and backward, as the recipe runs it.

    Raises:
        BadInput: the model has nothing that repeats.
    """
    plain, num_blocks = _flops(job, recipe.but(checkpointing="none"), length)
    whole, selective = (
        (_flops(job, recipe.but(checkpointing=checkpointing), length)[0] - plain) // num_blocks
        for checkpointing in ("full", "selective")
    )
    return Recomputation(num_blocks, whole, selective)


def _flops(job: Job, recipe: Recipe, length: int) -> tuple[int, int]:
    """(FLOPs of one micro-batch, blocks of the model)."""
    modules, count = ModulePaths(), _Count()
    with torch.random.fork_rng(devices=[]), modules, Dispatch(Log(), modules):
        with building_context(recipe):
            model = job.model()
        model.train()
        num_blocks = len(parts_of(model))
        checkpoint_blocks(model, recipe)
        batch = job.batch(recipe.batch_size, length)
        micro = on_device(batch, torch.device("cpu"), input_dtype(recipe))
        with count:
            with forward_context(recipe, "cpu"):
                found = job.loss(model, micro)
            loss, _ = loss_and_targets(found)
            del found
            loss.backward()
    return count.flops, num_blocks


class _Count(TorchDispatchMode):
    """Adds up FLOPs: PyTorch's formulas for products, one an element of what any other op makes.

    A mode changes which in-place forms C++ takes, so it would falsify bytes.  It changes no FLOPs.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.is_view or func.name() == "aten::_unsafe_view":
            return result
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=result))
        elif "scaled_dot_product" in func.name() and "backward" not in func.name():
            self.flops += int(sdpa_flop(*args[:3]))
        else:
            leaves = pytree.tree_leaves(result)
            self.flops += sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result
