"""Runs PyTorch ops without data, through PyTorch's own CPU dispatch.

Every op of the tracing thread passes through a fallback kernel on the ``Fake`` dispatch key, which
PyTorch keeps for out-of-tree tensors of this sort: it lies below autograd, autocast and the
decompositions, and above the kernels.  Tensors stay plain ``torch.Tensor`` objects of the CPU and
no mode is active, so C++ takes the branches it takes in the real run: gradients accumulate in
place, dropout, attention and autocast choose their CPU forms, and references are counted alike.

Small tensors that depend on no data (positions, masks, step counters, token ids) are real, so that
code may read them.  All others have no memory behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memfit.devices.cpu_allocations import mark
from memfit.errors import BadInput, MemfitError
from memfit.tracing.calls import Call, argument_of, call_below, describe
from memfit.tracing.categories import LOSS_OPS
from memfit.tracing.log import Block, Died, Log, PhaseSpan, Ran, Use
from memfit.tracing.memory import extent_bytes, storage_address
from memfit.tracing.modules import ModulePaths
from memfit.tracing.shapes import Fresh, Outputs, infer_outputs
from memfit.tracing.values import READING_OPS, Values, is_small, user_line

_FAKE = torch._C._dispatch_key_parse("Fake")
_FAKE_SET = torch._C.DispatchKeySet(_FAKE)

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_CPU = torch._C.DispatchKey.CPU

_STAY_KNOWN = {
    "aten::_amp_foreach_non_finite_check_and_unscale_": ("found_inf",),
}
"""Arguments that an op writes and a trace knows nonetheless: no gradient overflows in it."""

_MADE_OF_OPS = {
    "bitsandbytes::optimizer_update_32bit",
    "bitsandbytes::optimizer_update_8bit_blockwise",
}
"""Ops whose CPU kernel is Python over other ops (bitsandbytes 0.50, backends/cpu/ops.py)."""

_NOT_OPS = {"prim", "profiler"}
"""Namespaces of questions and marks, which take no memory."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the schema of an op says."""

    name: str
    """``aten::add_``, without the overload."""

    written: tuple[tuple[int, str], ...]
    """(position, name) of the arguments it writes."""

    returns_written: bool

    is_composite: bool
    """Whether it is made of other ops, and has no kernel of its own."""


