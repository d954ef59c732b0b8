"""Tensors on the virtual GPU: a size, an address, and nothing behind it.

A tensor is made by ``from_dlpack`` from a description in a few bytes.  The description is one that
numpy wrote for a small array, with the device, the address and the shape changed: when PyTorch
frees the storage it calls the description's deleter, numpy's drops the array, and a weak reference
to that tells us.  Two simpler ways would not do:

- A storage object made in Python stays attached to the storage and raises its reference count; and
  autograd, which adds gradients in place only to a storage that nobody else holds, would then take
  memory that a GPU does not.
- A deleter made by ctypes must not run while an exception is raised, and tensors die then too;
  callbacks of weak references are safe there.

Addresses lie in a reserved range without backing, so that C++ which reads one by mistake finds
zeros and not a segmentation fault.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable

import numpy as np
import torch

from memfit.tracing.memory import reserve_addresses

_REGION_BYTES = 1 << 44

_ALIGNMENT = 512
"""Of every block of CUDA's caching allocator; kernels choose by alignment."""

_EXTERNAL_DEVICE = 12
"""kDLExtDev of dlpack.h, which PyTorch maps to PrivateUse1 (aten/src/ATen/DLConvertor.cpp)."""

_DESCRIPTION = struct.Struct("<QiiiBBHQQQ")
"""The DLTensor at the start of dlpack.h's DLManagedTensor, on a 64-bit machine: data, device type,
device id, dims, dtype code, bits, lanes, shape*, strides*, byte offset."""

_Description = ctypes.c_char * _DESCRIPTION.size

_SIGNED, _UNSIGNED, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_DTYPES = {
    torch.float16: (_FLOAT, 16),
    torch.float32: (_FLOAT, 32),
    torch.float64: (_FLOAT, 64),
    torch.bfloat16: (_BFLOAT, 16),
    torch.bool: (_BOOL, 8),
    torch.uint8: (_UNSIGNED, 8),
    torch.uint16: (_UNSIGNED, 16),
    torch.uint32: (_UNSIGNED, 32),
    torch.uint64: (_UNSIGNED, 64),
    torch.int8: (_SIGNED, 8),
    torch.int16: (_SIGNED, 16),
    torch.int32: (_SIGNED, 32),
    torch.int64: (_SIGNED, 64),
    torch.complex64: (_COMPLEX, 64),
    torch.complex128: (_COMPLEX, 128),
}
"""dtype -> (code, bits) of DLDataType; any other dtype is made from bytes (``_of_bytes``)."""

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Watch(weakref.ref["np.ndarray"]):
    """Calls back when the array behind a storage is dropped, and knows the storage's address."""

    __slots__ = ("address",)
    address: int


class DeviceMemory:
    """Makes tensors on the virtual GPU and tells when their storages die.

    Args:
        on_free: called with a storage's address when PyTorch frees it, in whichever thread does.

    Raises:
        MemfitError: the system refuses so much address space.
    """

    def __init__(self, on_free: Callable[[int], None]) -> None:
        self._region = reserve_addresses(_REGION_BYTES)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._region))
        self._next = self._base
        self._end = self._base + _REGION_BYTES
        self._on_free = on_free
        self._watches: dict[int, _Watch] = {}
        self._lock = threading.Lock()

    def tensor(
        self, size: list[int], stride: list[int], dtype: torch.dtype, num_bytes: int
    ) -> tuple[torch.Tensor, int]:
        """A plain tensor in a fresh storage of ``num_bytes``, and the storage's address."""
        known = _DTYPES.get(dtype)
        if known is None:
            return self._of_bytes(size, stride, dtype, num_bytes)
        with self._lock:
            address = self._free_address(num_bytes)
        dims = len(size)
        array = np.array((*size, *stride), dtype=np.int64)  # the shape that PyTorch will read
        capsule = array.__dlpack__()
        description = _Description.from_address(_pointer_of(capsule, b"dltensor"))
        shape = _DESCRIPTION.unpack_from(description)[0]
        _DESCRIPTION.pack_into(
            description,
            0,
            address,
            _EXTERNAL_DEVICE,
            0,
            dims,
            *known,
            1,
            shape,
            shape + 8 * dims,
            0,
        )
        watch = self._watches[address] = _Watch(array, self._dropped)
        watch.address = address
        return torch._C._from_dlpack(capsule), address

    def _free_address(self, num_bytes: int) -> int:
        """Where no living storage starts.

        At the end of the range it begins anew.  Two storages may then overlap, which does no harm:
        nobody touches them, and they are told apart by where they start.
        """
        if self._next + num_bytes > self._end:
            self._next = self._base
        while self._next in self._watches:
            self._next += _ALIGNMENT
        address = self._next
        self._next += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT or _ALIGNMENT
        return address

    def _of_bytes(
        self, size: list[int], stride: list[int], dtype: torch.dtype, num_bytes: int
    ) -> tuple[torch.Tensor, int]:
        """A tensor of a dtype that DLPack has no word for, over a storage of bytes."""
        flat, address = self.tensor([num_bytes], [1], torch.uint8, num_bytes)
        empty = torch._C._acc.create_empty_tensor((0,), dtype)
        with torch._C._AutoDispatchBelowAutograd():
            set_to = torch.ops.aten.set_.source_Tensor_storage_offset
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
            return set_to.redispatch(keys, empty, flat, 0, size, stride), address

    def _dropped(self, watch: _Watch) -> None:
        del self._watches[watch.address]
        self._on_free(watch.address)


def is_virtual(tensor: torch.Tensor) -> bool:
    """Whether the tensor lives on the virtual GPU: host and meta tensors have no device index."""
    return torch._C.TensorBase.get_device(tensor) >= 0
