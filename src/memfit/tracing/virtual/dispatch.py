"""Runs PyTorch ops on the virtual GPU: the kernels behind every op of its tensors.

One fallback kernel of the device's dispatch key takes every op that PyTorch does not compose of
others.  It asks the op's meta kernel for the outputs, makes them without data, and takes and gives
back what CUDA's kernel takes beside them.  Views run PyTorch's own kernel, which needs no data.
Structured ops arrive in their ``.out`` form, when C++ has allocated the outputs through our
``empty_strided``, as it does for CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memfit.errors import BadInput
from memfit.tracing.calls import Call, TensorSpec, call_below, describe, rebuild, wrap_numbers
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import ESTIMATE
from memfit.tracing.hidden.cuda.table import COVERED, UNKNOWN, sequence
from memfit.tracing.hidden.sequences import Give, Keep, Output, Sequence, Take
from memfit.tracing.log import Use
from memfit.tracing.memory import storage_address
from memfit.tracing.modules import ModulePaths
from memfit.tracing.shapes import Fresh, Outputs, infer_outputs
from memfit.tracing.values import is_small, user_line
from memfit.tracing.virtual.ledger import Ledger
from memfit.tracing.virtual.memory import DeviceMemory, contiguous_strides, extent_bytes, is_virtual
from memfit.tracing.virtual.outputs import OnHost, as_cuda
from memfit.tracing.virtual.values import Shadows

CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""The kernels of views, which touch sizes only, serve any device from here."""

_MAKES_EMPTY = {"aten::empty", "aten::empty_strided"}

_MIXES_DEVICES = {
    "aten::copy_",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_foreach_copy_",
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::set_",
}
"""Ops that take host tensors beside the device's, as indices or as what is copied."""

_OVERWRITES = {
    "aten::fill_",
    "aten::zero_",
    "aten::copy_",
    "aten::random_",
    "aten::normal_",
    "aten::uniform_",
    "aten::bernoulli_",
    "aten::exponential_",
}
"""In-place ops that do not read what they write into."""

_LOSS_OPS = {
    "aten::_log_softmax",
    "aten::binary_cross_entropy",
    "aten::binary_cross_entropy_with_logits",
    "aten::mse_loss",
}
"""Ops whose first argument is what a loss is computed from: blocks of its size are its logits."""

