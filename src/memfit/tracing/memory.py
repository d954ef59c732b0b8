"""Memory that is not there: tensors with a size and an address, and no pages behind them.

One range of address space is reserved without backing, and each tensor is given a piece of it.  A
kernel that never touches its data can be given such tensors in place of real ones; code that does
touch them by mistake reads zeros or commits a page, instead of crashing.

A tensor holds its piece as a memoryview, so a weak reference to that tells when PyTorch frees the
storage.  Asking a tensor for its storage object instead would raise the storage's reference count,
and autograd, which adds gradients in place only to a storage that nobody else holds, would behave
differently from the real run.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import weakref
from collections.abc import Callable

import torch

from memfit.errors import MemfitError

_REGION_BYTES = 1 << 44
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40
"""The mmap module names it from Python 3.13 on (Linux: asm-generic/mman.h, macOS: sys/mman.h)."""

_ALIGNMENT = 64
"""c10's gAlignment for CPU allocations (c10/core/alignment.h): kernels see the same alignment."""


class VirtualMemory:
    """A range of addresses that is handed out piece by piece, from the start again at its end.

    Raises:
        MemfitError: the system refuses so much address space.
    """

    def __init__(self) -> None:
        region = reserve_addresses(_REGION_BYTES)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self._view = memoryview(region)
        self._offset = 0
        self._watches: dict[int, weakref.ref[memoryview]] = {}

    def __contains__(self, address: int) -> bool:
        return self._base <= address < self._base + _REGION_BYTES

    def tensor(
        self,
        size: list[int],
        stride: list[int],
        dtype: torch.dtype,
        num_bytes: int,
        on_free: Callable[[int], None],
    ) -> torch.Tensor:
        """A plain CPU tensor in a fresh storage of ``num_bytes`` (at least 1) without memory.

        ``on_free`` is called with the storage's address when PyTorch frees it.
        """
        if self._offset + num_bytes > _REGION_BYTES:
            self._offset = 0
        start = self._offset
        self._offset += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        address = self._base + start
        piece = self._view[start : start + num_bytes]

        def freed(_: weakref.ref[memoryview]) -> None:
            del self._watches[address]
            on_free(address)

        self._watches[address] = weakref.ref(piece, freed)
        flat = torch.frombuffer(piece, dtype=dtype)
        return flat.as_strided(size, stride)


def reserve_addresses(num_bytes: int) -> mmap.mmap:
    """A range of address space that nothing backs.

    Raises:
        MemfitError: the system refuses so much.
    """
    for is_last in (False, True):
        try:
            return mmap.mmap(
                -1,
                num_bytes,
                flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        except OSError as error:
            if is_last:
                raise MemfitError(
                    f"cannot reserve {num_bytes >> 40} TiB of address space for tracing "
                    f"({error.strerror}): is it limited by `ulimit -v`?"
                ) from error
            gc.collect()  # ranges of former traces may wait in reference cycles
    raise AssertionError


def storage_address(tensor: torch.Tensor) -> int:
    """Where the tensor's storage starts; tells storages apart without touching the object."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def extent_bytes(size: list[int], stride: list[int], dtype: torch.dtype) -> int:
    """Bytes from the first to the last element: what ``empty_strided`` allocates."""
    last = 1
    for extent, step in zip(size, stride, strict=True):
        if extent == 0:
            return 0
        last += (extent - 1) * step
    return last * dtype.itemsize


def contiguous_strides(size: list[int]) -> list[int]:
    """Strides of a row-major tensor."""
    strides = [1] * len(size)
    for dim in range(len(size) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(size[dim + 1], 1)
    return strides
