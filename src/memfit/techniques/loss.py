"""The loss in chunks: the head hands out logits that are not there yet.

With ``loss="chunked"`` the model's head returns :class:`PendingLogits` while a step runs the loss:
what it was given, and its weight.  Scaling them, capping them and dropping positions changes the
note; cross-entropy computes the loss from it a few rows at a time (``chunked_cross_entropy``).  So
the user's loss, and that inside a Hugging Face model, stays as it is written.  Whatever needs all
logits at once is refused by name: computed quietly in full it would take what was to be saved.

Anywhere else the head returns logits: the model generates, and is looked at, as any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from memfit.errors import BadInput
from memfit.records.recipe import Recipe
from memfit.techniques.chunked_cross_entropy import (
    Head,
    cross_entropy_by_row,
    logsumexp_by_row,
    summed_cross_entropy,
)


def chunk_loss(model: nn.Module, recipe: Recipe) -> None:
    """Lets the head of ``model`` hand out pending logits, where the recipe's loss is chunked.

    It does so only inside :func:`in_chunks`.

    Raises:
        BadInput: the model has no head that can be found.
    """
    if recipe.loss == "chunked":
        head = output_head(model)
        _check_is_plain(model, head)
        # On the instance, as a method of it: names stay, and a deep copy has a head of its own.
        head.forward = MethodType(_pending, head)  # type: ignore[method-assign]


_is_in_chunks = ContextVar("is_in_chunks", default=False)


@contextmanager
def in_chunks(recipe: Recipe) -> Iterator[None]:
    """Around a loss: it is computed in chunks, where the recipe says so.

    A step enters it.  Without it a model gives logits, so that it can generate and be looked at.
    """
    before = _is_in_chunks.set(recipe.loss == "chunked")
    try:
        yield
    finally:
        _is_in_chunks.reset(before)


def output_head(model: nn.Module) -> nn.Linear:
    """The linear layer that makes the logits.

    A Hugging Face model says which it is.  In others it is the layer that shares its weight with an
    embedding, else the last one outside of lists of blocks.

    Raises:
        BadInput: there is no linear layer.
    """
    named = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(named, nn.Linear):
        return named
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    in_lists = {
        id(inner)
        for module in model.modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > 1
        for inner in module.modules()
    }
    for candidates in (
        [linear for linear in linears if id(linear.weight) in tables],
        [linear for linear in linears if id(linear) not in in_lists],
        linears,
    ):
        if candidates:
            return candidates[-1]
    raise BadInput(
        f"{type(model).__name__} has no linear layer that could make logits, so its loss cannot be "
        "computed in chunks: write --loss full"
    )


def _check_is_plain(model: nn.Module, head: nn.Linear) -> None:
    former = vars(head).get("forward")
    is_pending = getattr(former, "__func__", None) is _pending
    if type(head).forward is nn.Linear.forward and (former is None or is_pending):
        return
    raise BadInput(
        f"the head of {type(model).__name__}, a {type(head).__name__}, has a forward of its own, "
        "which a loss in chunks would leave out: write --loss full, or make the head an nn.Linear "
        "and do the rest before or after it"
    )


def _pending(self: nn.Linear, input: Tensor) -> Tensor | PendingLogits:  # noqa: A002  # its name
    if not _is_in_chunks.get():
        return nn.Linear.forward(self, input)
    kind = input.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
    return PendingLogits(input, Head(self.weight, self.bias, dtype), dtype)


def _or_whole(method: Callable[..., Any]) -> Callable[..., Any]:
    """Where nothing is trained, what a method refuses is done with the logits themselves."""

    @functools.wraps(method)
    def done(self: PendingLogits, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except BadInput:
            if torch.is_grad_enabled():
                raise
            return getattr(self.whole(), method.__name__)(*args, **kwargs)

    return done


def _operator(name: str) -> Callable[..., Any]:
    """An operator that cannot be put off."""

    def operate(self: PendingLogits, *others: Any, **options: Any) -> Any:
        raise _refused(f"computes with them, or reads them ({name})")

    operate.__name__ = name
    return _or_whole(operate)


class PendingLogits:
    """Logits (..., V) that are not computed: hidden states (..., C) and a head.

    It has what losses ask of logits: ``shape``, ``dtype``, ``device``, casts, scaling, ``tanh``,
    views and slices that keep the last dim whole, cross-entropy and ``logsumexp``.  Without
    gradients it has what a tensor has, but changes in place: they would be lost.
    """

    def __init__(self, hidden: Tensor, head: Head, dtype: torch.dtype) -> None:
        self._hidden, self._head = hidden, head
        self.dtype = dtype
        self.device = hidden.device
        self.requires_grad = torch.is_grad_enabled() and (
            hidden.requires_grad or head.weight.requires_grad
        )

    # ------------------------------------------------------------------ what a tensor says

    @property
    def shape(self) -> torch.Size:
        """(..., V)."""
        return torch.Size((*self._hidden.shape[:-1], self._head.weight.shape[0]))

    @property
    def ndim(self) -> int:
        """Dims, the vocabulary's too."""
        return self._hidden.dim()

    def dim(self) -> int:
        """Dims, the vocabulary's too."""
        return self._hidden.dim()

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one of its numbers."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """How many logits there would be."""
        return self.shape.numel()

    # ------------------------------------------------------------------ casts and scaling

    @_or_whole
    def to(self, *args: Any, **kwargs: Any) -> PendingLogits:
        """A cast.  The product stays in its own dtype, and the loss is computed in fp32."""
        dtype = self.dtype
        for asked in (*args, *kwargs.values()):
            if isinstance(asked, (Tensor, PendingLogits)):
                dtype, asked = asked.dtype, asked.device
            if isinstance(asked, torch.dtype):
                dtype = asked
            elif isinstance(asked, (str, torch.device)) and not self._is_on(torch.device(asked)):
                raise _refused(f"moves them to another device ({asked})")
            elif type(asked) is int and asked != self.device.index:
                raise _refused(f"moves them to another device (number {asked})")
        return PendingLogits(self._hidden, self._head, dtype)

    def _is_on(self, device: torch.device) -> bool:
        same_index = None in (device.index, self.device.index) or device.index == self.device.index
        return device.type == self.device.type and same_index

    def cpu(self) -> Any:
        """Itself on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Any:
        """Itself on that GPU."""
        return self.to("cuda" if device is None else device)

    def float(self) -> PendingLogits:
        """A cast to fp32."""
        cast: PendingLogits = self.to(torch.float32)
        return cast

    def contiguous(self) -> PendingLogits:
        """Itself: there is nothing to lay out."""
        return self

    @_or_whole
    def __mul__(self, factor: Any) -> PendingLogits:
        if not isinstance(factor, (int, float)):
            raise _refused("multiplies them by a tensor")
        head = self._head
        if head.cap is None:
            head = head._replace(scale=head.scale * factor)
        else:
            head = head._replace(cap=head.cap * factor)
        return PendingLogits(self._hidden, head, self.dtype)

    __rmul__ = __mul__

    @_or_whole
    def __truediv__(self, divisor: Any) -> PendingLogits:
        if not isinstance(divisor, (int, float)):
            raise _refused("divides them by a tensor")
        scaled: PendingLogits = self * (1 / divisor)
        return scaled

    @_or_whole
    def tanh(self) -> PendingLogits:
        """A soft cap."""
        if self._head.cap is not None:
            raise _refused("takes tanh twice")
        return PendingLogits(self._hidden, self._head._replace(cap=1.0), self.dtype)

    # ------------------------------------------------------------------ views

    def _viewed(self, hidden: Tensor) -> PendingLogits:
        return PendingLogits(hidden, self._head, self.dtype)

    @_or_whole
    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> PendingLogits:
        """Joins dims before the last."""
        if end_dim % self.dim() == self.dim() - 1:
            raise _refused("flattens the vocabulary into the rows")
        return self._viewed(self._hidden.flatten(start_dim, end_dim))

    @_or_whole
    def view(self, *shape: Any) -> PendingLogits:
        """Another shape before the last dim."""
        sizes = list(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else list(shape)
        if sizes[-1] not in (-1, self.shape[-1]) or (sizes[-1] == -1 and len(sizes) == 1):
            raise _refused("views them in a shape that cuts the vocabulary")
        return self._viewed(self._hidden.reshape(*sizes[:-1], self._hidden.shape[-1]))

    reshape = view

    @_or_whole
    def __getitem__(self, index: Any) -> PendingLogits:
        places = index if isinstance(index, tuple) else (index,)
        is_whole = len(places) < self.dim() or places[-1] == slice(None)
        if any(isinstance(place, Tensor) for place in places):
            raise _refused("picks positions by a tensor")
        if Ellipsis in places and places[-1] is not Ellipsis:
            is_whole = places[-1] == slice(None)
        if not is_whole:
            raise _refused("cuts the vocabulary")
        return self._viewed(self._hidden[index])

    # ------------------------------------------------------------------ losses

    @_or_whole
    def logsumexp(self, dim: int, keepdim: bool = False) -> Tensor:
        """(...,): the normaliser of each row, of which a z-loss is made."""
        if dim % self.dim() != self.dim() - 1:
            raise _refused("sums over another dim than the vocabulary")
        rows = self._hidden.flatten(0, -2)
        found = logsumexp_by_row(rows, self._head).view(self._hidden.shape[:-1])
        return found.unsqueeze(-1) if keepdim else found

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is F.cross_entropy:
            try:
                return _cross_entropy(*args, **(kwargs or {}))
            except BadInput:
                if torch.is_grad_enabled():
                    raise
        if func in (torch.tanh, torch.logsumexp) and isinstance(args[0], PendingLogits):
            return getattr(args[0], func.__name__)(*args[1:], **(kwargs or {}))
        if torch.is_grad_enabled():
            raise _refused(f"calls {getattr(func, '__name__', func)}")
        args, kwargs = pytree.tree_map(_whole, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_"):
            raise _NotThere(_words(f"changes them in place ({name})"))
        if torch.is_grad_enabled():
            raise _NotThere(_words(f"asks them for {name}"))
        return getattr(self.whole(), name)

    def whole(self) -> Tensor:
        """The logits themselves, (..., V): where nothing is trained there is nothing to save."""
        head = self._head
        with torch.autocast(self.device.type, enabled=False):
            bias = None if head.bias is None else head.bias.to(head.dtype)
            z = F.linear(self._hidden.to(head.dtype), head.weight.to(head.dtype), bias)
            z = z.to(self.dtype)
            if head.scale != 1:
                z = z * head.scale
            return z if head.cap is None else head.cap * torch.tanh(z)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _refused("changes them in place")

    def __repr__(self) -> str:
        return f"PendingLogits(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"

    __hash__ = object.__hash__
    __eq__, __ne__ = _operator("__eq__"), _operator("__ne__")
    __add__, __radd__ = _operator("__add__"), _operator("__radd__")
    __sub__, __rsub__ = _operator("__sub__"), _operator("__rsub__")
    __lt__, __le__ = _operator("__lt__"), _operator("__le__")
    __gt__, __ge__ = _operator("__gt__"), _operator("__ge__")
    __neg__, __pow__ = _operator("__neg__"), _operator("__pow__")
    __abs__, __rpow__ = _operator("__abs__"), _operator("__rpow__")
    __mod__, __floordiv__ = _operator("__mod__"), _operator("__floordiv__")
    __matmul__, __rtruediv__ = _operator("__matmul__"), _operator("__rtruediv__")
    __iter__, __len__ = _operator("__iter__"), _operator("__len__")
    __bool__, __float__, __int__ = map(_operator, ("__bool__", "__float__", "__int__"))
    __array__, __contains__ = _operator("__array__"), _operator("__contains__")


def _cross_entropy(
    input: PendingLogits,  # noqa: A002  # the name that F.cross_entropy gives it
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``F.cross_entropy`` of pending logits (N, V) and class indices (N,)."""
    if weight is not None or size_average is not None or reduce is not None:
        raise _refused("weighs classes")
    if input.dim() != 2 or target.dim() != 1:
        raise _refused(f"takes cross-entropy over {input.dim()} dims, not over rows")
    hidden, head = input._hidden, input._head
    if reduction == "none" or label_smoothing:
        losses = cross_entropy_by_row(hidden, head, target, ignore_index, label_smoothing)
        if reduction == "none":
            return losses
        total = losses.sum()
    else:
        total = summed_cross_entropy(hidden, head, target, ignore_index)
    if reduction == "sum":
        return total
    count = (target != ignore_index).sum()
    # Without any target the mean is nan, as in PyTorch; its gradients are 0.
    return total / count.clamp(min=1) + torch.zeros_like(total) / count


class _NotThere(BadInput, AttributeError):
    """What ``hasattr`` takes for an answer."""


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, PendingLogits) else value


def _refused(what: str) -> BadInput:
    return BadInput(_words(what))


def _words(what: str) -> str:
    return (
        f"the loss needs the logits themselves: it {what}, which cannot be done in chunks; write "
        "--loss full, or take F.cross_entropy of model outputs of shape (rows, vocabulary); what "
        "is only looked at can be read under torch.no_grad()"
    )