Handler = Callable[["Dispatch", Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What the schema of an op says, and who serves it."""

    name: str
    """``aten::add_``, without the overload."""

    is_view: bool
    written: tuple[tuple[int, str], ...]
    """(position, name) of the arguments it writes."""

    outs: frozenset[str]
    """Names of its ``out`` arguments."""

    returns_written: bool
    is_random: bool
    overwrites: bool
    """Whether it does not read what it writes into."""

    mixes_devices: bool
    is_sized_by_values: bool
    is_loss: bool
    is_covered: bool
    """Whether its kernel may take memory beside its outputs."""

    handler: Handler | None


class Dispatch:
    """The virtual GPU's kernels over a ledger."""

    def __init__(
        self,
        device: torch.device,
        ledger: Ledger,
        modules: ModulePaths,
        kernels: Kernels,
        handlers: dict[str, Handler],
    ) -> None:
        self.device = device
        self.ledger = ledger
        self.shadows = Shadows()
        self.memory = DeviceMemory(self._freed)
        self.stream = 0
        """The number of the current CUDA stream."""

        self.libraries: list[torch.library.Library] = []
        """What keeps the kernels registered."""

        self.unknown_scratch: set[str] = set()
        """Ops that ran whose kernels take something that no formula tells."""

        self.facts: dict[str, str] = {}
        """What the run asked for and got otherwise: the Timeline's facts say so."""

        self._modules = modules
        self._kernels = kernels
        self._handlers = handlers
        self._kinds: dict[int, Kind] = {}
        """By the op's id: ops live as long as the process, and hashing one runs Python."""

        self._outputs: dict[Call, Outputs] = {}
        self._sequences: dict[tuple[Call, int, bool], Sequence | None] = {}
        self._numbers: dict[int, int] = {}
        self._kept: set[tuple[str, bool, int]] = set()
        self._loss_numel = 0
        self._closed = False

    # ------------------------------------------------------------------ what the tracer asks

    def use(self, tensors: list[torch.Tensor], use: Use) -> None:
        """Says what the blocks behind these tensors are."""
        for tensor in tensors:
            number = self._number_of(tensor)
            if number is not None:
                block = self.ledger.blocks[number]
                # What is copied from the host is an input, unless it is known to be more.
                if use is not Use.INPUT or block.use is Use.UNKNOWN:
                    block.use = use

    def name_block(self, tensor: torch.Tensor, module: str) -> None:
        """Says whose the block behind a tensor is, which was made before its owner had a name."""
        number = self._number_of(tensor)
        if number is not None:
            self.ledger.blocks[number].module = module

    def call_estimate(self, tensor: torch.Tensor) -> None:
        """Says that the size of the block behind a tensor is only estimated."""
        number = self._number_of(tensor)
        if number is not None:
            self.ledger.blocks[number].origin = ESTIMATE

    def begin(self, phase: str, step: int) -> None:
        """What follows belongs to this phase of this step."""
        self._loss_numel = 0
        self.ledger.begin(phase, step)

    def close(self) -> None:
        """What dies from now on dies with the process."""
        self._closed = True

    def storage_bytes(self, tensor: torch.Tensor) -> int:
        """Bytes of the storage behind a tensor of this device."""
        number = self._number_of(tensor)
        return 0 if number is None else self.ledger.blocks[number].num_bytes

    def bytes_at(self, address: int) -> int:
        """Bytes of the storage at an address."""
        number = self._numbers.get(address)
        return 0 if number is None else self.ledger.blocks[number].num_bytes

    def resize_storage(self, address: int, num_bytes: int) -> None:
        """``storage.resize_``: CUDA takes the new memory before it frees the old."""
        old = self._numbers.pop(address, None)
        if num_bytes:
            module = self._modules.current()
            self._numbers[address] = self.ledger.take(
                num_bytes,
                "resize_",
                module,
                dtype=torch.uint8,
                size=[num_bytes],
                stream=self.stream,
            )
        if old is not None:
            self.ledger.free(old)
        self.shadows.forget_address(address)

    def _number_of(self, tensor: torch.Tensor) -> int | None:
        return self._numbers.get(storage_address(tensor)) if tensor.numel() else None

    # ------------------------------------------------------------------ making tensors

    def empty(
        self, size: list[int], stride: list[int] | None, dtype: torch.dtype, op: str = "aten::empty"
    ) -> torch.Tensor:
        """A tensor in a block of its own, without values."""
        if stride is None:
            stride = contiguous_strides(size)
            num_bytes = prod(size) * dtype.itemsize
        else:
            num_bytes = extent_bytes(size, stride, dtype)
        tensor, address = self.memory.tensor(size, stride, dtype, num_bytes)
        if num_bytes:
            number = self.ledger.take(
                num_bytes,
                op,
                self._modules.current(),
                dtype=dtype,
                size=size,
                numel=num_bytes // dtype.itemsize,
                in_module=self._modules.in_forward,
                stream=self.stream,
            )
            self._numbers[address] = number
            if num_bytes // dtype.itemsize == self._loss_numel:
                self.ledger.blocks[number].use = Use.LOSS
        return tensor

    def with_values(self, values: torch.Tensor, op: str) -> torch.Tensor:
        """A tensor of this device that holds ``values``, a host tensor, where it is small."""
        tensor = self.empty(list(values.shape), list(values.stride()), values.dtype, op)
        self._fill(tensor, values)
        return tensor

    def _fill(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Makes the values of a tensor known, where it is small."""
        shadow = self.shadows.give(tensor, self.storage_bytes(tensor))
        if shadow is not None and values.numel():
            shadow.copy_(values)

    def _freed(self, address: int) -> None:
        self.shadows.forget_address(address)
        number = self._numbers.pop(address, None)
        if number is not None and not self._closed:
            self.ledger.free(number)

    # ------------------------------------------------------------------ the fallback kernel

    def run(self, op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        """The kernel of ``op``."""
        kind = self._kinds.get(id(op)) or self._learn_kind(op)
        if kind.handler is not None:
            answer = kind.handler(self, op, args, kwargs)
            if answer is not NotImplemented:
                return answer
        if kind.is_view:
            return op.redispatch(CPU_KEYS, *args, **kwargs)
        tensors = _tensors_in(args)
        if kwargs:
            tensors += _tensors_in(kwargs.values())
        self._check_devices(kind, tensors)
        if kind.written:
            return self._write(op, kind, args, kwargs, tensors)
        if tensors and not kind.is_random and self._are_known(tensors):
            known = self._run_on_shadows(op, args, kwargs)
            if known is not NotImplemented and kind.is_sized_by_values:
                return pytree.tree_map_only(
                    torch.Tensor, lambda values: self.with_values(values, kind.name), known
                )
            if known is not NotImplemented:
                return self._make(op, kind, args, kwargs, pytree.tree_leaves(known))
        return self._make(op, kind, args, kwargs)

    def _make(
        self,
        op: torch._ops.OpOverload,
        kind: Kind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: list[Any] | None = None,
    ) -> Any:
        """The outputs of a call, and what its kernel takes beside them.

        ``known`` are the outputs as the host's kernel gives them, where they are known.
        """
        call, _ = describe(op, args, kwargs, tell_host=True)
        if known is None and kind.is_loss:
            self._note_loss(call)
        outputs = self.infer(op, call)
        leaves = list(outputs.leaves)
        waiting = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Fresh)]
        count = len(waiting)

        def output(index: int) -> None:
            place = waiting[index]
            leaf = leaves[place]
            if isinstance(leaf, Fresh):
                leaves[place] = made = self.empty(leaf.size, leaf.stride, leaf.dtype, kind.name)
                if known is not None:
                    self._fill(made, known[place])

        if kind.is_covered:
            self._take_beside(kind, call, count, output)
        for index in range(count):
            output(index)
        leaves = [leaf.make() if isinstance(leaf, OnHost) else leaf for leaf in leaves]
        return leaves[0] if outputs.tree.is_leaf() else pytree.tree_unflatten(leaves, outputs.tree)

    def _take_beside(
        self, kind: Kind, call: Call, num_outputs: int, output: Callable[[int], None]
    ) -> None:
        """Goes through what happens inside a call."""
        deterministic = torch.are_deterministic_algorithms_enabled()
        key = (call, num_outputs, deterministic)
        if key not in self._sequences:
            on_card = replace(self._kernels, deterministic=deterministic)
            self._sequences[key] = sequence(call, num_outputs, on_card)
        inside = self._sequences[key]
        if inside is None:
            return
        scratch: dict[int, int] = {}
        for event in inside.events:
            if isinstance(event, Output):
                if event.index < num_outputs:
                    output(event.index)
            elif isinstance(event, Take):
                scratch[event.slot] = self.take(event.num_bytes, kind.name, inside.origin)
            elif isinstance(event, Give):
                self.ledger.free(scratch.pop(event.slot))
            elif isinstance(event, Keep):
                self._keep(event, inside.origin)
        for number in scratch.values():
            self.ledger.free(number)

    def take(self, num_bytes: int, op: str, origin: str) -> int:
        """Scratch of a kernel; the block's number, for ``ledger.free``."""
        return self.ledger.take(
            num_bytes, op, self._modules.current(), origin=origin, stream=self.stream
        )

    def _keep(self, event: Keep, origin: str) -> None:
        """Handles and their workspaces belong to a thread: autograd's has its own."""
        in_engine = torch._C._current_graph_task_id() != -1
        key = (event.name, in_engine, self.stream)
        if key not in self._kept:
            self._kept.add(key)
            self.take(event.num_bytes, event.name, origin)

    def _write(
        self,
        op: torch._ops.OpOverload,
        kind: Kind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        """An op that writes into its arguments: their values, and what its kernel takes."""
        values = [_argument(args, kwargs, position, name) for position, name in kind.written]
        written = [tensor for tensor in _tensors_in(values) if is_virtual(tensor)]
        returns = op._schema.returns
        if kind.outs:
            self._adopt_outputs(op, kind, args, kwargs, written)
        elif kind.overwrites:
            self.name_made(written, kind.name)
        if kind.is_covered or kind.is_loss:
            call, _ = describe(op, args, kwargs, tell_host=True)
            if kind.is_loss:
                self._note_loss(call)
            if kind.is_covered and (kind.returns_written or not returns):
                self._take_beside(kind, call, 0, lambda index: None)
        read = tensors
        if kind.outs or kind.overwrites:
            # An in-place structured op arrives as op.out(x, ..., out=x): arguments decide.
            read = _tensors_in(args[1:] if kind.overwrites else args)
            read += _tensors_in([v for name, v in kwargs.items() if name not in kind.outs])
        random = kind.is_random and any(t.dtype.is_floating_point for t in written)
        if (
            random
            or not self._are_known(read)
            or not self._write_shadows(op, written, args, kwargs)
        ):
            for tensor in written:
                self.shadows.forget(tensor)
        if kind.returns_written:
            return values[0] if len(returns) == 1 else tuple(values[: len(returns)])
        return self._make(op, kind, args, kwargs) if returns else None

    def _write_shadows(
        self,
        op: torch._ops.OpOverload,
        written: list[torch.Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bool:
        for tensor in written:
            if self.shadows.give(tensor, self.storage_bytes(tensor)) is None:
                return False
        return self._run_on_shadows(op, args, kwargs) is not NotImplemented

    def _adopt_outputs(
        self,
        op: torch._ops.OpOverload,
        kind: Kind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        written: list[torch.Tensor],
    ) -> None:
        """Names the blocks that C++ made for this op; resizes those it left empty for us."""
        if not all(tensor.numel() for tensor in written):
            call, _ = describe(op, args, kwargs, tell_host=True)
            for tensor, size in zip(written, _sizes_of_outs(op, call), strict=False):
                if list(tensor.shape) != size:
                    self.resize(tensor, size)
        # In place, the op writes into a tensor that it was given to read: not made for it.
        self.name_made(
            [tensor for tensor in written if not any(tensor is operand for operand in args)],
            kind.name,
        )

    def name_made(self, tensors: list[torch.Tensor], op: str) -> None:
        """These tensors, if C++ or a factory made them empty, were made for ``op`` to write."""
        blocks = self.ledger.blocks
        for tensor in tensors:
            number = self._number_of(tensor)
            if number is not None and blocks[number].op in _MAKES_EMPTY:
                blocks[number].op = op

    def resize(self, tensor: torch.Tensor, size: list[int]) -> None:
        """``resize_``: a larger block where the storage is too small, row-major."""
        strides = contiguous_strides(size)
        needed = extent_bytes(size, strides, tensor.dtype)
        offset = int(tensor.storage_offset())
        set_to = torch.ops.aten.set_.source_Tensor_storage_offset
        source = tensor
        if needed + offset * tensor.element_size() > self.storage_bytes(tensor):
            source = self.empty(size, strides, tensor.dtype)
        set_to.redispatch(CPU_KEYS, tensor, source, offset, size, strides)

    # ------------------------------------------------------------------ values

    def _are_known(self, tensors: list[torch.Tensor]) -> bool:
        if len(tensors) > 64:
            return False
        return all(
            (not is_virtual(tensor) or self.shadows.is_known(tensor))
            and is_small(tensor.numel(), tensor.dtype)
            for tensor in tensors
        )

    def _run_on_shadows(
        self, op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The op on the host, over values; NotImplemented where the host has no such kernel."""
        host_args = [self._to_host(value) for value in args]
        host_kwargs = {name: self._to_host(value) for name, value in kwargs.items()}
        wrap_numbers(op, host_args, host_kwargs, "cpu")
        try:
            return op(*host_args, **host_kwargs)
        except (NotImplementedError, RuntimeError):
            return NotImplemented

    def _to_host(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.shadows.of(value) if is_virtual(value) else value
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, (list, tuple)):
            return [self._to_host(item) for item in value]
        return value

    # ------------------------------------------------------------------ shapes

    def infer(self, op: torch._ops.OpOverload, call: Call) -> Outputs:
        """What the call returns.

        Raises:
            BadInput: the op has no meta kernel, or its result's size depends on unknown values.
        """
        outputs = self._outputs.get(call)
        if outputs is None:
            try:
                outputs = as_cuda(call, infer_outputs(op, call, like_cuda=True))
                self._outputs[call] = outputs
            except NotImplementedError as error:
                raise BadInput(
                    f"{user_line()}: what {op.name()} returns cannot be told without data, or "
                    "PyTorch has no shape rule (meta kernel) for it; compute it from the inputs, "
                    "use torch.where in place of a mask as index, or register a fake kernel of "
                    "the op"
                ) from error
        return outputs

    def _check_devices(self, kind: Kind, tensors: list[torch.Tensor]) -> None:
        """Refuses host tensors among the device's, as CUDA's kernels do."""
        if kind.mixes_devices:
            return
        for tensor in tensors:
            if tensor.is_cpu and tensor.dim() > 0:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, cuda:0 and cpu! (when checking argument in method wrapper_CUDA_"
                    f"{kind.name.partition('::')[2]})"
                )

    def _note_loss(self, call: Call) -> None:
        """Blocks as large as the logits, made in this span, are the loss's."""
        self._loss_numel = numel = call.tensors()[0].numel
        for block in self.ledger.blocks[self.ledger.first_of_span :]:
            if block.numel == numel and block.dtype is not None:
                block.use = Use.LOSS

    def _learn_kind(self, op: torch._ops.OpOverload) -> Kind:
        schema = op._schema
        aliases = [value.alias_info for value in schema.returns]
        written = tuple(
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        name = op.name().partition(".")[0]
        if name in UNKNOWN:
            self.unknown_scratch.add(name)
        kind = self._kinds[id(op)] = Kind(
            name,
            is_view=any(alias is not None and not alias.is_write for alias in aliases),
            written=written,
            outs=frozenset(argument.name for argument in schema.arguments if argument.is_out),
            returns_written=bool(aliases) and all(alias is not None for alias in aliases),
            is_random=torch.Tag.nondeterministic_seeded in op.tags,
            overwrites=name in _OVERWRITES,
            mixes_devices=name in _MIXES_DEVICES
            or name.startswith(("aten::_foreach", "aten::_fused_")),
            is_sized_by_values=torch.Tag.dynamic_output_shape in op.tags,
            is_loss=name in _LOSS_OPS,
            is_covered=name in COVERED,
            handler=self._handlers.get(name),
        )
        return kind


def _sizes_of_outs(op: torch._ops.OpOverload, call: Call) -> list[list[int]]:
    """What an ``out`` variant makes of its ``out`` arguments."""

    def to_meta(spec: TensorSpec) -> torch.Tensor:
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")

    args, kwargs = rebuild(call, to_meta)
    return [list(tensor.shape) for tensor in pytree.tree_leaves(call_below(op, args, kwargs))]


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if position < len(args) else kwargs.get(name)


def _tensors_in(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors_in(value)
    return found
