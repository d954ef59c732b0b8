"""Indexing as PyTorch had it up to 2.9: a slice that takes everything is a node of its own.

ATen/TensorIndexing.h left out a slice whose end equals the length; ``:`` ends at the largest
integer, so it was made.  Its gradient begins with zeros as large as what was sliced:
``logits[:, -1, :]`` costs two such tensors more, one of them as large as ``logits``.  Today's
condition is an end at or above the length.
"""

from __future__ import annotations

from typing import Any

import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.virtual.memory import is_virtual

LEFT_OUT = TorchVersion(2, 10)
"""Recorded: made in 2.6, left out in 2.11.  That pull request 161414 (of 2025-08, reviewed until
after the branch of 2.9 was cut) brought it is inferred."""

_END = 2**63 - 1
_Tensor: Any = torch.Tensor


def install(version: TorchVersion) -> None:
    """``tensor[...]`` of the virtual GPU's tensors follows the version's rule."""
    if version >= LEFT_OUT:
        return
    today = _Tensor.__getitem__

    def getitem(tensor: torch.Tensor, index: Any) -> Any:
        counts = isinstance(index, tuple) and tensor.requires_grad and torch.is_grad_enabled()
        if counts and is_virtual(tensor) and _is_plain(index):
            return _applied(tensor, index, today)
        return today(tensor, index)

    _Tensor.__getitem__ = getitem


def _is_plain(index: tuple[Any, ...]) -> bool:
    """Whether there are slices, and beside them only what takes no or one dimension."""
    if not any(isinstance(one, slice) for one in index):
        return False
    return not any(
        isinstance(one, bool)
        or (isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8))
        for one in index
    )


def _applied(tensor: torch.Tensor, index: tuple[Any, ...], today: Any) -> Any:
    """The index's entries one by one, as ``applySlicing`` does; tensors among them at the end."""
    rest: list[Any] = []
    """What is left to index with, an entry for each dimension up to the one that comes next."""
    for position, one in enumerate(index):
        dim = len(rest)
        if one is Ellipsis:
            later = sum(other is not None for other in index[position + 1 :])
            rest += [slice(None)] * (tensor.dim() - dim - later)
        elif one is None:
            tensor = tensor.unsqueeze(dim)
            rest.append(slice(None))
        elif isinstance(one, int):
            tensor = tensor.select(dim, one)
        elif isinstance(one, slice):
            if _takes_everything(one, tensor.shape[dim]):
                tensor = torch.ops.aten.slice.Tensor(tensor, dim, 0, _END)
            else:
                tensor = today(tensor, (*[slice(None)] * dim, one))
            rest.append(slice(None))
        else:
            rest.append(one)
    if all(isinstance(one, slice) for one in rest):
        return tensor
    return today(tensor, tuple(rest))


def _takes_everything(one: slice, length: int) -> bool:
    """Whether the slice is a node in the old rule only: from 0, and to beyond the end."""
    if one.start not in (None, 0) or one.step not in (None, 1):
        return False
    return one.stop is None or (isinstance(one.stop, int) and one.stop > length)
