"""A watch for leaks: live bytes at the same point of each step that grow and never come back.

While nothing is wrong it compares a few integers a step.  When live bytes have grown for several
measured steps in a row, it asks to look closer: during two steps each new tensor is noted with the
module that ran and the line that made it.  What was made in the first and still lives after the
second is what leaks; if nothing does, the growth was the data's, and the watch goes on.

Looking runs the step under a ``TorchDispatchMode``.  The step's arithmetic stays what it was; its
Python time grows about as much as under a profiler, for two steps.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memfit.units import format_size

GROWING_STEPS = 5
"""Measured steps, each above the one before, that make the watch look closer.  Of sizes that vary
by chance six in a row rise once in 720 times, and then a look finds nothing."""

_WINDOW = 8
"""Measured steps whose lowest is taken where sizes vary: a leak lifts the lowest too."""

_NUM_WINDOWS = 4
_LOOKED_STEPS = 2
_ASKED = 4
"""Leaked tensors whose holder is looked for: each takes a walk over every object there is."""

_TORCH = str(Path(torch.__file__).parent)
_MEMFIT = Path(__file__).parents[1]
_OURS = tuple(str(_MEMFIT / part) for part in ("trainer", "techniques", "tracing", "profiler"))


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor's memory, and where it was made."""

    memory: StorageWeakRef
    num_bytes: int
    module: str
    line: str
    in_look: int


class LeakWatch:
    """Watches one run.

    ``after_step`` says whether the next step is to be taken inside ``looking()``; ``finding()``
    gives a sentence, once for each place that leaks.

    Args:
        model: whose modules are named.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model = type(model).__name__
        self._recent: deque[tuple[int, int]] = deque(maxlen=_WINDOW * _NUM_WINDOWS)
        self._looks = 0
        self._is_looking = False
        self._made: dict[int, _Made] = {}
        self._finding: str | None = None
        self._told: set[tuple[str, str]] = set()
        self._quiet_until = 0

    def after_step(self, step: int, live_bytes: int | None) -> bool:
        """Takes the live bytes after a step; whether to look at the next step.

        Args:
            step: counted from 1.
            live_bytes: None for a step that was not measured.
        """
        if self._is_looking:
            if self._looks < _LOOKED_STEPS:
                return True
            self._is_looking, self._looks = False, 0
            self._recent.clear()
            # Whether or not it was a leak, the same growth is not looked at again and again.
            self._quiet_until = 2 * step
            return False
        if live_bytes is None:
            return False
        self._recent.append((step, live_bytes))
        if step < self._quiet_until or not (self._rises() or self._lowest_rises()):
            return False
        self._is_looking = True
        self._made.clear()
        return True

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Around a step, its batch included, that ``after_step`` wants to look at."""
        stack: list[str] = []

        def leave(module: nn.Module, args: Any, out: Any) -> None:
            stack.pop()

        hooks = (
            register_module_forward_pre_hook(lambda module, _: stack.append(self._name(module))),
            register_module_forward_hook(leave, always_call=True),
        )
        try:
            with _Births(self._made, self._looks, stack, self._model):
                yield
        finally:
            for hook in hooks:
                hook.remove()
        self._looks += 1
        if self._looks == _LOOKED_STEPS:
            self._finding = self._conclude()
            self._made.clear()

    def finding(self) -> str | None:
        """What the last look found, once; None when it found nothing."""
        finding, self._finding = self._finding, None
        return finding

    def _name(self, module: nn.Module) -> str:
        return self._names.get(id(module)) or type(module).__name__

    def _rises(self) -> bool:
        sizes = [size for _, size in self._recent][-GROWING_STEPS - 1 :]
        if len(sizes) <= GROWING_STEPS:
            return False
        return all(after > before for before, after in pairwise(sizes))

    def _lowest_rises(self) -> bool:
        if len(self._recent) < _WINDOW * _NUM_WINDOWS:
            return False
        sizes = [size for _, size in self._recent]
        lowest = [min(sizes[at : at + _WINDOW]) for at in range(0, len(sizes), _WINDOW)]
        return all(after > before for before, after in pairwise(lowest))

    def _conclude(self) -> str | None:
        """A sentence about what was made in the first look and outlived the second."""
        gc.collect()
        left = {
            address: made
            for address, made in self._made.items()
            if made.in_look == 0 and not made.memory.expired()
        }
        if not left:
            return None
        total = sum(made.num_bytes for made in left.values())
        by_line: dict[tuple[str, str], int] = {}
        for made in left.values():
            where = made.module, made.line
            by_line[where] = by_line.get(where, 0) + made.num_bytes
        (module, line), most = max(by_line.items(), key=lambda item: item[1])
        if (module, line) in self._told:
            return None
        self._told.add((module, line))
        holder, has_graph = _holder(set(left))
        sentence = (
            f"a leak: each step leaves {format_size(total)} behind in "
            f"{len(left)} tensor{'s' * (len(left) != 1)}; {format_size(most)} of it is made in "
            f"{module} by {line}"
        )
        if holder:
            sentence += f", and is kept by {holder}"
        if has_graph:
            sentence += (
                "; it holds the graph of its step: keep loss.item() or tensor.detach() instead"
            )
        return sentence


