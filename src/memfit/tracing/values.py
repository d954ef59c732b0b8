"""What a trace knows of the values in its tensors, and what it answers when it does not.

Small tensors that depend on no data (positions, masks, step counters, token ids) are real.  Tensors
in virtual memory have no values, and a real tensor loses its when an op writes into it what only
the run would know.  An unknown number reads as 1.0, 1 or False; the line that asked is noted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memfit.errors import BadInput
from memfit.tracing.calls import call_below
from memfit.tracing.memory import VirtualMemory, storage_address

_TRACING = str(Path(__file__).parent) + os.sep
MEMFIT_FOLDER = str(Path(__file__).parents[1]) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
"""Whose lines are not the user's.  Whole folders: a user's own path may hold these names too."""

_REAL_FLOATS = 4096
_REAL_INTEGERS = 1 << 22
"""Elements up to which a tensor that depends on no data gets real values."""

_READS_A_NUMBER = {"aten::_local_scalar_dense"}
_SIZED_BY_VALUES = {
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::_unique2",
}

READING_OPS = _READS_A_NUMBER | _SIZED_BY_VALUES | {"aten::equal"}
"""Ops that hand values to Python, or whose results' sizes depend on values."""


def is_small(numel: int, dtype: torch.dtype) -> bool:
    """Whether a tensor is small enough to be real."""
    return numel <= (_REAL_FLOATS if dtype.is_floating_point else _REAL_INTEGERS)


class Values:
    """Tells known tensors from unknown ones by the addresses of their storages."""

    def __init__(self) -> None:
        self.memory = VirtualMemory()
        self.unknown_reads: set[str] = set()
        """Lines of the user's code that were answered without knowing."""
        self._tainted: set[int] = set()

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's values depend on data that a trace does not have."""
        address = storage_address(tensor)
        return address in self.memory or address in self._tainted

    def taint(self, written: list[Any]) -> None:
        """Real tensors among the written ones no longer hold what the run would put there."""
        for value in written:
            if isinstance(value, (list, tuple)):
                self.taint(list(value))
            elif isinstance(value, torch.Tensor) and value.data_ptr() not in self.memory:
                self._tainted.add(storage_address(value))

    def know(self, address: int) -> None:
        """A real tensor was made at this address, where an unknown one may have been before."""
        self._tainted.discard(address)

    def answer(
        self, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of one of READING_OPS; NotImplemented where it can run like any other.

        Raises:
            BadInput: the size of the result depends on values that are not known.
        """
        tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        name = op.name().partition(".")[0]
        if not any(self.is_unknown(tensor) for tensor in tensors):
            return NotImplemented if name in _SIZED_BY_VALUES else call_below(op, args, kwargs)
        line = user_line()
        if name in _SIZED_BY_VALUES:
            raise BadInput(
                f"{line}: {op.name()} gives a result whose size depends on values that a "
                "prediction does not have; compute it from the inputs, or use torch.where"
            )
        if not line.startswith(MEMFIT_FOLDER):  # our own step reads the loss, to report it
            self.unknown_reads.add(line)
        dtype = tensors[0].dtype
        if name == "aten::equal" or dtype is torch.bool:
            return False
        return 1.0 if dtype.is_floating_point else 1


def user_line() -> str:
    """``file.py:12`` of the innermost frame outside torch and this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((_TORCH, _TRACING)):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
