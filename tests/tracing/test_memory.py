from __future__ import annotations

import itertools

import pytest
import torch

from memfit.tracing.memory import VirtualMemory, storage_address


def make(memory: VirtualMemory, freed: list[int], num_elements: int = 6) -> torch.Tensor:
    return memory.tensor([2, 3], [3, 1], torch.float32, num_elements * 4, freed.append)


def test_a_storage_is_reported_freed_once_when_its_last_view_goes() -> None:
    freed: list[int] = []
    tensor = make(VirtualMemory(), freed)
    address = storage_address(tensor)
    view = tensor[1]
    assert storage_address(view) == address
    del tensor
    assert freed == []
    del view
    assert freed == [address]


def test_storages_do_not_overlap_and_are_aligned_like_the_allocators() -> None:
    memory = VirtualMemory()
    tensors = [make(memory, []) for _ in range(20)]
    addresses = sorted(map(storage_address, tensors))
    assert all(address % 64 == 0 and address in memory for address in addresses)
    assert all(b - a >= 24 for a, b in itertools.pairwise(addresses))


def test_a_tensor_outlives_the_object_that_made_it() -> None:
    tensor = make(VirtualMemory(), [])
    assert tensor.sum().item() == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int64, torch.complex64])
def test_every_dtype_has_its_strides(dtype: torch.dtype) -> None:
    num_bytes = 6 * dtype.itemsize
    tensor = VirtualMemory().tensor([2, 3], [1, 2], dtype, num_bytes, lambda address: None)
    assert tensor.dtype is dtype
    assert tensor.stride() == (1, 2)
