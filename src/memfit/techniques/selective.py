"""Selective checkpointing: matrix products and attention are kept, the cheap rest is run again.

Of what backward needs, the inputs of norms, activation functions and sums cost next to nothing to
compute again, and take about half of a block's memory.  So while a block runs, each tensor that
autograd saves is either kept (a weight, the block's input, a result of a matrix product) or left
out.  When backward asks for the first that was left out, the block runs again: a product hands out
its kept result and is not computed, the rest is, and the run ends with the last tensor needed.

``torch.utils.checkpoint`` does the running again (its generators, autocast and early stop are
used); a :class:`Region` gives the two contexts that it takes.  PyTorch's own selective policy
(``create_selective_checkpoint_contexts``) sees ops in a dispatch mode, which makes C++ leave its
in-place paths.  Here products are seen a floor higher, where Python calls them
(``TorchFunctionMode``), so the ops that do run are those of a plain run, bit for bit.

Sources: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
section 5; torch/utils/checkpoint.py of PyTorch 2.13 for the order of its hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


def _functions(*names: str) -> frozenset[Any]:
    """The functions of these names, wherever Python finds them."""
    places = (torch, Tensor, F)
    return frozenset(getattr(at, name) for at in places for name in names if hasattr(at, name))


CAST_BY_AUTOCAST = _functions(
    *("addbmm", "addmm", "baddbmm", "bmm", "matmul", "mm", "__matmul__", "__rmatmul__"),
    *("linear", "scaled_dot_product_attention"),
    *(f"conv{kind}{dims}d" for kind in ("", "_transpose") for dims in (1, 2, 3)),
)
"""Products whose arguments autocast casts before anything else, on the CPU and on CUDA
(aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP and autocast_mode.cpp)."""

PRODUCTS = CAST_BY_AUTOCAST | _functions("einsum", "_grouped_mm", "grouped_mm")
"""The functions whose results are kept, as Python calls them."""


class _Kept:
    """A tensor that stays until backward, and must not be written to until then."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        # A parameter stays itself.  Of others only the memory, not the graph: a tensor that its
        # own node saves would be a cycle.
        self._tensor = tensor if tensor.is_leaf else tensor.detach()
        self._version = tensor._version

    @property
    def was_written(self) -> bool:
        return self._tensor._version != self._version

    def get(self) -> Tensor:
        if self.was_written:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: {self._tensor.dtype} {list(self._tensor.shape)} is at version "
                f"{self._tensor._version}, expected version {self._version}"
            )
        return self._tensor


class _View(NamedTuple):
    """A tensor that a product saved, as a view of one of its arguments."""

    argument: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(slots=True)
class _Product:
    """One call of a product."""

    saved: list[_View | None] = field(default_factory=list)
    """What it saved for backward: a view of an argument that is left out, or None where kept."""

    result: _Kept | None = None
    """None once it is handed out: a third run would compute it."""

    ends: int = 0
    """How many tensors had been saved when it was done."""

    is_last: bool = False
    """Whether nothing that is needed is computed after it."""

    requires_grad: bool = False


