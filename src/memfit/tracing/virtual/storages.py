"""Storages on the virtual GPU as Python sees them, and copies of whole storages.

C++ keeps a storage's size and address for good; where Python frees or regrows one in place, as
FSDP does, the ledger follows.
"""

from __future__ import annotations

from typing import Any

import torch

from memfit.tracing.memory import storage_address
from memfit.tracing.virtual.blocks import CPU_KEYS
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.memory import is_virtual

_Storage: Any = torch.UntypedStorage
_CUDA = torch.device("cuda", 0)
_device_of = _Storage.device.__get__


def is_virtual_storage(storage: torch.UntypedStorage) -> bool:
    """Whether the storage lies on the virtual GPU."""
    return bool(_device_of(storage).type not in ("cpu", "meta"))


def whole_like(gpu: Dispatch, tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """A view like ``tensor`` of a copy of its storage, which the memo keeps for other views."""
    address = storage_address(tensor)
    key = ("storage of the virtual GPU", address)
    num_bytes = gpu.storage_bytes(tensor)
    base = memo.get(key)
    if base is None:
        base = memo[key] = block_like(gpu, tensor, num_bytes)
    offset = int(tensor.storage_offset())
    twin = view_of(base, offset, tensor.size(), tensor.stride(), tensor.dtype)
    known = gpu.shadows.of(tensor)
    values = gpu.shadows.give(twin, num_bytes)
    if known is not None and values is not None:
        values.copy_(known)
    return twin


def block_like(gpu: Dispatch, like: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """A fresh block, contiguous: of the tensor's shape or numel where it covers its storage."""
    covers = like.numel() * like.element_size() == num_bytes
    if covers and like.is_contiguous():
        return gpu.empty(list(like.shape), None, like.dtype, "aten::clone")
    if covers:
        return gpu.empty([like.numel()], [1], like.dtype, "aten::clone")
    return gpu.empty([num_bytes], [1], torch.uint8, "aten::clone")


def view_of(
    base: torch.Tensor, offset: int, size: Any, stride: Any, dtype: torch.dtype
) -> torch.Tensor:
    """A tensor over the storage of ``base``."""
    with torch._C._AutoDispatchBelowAutograd():
        empty = torch._C._acc.create_empty_tensor((0,), dtype)
        set_to = torch.ops.aten.set_.source_Tensor_storage_offset
        view: torch.Tensor = set_to.redispatch(CPU_KEYS, empty, base, offset, size, stride)
        return view


def install(gpu: Dispatch) -> None:
    """Replaces what Python asks of storages."""
    num_bytes_of, resize, to_host = _Storage.nbytes, _Storage.resize_, _Storage.cpu
    make, clone = _Storage.__new__, _Storage.clone

    def num_bytes(storage: Any) -> int:
        if not is_virtual_storage(storage):
            return int(num_bytes_of(storage))
        return gpu.bytes_at(storage.data_ptr())

    def resize_(storage: Any, size: int) -> Any:
        if not is_virtual_storage(storage):
            return resize(storage, size)
        gpu.resize_storage(storage.data_ptr(), int(size))
        return storage

    def cpu(storage: Any) -> Any:
        if not is_virtual_storage(storage):
            return to_host(storage)
        return make(_Storage, num_bytes(storage)).fill_(0)

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is not None and torch.device(device).type == "cuda":
            size = args[0] if args else kwargs.get("size", 0)
            return gpu.empty([int(size)], [1], torch.uint8).untyped_storage()
        return make(cls, *args, **({"device": device} if device is not None else {}), **kwargs)

    def copy(storage: Any) -> Any:
        if not is_virtual_storage(storage):
            return clone(storage)
        return gpu.empty([num_bytes(storage)], [1], torch.uint8, "aten::clone").untyped_storage()

    patched: dict[str, Any] = {
        "device": property(lambda s: _CUDA if is_virtual_storage(s) else _device_of(s)),
        "is_cuda": property(is_virtual_storage),
        "nbytes": num_bytes,
        "size": num_bytes,
        "__len__": num_bytes,
        "resize_": resize_,
        "cpu": cpu,
        "__new__": new,
        "clone": copy,
    }
    for name, value in patched.items():
        setattr(_Storage, name, value)
    tensors: Any = torch.Tensor
    copy_tensor = tensors.__deepcopy__

    def deepcopy(tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
        if not is_virtual(tensor) or not tensor.is_leaf or type(tensor) is not torch.Tensor:
            twin: torch.Tensor = copy_tensor(tensor, memo)
            return twin
        if id(tensor) not in memo:
            with torch.no_grad():
                twin = whole_like(gpu, tensor, memo)
                if tensor.requires_grad:
                    twin.requires_grad_()
                if tensor.grad is not None:
                    twin.grad = deepcopy(tensor.grad, memo)
            twin.__dict__.update(tensor.__dict__)
            memo[id(tensor)] = twin
        made: torch.Tensor = memo[id(tensor)]
        return made

    tensors.__deepcopy__ = deepcopy
