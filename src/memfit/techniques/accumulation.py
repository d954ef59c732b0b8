"""Gradient accumulation: one optimizer step over several micro-batches.

The loader gives the whole batch of a step and the step slices it, so the size of a micro-batch
changes neither the order of the data nor the result.  Losses are added up as sums and the
gradients divided once by the number of target tokens of the whole step: not a mean of means,
which weighs the tokens of sparse micro-batches more (Hugging Face transformers #34191).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from memfit.data.batch_tree import leaves, map_leaves, with_values
from memfit.errors import BadInput


def num_samples(batch: Any) -> int:
    """Dim 0 of the batch's tensors.

    Raises:
        BadInput: it holds no tensor with a dim 0, or its tensors disagree.
    """
    sizes = {leaf.shape[0] for leaf in leaves(batch) if _is_sampled(leaf)}
    if len(sizes) != 1:
        raise BadInput(
            "a batch is a tensor, or a tuple, list or mapping of tensors of one size in dim 0, the "
            f"sample; the sizes found are {sorted(sizes)}"
        )
    return int(sizes.pop())


def micro_batches(batch: Any, batch_size: int) -> Iterator[tuple[Any, int]]:
    """``(views of up to batch_size samples, how many)``; the last may be shorter."""
    total = num_samples(batch)
    for start in range(0, total, batch_size):
        count = min(batch_size, total - start)
        yield slice_samples(batch, start, count), count


def slice_samples(batch: Any, start: int, count: int) -> Any:
    """Views of ``count`` samples from ``start`` on; the batch itself where that is all of it."""
    if start == 0 and count == num_samples(batch):
        return batch
    return map_leaves(lambda leaf: _slice(leaf, start, count), batch)


def on_device(batch: Any, device: torch.device, floating: torch.dtype | None = None) -> Any:
    """The batch with its tensors on ``device``; those that are there already stay as they are.

    ``floating`` is the dtype that floating tensors are cast to; None leaves them alone.
    """

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        dtype = floating if leaf.is_floating_point() else None
        return leaf.to(device, dtype=dtype, non_blocking=True)

    if isinstance(batch, Mapping) and "num_targets" in batch:
        # It is read on the host: from the device, each micro-batch would wait for it.
        others = {name: batch[name] for name in batch if name != "num_targets"}
        there = {**map_leaves(moved, others), "num_targets": batch["num_targets"]}
        return with_values(batch, there)
    return map_leaves(moved, batch)


def _is_sampled(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _slice(leaf: Any, start: int, count: int) -> Any:
    return leaf.narrow(0, start, count) if _is_sampled(leaf) else leaf