class _Births(TorchDispatchMode):
    """Notes the memory of each tensor that an op makes."""

    def __init__(self, made: dict[int, _Made], look: int, stack: list[str], model: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made, self._look, self._stack, self._model = made, look, stack, model

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided
        }
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if not isinstance(leaf, Tensor) or leaf.layout != torch.strided:
                continue
            storage = leaf.untyped_storage()
            if storage._cdata in given or storage.nbytes() == 0:
                continue
            where = f"module {self._stack[-1]!r}" if self._stack else self._model
            self._made[storage._cdata] = _Made(
                StorageWeakRef(storage), storage.nbytes(), where, _line(), self._look
            )
        return out


def _line() -> str:
    """The innermost line of the user's: neither torch's nor of memfit's machinery."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, *_OURS, "<")):
            text = linecache.getline(file, frame.f_lineno).strip()
            return f"{Path(file).name}:{frame.f_lineno}" + (f" ({text})" if text else "")
        frame = frame.f_back
    return "the step itself"


def _holder(addresses: set[int]) -> tuple[str | None, bool]:
    """Who refers to a leaked tensor in Python, in words; and whether one has a graph."""
    held = [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), Tensor)
        and thing.layout == torch.strided
        and thing.untyped_storage()._cdata in addresses
    ]
    has_graph = any(tensor.grad_fn is not None for tensor in held)
    asked = held[:_ASKED]
    for tensor in asked:
        for referrer in gc.get_referrers(tensor):
            if referrer is not held and referrer is not asked and (words := _container(referrer)):
                return words, has_graph
    return None, has_graph


def _container(thing: Any) -> str | None:
    """A list, dict, set or deque of tensors, by the name under which something holds it."""
    if not isinstance(thing, (list, dict, set, deque)):
        return None
    kind = f"a {type(thing).__name__} of {len(thing)}"
    name = _name_of(thing)
    return f"{name!r}, {kind}" if name else kind


def _name_of(thing: Any) -> str | None:
    """The attribute or global that is ``thing``, else the variable of a running function."""
    for owner in gc.get_referrers(thing):
        if isinstance(owner, nn.Module):
            owner = vars(owner)
        if isinstance(owner, dict):
            for name, value in owner.items():
                if value is thing and isinstance(name, str):
                    return name
    frame = sys._getframe().f_back
    while frame is not None:
        if not frame.f_code.co_filename.startswith((_TORCH, *_OURS)):
            for name, value in frame.f_locals.items():
                if value is thing:
                    return name
        frame = frame.f_back
    return None
