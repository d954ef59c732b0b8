"""Tensors of the virtual GPU, and the blocks of memory behind them."""

from __future__ import annotations

from math import prod

import torch

from memfit.tracing.hidden.cuda.steps import ESTIMATE
from memfit.tracing.log import Use
from memfit.tracing.memory import contiguous_strides, extent_bytes, storage_address
from memfit.tracing.modules import ModulePaths
from memfit.tracing.virtual.ledger import Ledger
from memfit.tracing.virtual.memory import DeviceMemory
from memfit.tracing.virtual.values import Shadows

CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""The kernels of views, which touch sizes only, serve any device from here."""

_MAKES_EMPTY = {"aten::empty", "aten::empty_strided"}


class DeviceBlocks:
    """Makes tensors, each in a block of the ledger, and knows whose block is whose."""

    def __init__(self, device: torch.device, ledger: Ledger, modules: ModulePaths) -> None:
        self.device = device
        self.ledger = ledger
        self.shadows = Shadows()
        self.memory = DeviceMemory(self._freed)
        self.stream = 0
        """The number of the current CUDA stream."""

        self._modules = modules
        self._numbers: dict[int, int] = {}
        """Address of a storage -> number of its block."""

        self._loss_numel = 0
        """Elements of the logits, once a loss was seen in this span."""

        self._closed = False

    # ------------------------------------------------------------------ what the tracer asks

    def use(self, tensors: list[torch.Tensor], use: Use) -> None:
        """Says what the blocks behind these tensors are."""
        for tensor in tensors:
            number = self.number_of(tensor)
            if number is not None:
                block = self.ledger.blocks[number]
                # What is copied from the host may be known to be more.
                if use not in (Use.INPUT, Use.SAVED) or block.use is Use.UNKNOWN:
                    block.use = use

    def name_block(self, tensor: torch.Tensor, module: str) -> None:
        """Says whose the block behind a tensor is, which was made before its owner had a name."""
        number = self.number_of(tensor)
        if number is not None:
            self.ledger.blocks[number].module = module

    def call_estimate(self, tensor: torch.Tensor) -> None:
        """Says that the size of the block behind a tensor is only estimated."""
        number = self.number_of(tensor)
        if number is not None:
            self.ledger.blocks[number].origin = ESTIMATE

    def begin_phase(self, name: str, step: int) -> None:
        """What follows belongs to this phase of this step."""
        self._loss_numel = 0
        self.ledger.begin(name, step)

    def close(self) -> None:
        """What dies from now on dies with the process."""
        self._closed = True

    def storage_bytes(self, tensor: torch.Tensor) -> int:
        """Bytes of the storage behind a tensor of this device."""
        number = self.number_of(tensor)
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

    def number_of(self, tensor: torch.Tensor) -> int | None:
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
        self.fill(tensor, values)
        return tensor

    def fill(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Makes the values of a tensor known, where it is small."""
        shadow = self.shadows.give(tensor, self.storage_bytes(tensor))
        if shadow is not None and values.numel():
            shadow.copy_(values)

    def _freed(self, address: int) -> None:
        self.shadows.forget_address(address)
        number = self._numbers.pop(address, None)
        if number is not None and not self._closed:
            self.ledger.free(number)

    def take(self, num_bytes: int, op: str, origin: str) -> int:
        """Scratch of a kernel; the block's number, for ``ledger.free``."""
        return self.ledger.take(
            num_bytes, op, self._modules.current(), origin=origin, stream=self.stream
        )

    def name_made(self, tensors: list[torch.Tensor], op: str) -> None:
        """These tensors, if C++ or a factory made them empty, were made for ``op`` to write."""
        blocks = self.ledger.blocks
        for tensor in tensors:
            number = self.number_of(tensor)
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