class Region:
    """One pass through a block, and its recomputation."""

    def __init__(self, block: nn.Module, inputs: Any) -> None:
        self._block = block
        self._inputs = [x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor)]
        self._products: list[_Product] = []
        self._kept: list[bool] = []
        """For each tensor that autograd saves, in order: is it kept?"""

    @contextmanager
    def first_run(self) -> Iterator[None]:
        """Keeps and leaves out."""
        leave_out, bring_back = _hooks_around()
        outside = {
            _address(tensor)
            for tensor in (*self._block.parameters(), *self._block.buffers(), *self._inputs)
        }
        self._inputs = []  # torch's frame has them: two holders would keep them for too long
        arguments: dict[int, int] = {}
        product: _Product | None = None

        def pack(x: Tensor) -> Any:
            address = _address(x)
            left_out = address not in outside
            if product is not None:
                argument = arguments.get(address)
                left_out = left_out and argument is not None and not x.is_conj()
                product.saved.append(
                    _View(argument, tuple(x.shape), x.stride(), int(x.storage_offset()))
                    if left_out and argument is not None
                    else None
                )
            self._kept.append(not left_out)
            return leave_out(x) if left_out else _Kept(x)

        def unpack(packed: Any) -> Tensor:
            return packed.get() if isinstance(packed, _Kept) else bring_back(packed)

        def run(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            nonlocal product
            arguments.clear()
            for index, tensor in enumerate(_tensors(args, kwargs)):
                arguments[_address(tensor)] = index
            product = _Product()
            try:
                result = func(*args, **kwargs)
            finally:
                called, product = product, None
            called.result, called.requires_grad = _Kept(result), result.requires_grad
            called.ends = len(self._kept)
            outside.add(_address(result))
            self._products.append(called)
            return result

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack), _Products(run):
            yield
        self._let_go()

    def _let_go(self) -> None:
        """Lets go of results that no second run will ask for, or that are not results any more."""
        last = max((index for index, kept in enumerate(self._kept) if not kept), default=-1)
        for product in self._products:
            assert product.result is not None
            product.is_last = product.ends > last  # with its own arguments, or before it
            if product.is_last or product.result.was_written:
                product.result = None

    @contextmanager
    def second_run(self) -> Iterator[None]:
        """Gives torch what was left out, and products their results."""
        give, _ = _hooks_around()
        saved, products = iter(self._kept), iter(self._products)

        def pack(x: Tensor) -> None:
            # The graph of this run is never used: it holds nothing.
            if not next(saved):
                give(x)

        def run(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            product = next(products)
            result, product.result = product.result, None
            if (result is None and not product.is_last) or (result and result.was_written):
                return func(*args, **kwargs)
            tensors = _tensors(args, kwargs)
            for view in product.saved:
                next(saved)
                if view is not None:
                    memory = tensors[view.argument].detach()
                    give(memory.as_strided(view.size, view.stride, view.offset))
            assert result is not None, "the second run ends at the last tensor that is needed"
            return result.get().detach().requires_grad_(product.requires_grad)

        with torch.autograd.graph.saved_tensors_hooks(pack, _never), _Products(run):
            yield


class _Products(TorchFunctionMode):
    """Hands each product to ``run``; everything else runs as it is."""

    def __init__(self, run: Callable[[Callable[..., Any], Any, Any], Any]) -> None:
        super().__init__()
        self._run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in PRODUCTS or "out" in kwargs or _is_random(func, args, kwargs):
            return func(*args, **kwargs)
        if func in CAST_BY_AUTOCAST:
            args, kwargs = _cast((args, kwargs))
        return self._run(func, args, kwargs)


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _address(tensor: Tensor) -> int:
    """Where the tensor's memory begins; it tells apart those that are live at one time."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def _is_random(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a product draws numbers: if it did not run again, later ones would be others."""
    if func is not F.scaled_dot_product_attention:
        return False
    return bool(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))


def _cast(arguments: Any) -> Any:
    """The arguments as autocast would cast them for a product.

    Inside the product the copy would be something it saves, of which nobody knows where it is
    from.  Out here it is a cheap op like others.  Weights are left to autocast, which casts each
    once a forward pass.
    """

    def cast(x: Any) -> Any:
        if not isinstance(x, Tensor) or (x.is_leaf and x.requires_grad):
            return x
        if not torch.is_autocast_enabled(x.device.type):
            return x
        if not x.is_floating_point() or x.dtype == torch.float64:
            return x
        return x.to(torch.get_autocast_dtype(x.device.type))

    return pytree.tree_map(cast, arguments)


def _hooks_around() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
    """The saved-tensor hooks that checkpointing has just set."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    assert hooks is not None
    pack, unpack = hooks
    return pack, unpack


def _never(packed: None) -> Tensor:
    raise RuntimeError("backward inside a checkpointed block is not supported")