class Dispatch:
    """A context in which this thread's ops run without data and are logged.

    Raises:
        MemfitError: on entry, when another trace is running in this process.
    """

    _active: Dispatch | None = None

    def __init__(self, log: Log, modules: ModulePaths) -> None:
        self.log = log
        self.values = Values()
        self._modules = modules
        self._blocks: dict[int, int] = {}
        self._kinds: dict[torch._ops.OpOverload, _Kind] = {}
        self._outputs: dict[int, Outputs] = {}
        self._closed = False
        self._marks = 0
        self._loss_numel = 0
        self._first_of_phase = 0

    def __enter__(self) -> Dispatch:
        if Dispatch._active is not None:
            raise MemfitError("a trace is running in this process: one at a time")
        Dispatch._active = self
        self._libraries = [
            torch.library.Library("_", "IMPL"),
            torch.library.Library("aten", "IMPL"),
        ]
        self._libraries[0].fallback(self._run, "Fake")
        for name in _view_ops():
            self._libraries[1].impl(name, torch.library.fallthrough_kernel, "Fake")
        self._include = torch._C._IncludeDispatchKeyGuard(_FAKE)
        self._include.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._include.__exit__(*exception)
        for library in self._libraries:
            library._destroy()
        self._closed = True
        Dispatch._active = None

    # ------------------------------------------------------------------ what the tracer asks

    def begin_phase(self, name: str, step: int) -> None:
        """What follows belongs to this phase of this step."""
        self._leave_mark()
        self.log.phases.append(PhaseSpan(name, step, self._marks))
        self._loss_numel = 0
        self._first_of_phase = len(self.log.blocks)

    def use(self, tensors: list[torch.Tensor], use: Use) -> None:
        """Says what the blocks behind these tensors are."""
        for tensor in tensors:
            block = self._block_of(tensor)
            if block is not None:
                block.use = use

    def name_block(self, tensor: torch.Tensor, module: str) -> None:
        """Says whose the block behind a tensor is, which was made before its owner had a name."""
        block = self._block_of(tensor)
        if block is not None:
            block.module = module

    def _block_of(self, tensor: torch.Tensor) -> Block | None:
        number = self._blocks.get(storage_address(tensor))
        # An address may have been another tensor's before: that one is not meant.
        if number is None or self.log.blocks[number].numel < tensor.numel():
            return None
        return self.log.blocks[number]

    # ------------------------------------------------------------------ the fallback kernel

    def _run(self, op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        kind = self._kinds.get(op) or self._learn_kind(op)
        if kind.is_composite:
            # In inference mode there is no autograd key, above which it would have come apart.
            return op._op_dk(_COMPOSITE, *args, **kwargs)
        if kind.name in _MADE_OF_OPS:
            return op._op_dk(_CPU, *args, **kwargs)
        held = self._leave_mark()
        with torch._C._ExcludeDispatchKeyGuard(_FAKE_SET):
            result = self._simulate(kind, op, args, kwargs)
        del held
        return result

    def _leave_mark(self) -> torch.UntypedStorage:
        """A mark in the allocator's stream, as long as the caller holds it."""
        self._marks += 1
        return mark()

    def _simulate(
        self,
        kind: _Kind,
        op: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if op.namespace in _NOT_OPS:
            return op(*args, **kwargs)
        if kind.name in READING_OPS:
            answer = self.values.answer(op, args, kwargs)
            if answer is not NotImplemented:
                return answer
        call, inputs = describe(op, args, kwargs)
        call_number = self.log.calls.setdefault(call, len(self.log.calls))
        ran = Ran(
            call_number,
            [],
            len(self.log.phases) - 1,
            self._marks,
            kind.name,
            self._modules.current(),
            {},
            self._modules.in_forward,
        )
        self.log.entries.append(ran)
        if kind.name in LOSS_OPS:
            self._note_loss(call)
        if self._is_known(op, kind, call, inputs):
            result = call_below(op, args, kwargs)
            if not kind.returns_written:
                self._adopt(result, ran)
            return result
        if kind.written:
            written = [argument_of(args, kwargs, position, key) for position, key in kind.written]
            self.values.taint(written)
            if kind.returns_written:
                return written[0] if len(op._schema.returns) == 1 else tuple(written)
            if not op._schema.returns:
                return None
        return self._make(op, call, ran)

    def _make(self, op: torch._ops.OpOverload, call: Call, ran: Ran) -> Any:
        """The outputs of a call, in storages without memory."""
        try:
            outputs = self._infer(op, call)
        except NotImplementedError as error:
            raise BadInput(
                f"{user_line()}: what {op.name()} returns cannot be told without data, or PyTorch "
                "has no shape rule (meta kernel) for it; compute it from the inputs, use "
                "torch.where in place of a mask as index, or register a fake kernel of the op"
            ) from error
        leaves = [
            self._make_tensor(leaf, ran) if isinstance(leaf, Fresh) else leaf
            for leaf in outputs.leaves
        ]
        return leaves[0] if outputs.tree.is_leaf() else pytree.tree_unflatten(leaves, outputs.tree)

    def _is_known(
        self, op: torch._ops.OpOverload, kind: _Kind, call: Call, inputs: list[torch.Tensor]
    ) -> bool:
        """Whether the op can run for real: small, and fed by nothing without data."""
        if any(self.values.is_unknown(tensor) for tensor in inputs):
            return False
        if not all(is_small(tensor.numel(), tensor.dtype) for tensor in inputs):
            return False
        if kind.written:
            return True
        try:
            outputs = self._infer(op, call)
        except (NotImplementedError, RuntimeError):
            # The size depends on values: they are known and few, so run it.
            return True
        return all(
            is_small(leaf.num_bytes // leaf.dtype.itemsize, leaf.dtype) for leaf in outputs.fresh()
        )

    def _infer(self, op: torch._ops.OpOverload, call: Call) -> Outputs:
        number = self.log.calls[call]
        if number not in self._outputs:
            self._outputs[number] = infer_outputs(op, call)
        return self._outputs[number]

    def _make_tensor(self, leaf: Fresh, ran: Ran) -> torch.Tensor:
        if leaf.num_bytes == 0:
            ran.blocks.append(self._new_block(leaf.size, leaf.dtype, 0, ran))
            return torch.empty_strided(leaf.size, leaf.stride, dtype=leaf.dtype)
        tensor = self.values.memory.tensor(
            leaf.size, leaf.stride, leaf.dtype, leaf.num_bytes, self._freed
        )
        number = self._new_block(leaf.size, leaf.dtype, leaf.num_bytes, ran)
        self._blocks[storage_address(tensor)] = number
        ran.blocks.append(number)
        return tensor

    def _adopt(self, result: Any, ran: Ran) -> None:
        """Logs the tensors that a real run of an op made."""
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                address = storage_address(tensor)
                num_bytes = extent_bytes(list(tensor.shape), list(tensor.stride()), tensor.dtype)
                number = self._new_block(list(tensor.shape), tensor.dtype, num_bytes, ran)
                ran.blocks.append(number)
                if num_bytes:
                    ran.real[address] = self._blocks[address] = number
                    self.values.know(address)

    def _new_block(self, size: list[int], dtype: torch.dtype, num_bytes: int, ran: Ran) -> int:
        name = f"{str(dtype).removeprefix('torch.')}{size}"
        block = Block(num_bytes, ran.op, ran.module, name, num_bytes // dtype.itemsize)
        if block.numel == self._loss_numel:
            block.use = Use.LOSS
        self.log.blocks.append(block)
        return len(self.log.blocks) - 1

    def _freed(self, address: int) -> None:
        number = self._blocks.pop(address)
        if not self._closed:
            self._leave_mark()
            self.log.entries.append(Died(number, len(self.log.phases) - 1, self._marks))

    def _note_loss(self, call: Call) -> None:
        """Blocks as large as the logits, made in this phase, are the loss's."""
        self._loss_numel = numel = call.tensors()[0].numel
        for block in self.log.blocks[self._first_of_phase :]:
            if block.numel == numel:
                block.use = Use.LOSS

    def _learn_kind(self, op: torch._ops.OpOverload) -> _Kind:
        written = tuple(
            (position, argument.name)
            for position, argument in enumerate(op._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        returned = [value.alias_info is not None for value in op._schema.returns]
        name = op.name().partition(".")[0]
        written = tuple(entry for entry in written if entry[1] not in _STAY_KNOWN.get(name, ()))
        composite = not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CPU") and (
            torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
        )
        kind = self._kinds[op] = _Kind(name, written, bool(returned) and all(returned), composite)
        return kind


_UNSAFE_VIEWS = {"aten::_unsafe_view", "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"}
"""Ops that return views and do not say so, for autograd's sake."""

_VIEWS: list[str] = []


def _view_ops() -> list[str]:
    """Ops that return views and write nothing: they take no memory, and need no Python."""
    if not _VIEWS:
        for name in torch._C._dispatch_get_all_op_names():
            if not name.startswith("aten::"):
                continue
            base, _, overload = name.partition(".")
            schema = torch._C._get_schema(base, overload)
            writes = any(a.alias_info and a.alias_info.is_write for a in schema.arguments)
            aliases = any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
            if (aliases and not writes) or name in _UNSAFE_VIEWS:
                _VIEWS.append(name.removeprefix("aten::"))
    return _VIEWS
