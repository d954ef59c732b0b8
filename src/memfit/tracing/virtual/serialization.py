"""Saving and loading on the virtual GPU: tensors without values become descriptions of themselves.

``torch.save`` under a path writes nothing there (``saved_files``); into an open file it writes the
descriptions.  ``torch.load`` gives back what was saved in the trace, and loads real checkpoints,
whose tensors it moves to the GPU where they belong there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from memfit.tracing.virtual.child import before_leaving
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.host import HostMemory
from memfit.tracing.virtual.memory import is_virtual
from memfit.tracing.virtual.saved_files import SavedFiles
from memfit.tracing.virtual.storages import block_like, view_of

_FIRST = 0
"""Before torch's own packages, which begin at 10 (torch/serialization.py)."""

_KNOW_SAFETENSORS = ("safetensors", "transformers", "accelerate", "diffusers", "peft")
"""Packages that may have imported ``save_file`` by name before a trace began."""


class _Loading:
    """What a load that is under way has moved to the GPU."""

    def __init__(self, map_location: Any) -> None:
        self.map_location = map_location
        self.to_gpu: dict[int, torch.UntypedStorage] = {}
        """Storages that belong on the GPU, by address."""

        self.bases: dict[Any, torch.Tensor] = {}
        """Blocks made for them, and for descriptions, by storage."""

    def wants_gpu(self) -> bool:
        """Whether what was saved from the GPU goes there again."""
        wanted = self.map_location
        if isinstance(wanted, dict):
            wanted = wanted.get("cuda:0", "cuda:0")
        if callable(wanted):
            moved = wanted(torch.UntypedStorage(1), "cuda:0")
            return moved is None or moved.data_ptr() in self.to_gpu
        return wanted is None or torch.device(wanted).type == "cuda"


class _Saved:
    """The one place of this process that makes tensors from descriptions."""

    gpu: Dispatch
    host: HostMemory
    loading: _Loading | None = None


def rebuild(
    key: int,
    num_bytes: int,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    requires_grad: bool,
    is_on_gpu: bool,
    values: torch.Tensor | None,
) -> torch.Tensor:
    """The tensor that a description is of; those of one storage share one again."""
    gpu, loading = _Saved.gpu, _Saved.loading
    bases = loading.bases if loading is not None else {}
    like = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    if is_on_gpu and (loading is None or loading.wants_gpu()):
        base = bases.get(key)
        if base is None:
            base = bases[key] = block_like(gpu, like, num_bytes)
        tensor = view_of(base, offset, size, stride, dtype)
        if values is not None:
            known = gpu.shadows.give(tensor, num_bytes)
            if known is not None:
                known.copy_(values)
    elif values is not None:
        tensor = values
    else:
        tensor = _Saved.host.unknown_like(like)
    return tensor.requires_grad_(requires_grad)


def install(gpu: Dispatch, host: HostMemory) -> None:
    """Replaces what pickles, saves and loads."""
    _Saved.gpu, _Saved.host = gpu, host
    torch.serialization.add_safe_globals([rebuild])
    files = SavedFiles()
    files.install()
    before_leaving(files.close)
    _install_pickling()
    _install_torch(files)
    _install_safetensors(files)


def _install_pickling() -> None:
    tensors: Any = torch.Tensor
    reduce = tensors._reduce_ex_internal
    gpu, host = _Saved.gpu, _Saved.host

    def described(tensor: torch.Tensor, protocol: int) -> Any:
        on_gpu = is_virtual(tensor)
        if not on_gpu and not host.holds(tensor):
            return reduce(tensor, protocol)
        address = tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()
        num_bytes = gpu.storage_bytes(tensor) if on_gpu else 0
        return rebuild, (
            address,
            num_bytes,
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.dtype,
            tensor.requires_grad,
            on_gpu,
            gpu.shadows.of(tensor) if on_gpu else None,
        )

    tensors._reduce_ex_internal = described


def _install_torch(files: SavedFiles) -> None:
    package: Any = torch
    write, read = torch.save, torch.load

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        write(obj, files.make(f) if isinstance(f, (str, os.PathLike)) else f, *args, **kwargs)

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        outer, _Saved.loading = _Saved.loading, _Loading(map_location)
        try:
            return read(files.find(f), map_location, *args, **kwargs)
        finally:
            _Saved.loading = outer

    package.save = package.serialization.save = save
    package.load = package.serialization.load = load

    def restore(storage: Any, location: str) -> Any:
        """Marks a storage that is loaded as one of the GPU's; its tensors are made there."""
        if not location.startswith("cuda") or _Saved.loading is None:
            return None
        _Saved.loading.to_gpu[storage.data_ptr()] = storage
        return storage

    package.serialization.register_package(_FIRST, lambda storage: None, restore)
    package.UntypedStorage.cuda = lambda storage, *device, **how: (
        restore(storage, "cuda") or storage
    )
    make = package._utils._rebuild_tensor

    def rebuild_loaded(storage: Any, offset: int, size: Any, stride: Any) -> torch.Tensor:
        tensor: torch.Tensor = make(storage, offset, size, stride)
        address = storage._untyped_storage.data_ptr()
        loading = _Saved.loading
        if loading is None or not tensor.is_cpu or address not in loading.to_gpu:
            return tensor
        base = loading.bases.get(address)
        num_bytes = storage._untyped_storage.nbytes()
        if base is None:
            base = loading.bases[address] = block_like(_Saved.gpu, tensor, num_bytes)
        there = view_of(base, offset, size, stride, tensor.dtype)
        known = _Saved.gpu.shadows.give(there, num_bytes)
        if known is not None:
            known.copy_(tensor)
        return there

    package._utils._rebuild_tensor = rebuild_loaded


def _install_safetensors(files: SavedFiles) -> None:
    try:
        import safetensors
        import safetensors.torch as format_module
    except ImportError:
        return
    write, read = format_module.save_file, format_module.load_file

    def save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
        torch.save(tensors, filename)

    def load_file(filename: Any, device: Any = "cpu") -> Any:
        place = files.find(filename)
        if place is filename:
            return {name: tensor.to(device) for name, tensor in read(filename).items()}
        return torch.load(place, map_location=device)

    open_real = safetensors.safe_open

    def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", **how: Any) -> Any:
        place = files.find(filename)
        if place is filename:
            return open_real(filename, framework=framework, device=device, **how)
        return _OpenedFile(torch.load(place, map_location=device))

    _replace_everywhere(open_real, safe_open)
    _replace_everywhere(write, save_file)
    _replace_everywhere(read, load_file)


class _OpenedFile:
    """What ``safe_open`` gives of a file that was saved in the trace; a slice is its tensor."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __enter__(self) -> _OpenedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def keys(self) -> list[str]:
        return list(self._tensors)

    def metadata(self) -> dict[str, str]:
        return {"format": "pt"}

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    get_slice = get_tensor


def _replace_everywhere(function: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """In the module that defines a function, and in those that imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _KNOW_SAFETENSORS:
            for attribute, value in list(vars(module).items()):
                if value is function:
                    setattr(module, attribute, replacement)
