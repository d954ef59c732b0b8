"""Ops that count values, and so size their results by them: unique and bincount.

Of known values they run; of unknown ones every element is taken to differ, the most there can be.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from memfit.tracing.virtual.dispatch import Dispatch

_Tensor = torch.Tensor


def register(gpu: Dispatch) -> list[torch.library.Library]:
    """The libraries must be kept for the kernels to stay."""
    counter = _Counter(gpu)
    aten = torch.library.Library("aten", "IMPL")
    for name, kernel in (
        ("_unique2", counter.unique),
        ("unique_dim", counter.unique_dim),
        ("unique_consecutive", counter.unique_consecutive),
        ("bincount", counter.bincount),
    ):
        aten.impl(name, kernel, "PrivateUse1")
    return [aten]


class _Counter:
    def __init__(self, gpu: Dispatch) -> None:
        self._gpu = gpu

    def unique(
        self, x: _Tensor, sort: bool = True, inverse: bool = False, counts: bool = False
    ) -> Any:
        """Values, and for each element of ``x`` which it is, and how many there are."""
        op = torch.ops.aten._unique2.default
        known = self._known(op, x, sort, inverse, counts)
        if known is not None:
            return known
        return self._all_differ(op, [x.numel()], x, list(x.shape) if inverse else [0], counts)

    def unique_consecutive(
        self, x: _Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
    ) -> Any:
        """The same of runs."""
        op = torch.ops.aten.unique_consecutive.default
        known = self._known(op, x, inverse, counts, dim)
        if known is not None:
            return known
        size = [x.numel()] if dim is None else list(x.shape)
        places = list(x.shape) if dim is None else [x.shape[dim]]
        return self._all_differ(op, size, x, places if inverse else [0], counts)

    def unique_dim(
        self, x: _Tensor, dim: int, sort: bool = True, inverse: bool = False, counts: bool = False
    ) -> Any:
        """The same of slices."""
        op = torch.ops.aten.unique_dim.default
        known = self._known(op, x, dim, sort, inverse, counts)
        if known is not None:
            return known
        places = [x.shape[dim]] if inverse else [0]
        return self._all_differ(op, list(x.shape), x, places, counts)

    def bincount(self, x: _Tensor, weights: _Tensor | None = None, minlength: int = 0) -> _Tensor:
        """How often each number stands in ``x``; of unknown ones, no number over ``minlength``."""
        op = torch.ops.aten.bincount.default
        if weights is None:
            known: _Tensor | None = self._known(op, x, None, minlength)
            if known is not None:
                return known
        self._gpu.shadows.note_size()
        dtype = torch.int64
        if weights is not None:
            dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
        return self._gpu.empty([max(minlength, 1)], None, dtype, op.name())

    def _known(self, op: Any, x: _Tensor, *rest: Any) -> Any:
        values = self._gpu.shadows.of(x)
        if values is None:
            return None
        result = op(values, *rest)
        name = op.name()
        return pytree.tree_map_only(_Tensor, lambda made: self._gpu.with_values(made, name), result)

    def _all_differ(
        self, op: Any, size: list[int], x: _Tensor, places: list[int], counts: bool
    ) -> tuple[_Tensor, _Tensor, _Tensor]:
        self._gpu.shadows.note_size()
        name = op.name().partition(".")[0]
        number = size[0] if counts else 0
        return (
            self._gpu.empty(size, None, x.dtype, name),
            self._gpu.empty(places, None, torch.int64, name),
            self._gpu.empty([number], None, torch.int64, name),
        )
