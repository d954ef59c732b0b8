"""Which module an op belongs to: by name in the forward pass, and by autograd node in backward.

Modules are watched through PyTorch's global forward hooks.  Autograd numbers its nodes as they
are made, so remembering which module was running when a number was given out tells, in backward,
whose gradient a node computes.
"""

from __future__ import annotations

import bisect
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)


class ModulePaths:
    """A context that follows the running module.  Names are known once ``name_modules`` ran."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self._starts: list[int] = [0]
        self._owners: list[str] = [""]
        self._handles: list[Any] = []
        self._last = ""
        self._error = 0

    def __enter__(self) -> ModulePaths:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def name_modules(self, model: nn.Module, prefix: str = "") -> None:
        """Learns the paths of the model's modules, beside those of models before it."""
        named = model.named_modules(prefix=prefix)
        self._names.update({id(module): name for name, module in named})

    @property
    def last(self) -> str:
        """The path of the innermost module that an error left; else of the one that began last."""
        return self._last

    def was_left_by(self, error: BaseException) -> bool:
        """Whether ``error`` was raised inside a module, which ``last`` then names."""
        return id(error) == self._error

    @property
    def in_forward(self) -> bool:
        """Whether a module's forward is running, in a recomputation too."""
        return bool(self._stack)

    @property
    def depth(self) -> int:
        """How many modules' forwards are running, each inside the one before."""
        return len(self._stack)

    def current(self) -> str:
        """The path of the module that the current op serves; empty outside any."""
        if self._stack:
            return self._stack[-1]
        if torch._C._current_graph_task_id() == -1:
            return ""
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        return self._owners[bisect.bisect_right(self._starts, node._sequence_nr()) - 1]

    def _enter(self, module: nn.Module, args: Any) -> None:
        inherited = self._stack[-1] if self._stack else ""
        self._last = self._names.get(id(module), inherited)
        self._stack.append(self._last)
        self._note()

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack:  # it was not entered if another pre-hook raised
            left = self._stack.pop()
        error = sys.exc_info()[1]  # PyTorch calls the hook while it handles the error
        if error is not None and id(error) != self._error:
            # Not the error itself: its frames hold tensors, and checkpointing stops by an error.
            self._error, self._last = id(error), left
        self._note()

    def _note(self) -> None:
        number = torch._C._autograd._get_sequence_nr()
        owner = self._stack[-1] if self._stack else ""
        if number == self._starts[-1]:
            self._owners[-1] = owner
        else:
            self._starts.append(number)
            self._owners.append(owner)
