"""Runs PyTorch ops on the virtual GPU: the kernels behind every op of its tensors.

One fallback kernel of the device's dispatch key takes every op that PyTorch does not compose of
others.  It asks the op's meta kernel for the outputs, makes them without data, and takes and gives
back what CUDA's kernel takes beside them.  Views run PyTorch's own kernel, which needs no data.
Structured ops arrive in their ``.out`` form, when C++ has allocated the outputs through our
``empty_strided``, as it does for CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memfit.errors import BadInput
from memfit.tracing.calls import (
    Call,
    TensorSpec,
    argument_of,
    call_below,
    describe,
    rebuild,
    wrap_numbers,
)
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.table import UNKNOWN, sequence
from memfit.tracing.hidden.sequences import Give, Keep, Output, Sequence, Take
from memfit.tracing.log import Use
from memfit.tracing.modules import ModulePaths
from memfit.tracing.shapes import Fresh, Outputs, infer_outputs
from memfit.tracing.values import is_small, user_line
from memfit.tracing.virtual.blocks import CPU_KEYS, DeviceBlocks
from memfit.tracing.virtual.kinds import Handler, Kind, kind_of
from memfit.tracing.virtual.ledger import Ledger
from memfit.tracing.virtual.memory import is_virtual
from memfit.tracing.virtual.outputs import OnHost, as_cuda


class Dispatch(DeviceBlocks):
    """The virtual GPU's kernels: the blocks of its tensors, and the ops that make them."""

    def __init__(
        self,
        device: torch.device,
        ledger: Ledger,
        modules: ModulePaths,
        kernels: Kernels,
        handlers: dict[str, Handler],
    ) -> None:
        super().__init__(device, ledger, modules)
        self.libraries: list[torch.library.Library] = []
        """What keeps the kernels registered."""

        self.unknown_scratch: set[str] = set()
        """Ops that ran whose kernels take something that no formula tells."""

        self.facts: dict[str, str] = {}
        """What the run asked for and got otherwise: the Timeline's facts say so."""

        self._kernels = kernels
        self._handlers = handlers
        self._kinds: dict[int, Kind] = {}
        """By the op's id: ops live as long as the process, and hashing one runs Python."""

        self._outputs: dict[Call, Outputs] = {}
        self._sequences: dict[tuple[Call, int, bool], Sequence | None] = {}
        self._kept: set[tuple[str, bool, int]] = set()

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
                return self.make_inside(
                    op,
                    args,
                    kwargs,
                    lambda: pytree.tree_map_only(
                        torch.Tensor, lambda values: self.with_values(values, kind.name), known
                    ),
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
                    self.fill(made, known[place])

        if kind.is_covered:
            self._take_beside(kind, call, count, output)
        for index in range(count):
            output(index)
        leaves = [leaf.make() if isinstance(leaf, OnHost) else leaf for leaf in leaves]
        return leaves[0] if outputs.tree.is_leaf() else pytree.tree_unflatten(leaves, outputs.tree)

    def make_inside(
        self,
        op: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        make: Callable[[], Any],
    ) -> Any:
        """What ``make`` gives, called where the op's kernel makes its first output."""
        kind = self._kinds[id(op)]
        made: list[Any] = []

        def output(index: int) -> None:
            if not made:
                made.append(make())

        if kind.is_covered:
            call, _ = describe(op, args, kwargs, tell_host=True)
            self._take_beside(kind, call, 1, output)
        output(0)
        return made.pop()

    def _take_beside(
        self, kind: Kind, call: Call, num_outputs: int, output: Callable[[int], None]
    ) -> None:
        """Goes through what happens inside a call."""
        deterministic = torch.are_deterministic_algorithms_enabled()
        key = (call, num_outputs, deterministic)
        if key not in self._sequences:
            on_card = replace(
                self._kernels,
                deterministic=deterministic,
                cublas_workspace_config=os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
            )
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
        values = [argument_of(args, kwargs, position, name) for position, name in kind.written]
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

    # ------------------------------------------------------------------ values

    def _are_known(self, tensors: list[torch.Tensor]) -> bool:
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
        kind = self._kinds[id(op)] = kind_of(op, self._handlers)
        if kind.name in UNKNOWN:
            self.unknown_scratch.add(kind.name)
        return kind


def _sizes_of_outs(op: torch._ops.OpOverload, call: Call) -> list[list[int]]:
    """What an ``out`` variant makes of its ``out`` arguments."""

    def to_meta(spec: TensorSpec) -> torch.Tensor:
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")

    args, kwargs = rebuild(call, to_meta)
    return [list(tensor.shape) for tensor in pytree.tree_leaves(call_below(op, args, kwargs))]


def _tensors_in(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors_in(value)
    return found
