"""The tensors of a model and an optimizer in safetensors files.

Both are written from where they lie and read back into where they belong, one at a time: neither
way holds a second copy of the weights.  (A tensor that is not contiguous is copied to be saved.)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

_SAME_AS = "same tensor as"
"""Stands for a tensor that is saved under another name."""


def model_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Parameters and persistent buffers by name, and ``other name -> name`` of those that are tied.

    A tensor with several names (GPT-2's embedding is its head) is listed under the first.
    """
    first_names: dict[object, str] = {}
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first = first_names.setdefault(_place(tensor), name)
        if first == name:
            tensors[name] = tensor
        else:
            aliases[name] = first
    return tensors, aliases


def describe_model(model: nn.Module) -> dict[str, str]:
    """What must be alike for one model to take the other's tensors, by name.

    As in ``float32[768, 64]``, ``float32[64] frozen``, ``tied to embedding.weight``.
    """
    tensors, aliases = model_tensors(model)
    descriptions = {name: _describe(tensor) for name, tensor in tensors.items()}
    return descriptions | {alias: f"tied to {name}" for alias, name in aliases.items()}


def optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's state by ``kind.parameter``, as in ``exp_avg.head.weight``.

    Returns the tensors, and apart from them what is not a tensor.  A tensor that several parameters
    have in common (the tables of bitsandbytes) is listed once; for the others it says which.
    """
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    first_names: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            full_name = f"{kind}.{name}"
            if not isinstance(value, Tensor):
                scalars[full_name] = value
            elif (first := first_names.setdefault(id(value), full_name)) != full_name:
                scalars[full_name] = {_SAME_AS: first}
            else:
                tensors[full_name] = value
    return tensors, scalars


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file.

    Raises:
        SafetensorError, OSError: it cannot be written.
    """
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)


def read_model(path: Path, model: nn.Module) -> None:
    """Copies the file's tensors into the model's.

    Raises:
        SafetensorError, OSError: it cannot be read, or has not the tensors of this model.
        ValueError: a tensor has another shape or dtype.
    """
    tensors, _ = model_tensors(model)
    with _reading(path) as file, torch.no_grad():
        for name, tensor in tensors.items():
            saved = file.get_tensor(name)
            if (saved.shape, saved.dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(f"{name} is {_describe(saved)}, not {_describe(tensor)}")
            tensor.copy_(saved)


def read_optimizer(
    path: Path, scalars: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Gives the optimizer the file's state and ``scalars``, in place of what it had.

    A tensor goes to the device of its parameter, or stays on the host where the optimizer says
    ``state_is_on_host``; a count of steps does where the optimizer's kernel
    reads it there (``Optimizer._process_value_according_to_param_policy`` in torch).

    Raises:
        SafetensorError, OSError: it cannot be read.
        KeyError: it is for a parameter that the model has not.
    """
    parameters = dict(model.named_parameters())
    counts_on_device = {
        parameter
        for group in optimizer.param_groups
        if group.get("fused") or group.get("capturable")
        for parameter in group["params"]
    }
    on_host = getattr(optimizer, "state_is_on_host", False)
    optimizer.state.clear()
    states: dict[Tensor, dict[str, Any]] = {}
    with _reading(path) as file:
        for full_name in file.offset_keys():
            kind, _, name = full_name.partition(".")
            parameter, saved = parameters[name], file.get_tensor(full_name)
            on_device = saved.dim() > 0 or parameter in counts_on_device
            on_device = on_device and not on_host
            value = _like(parameter, saved, parameter.device if on_device else "cpu")
            states.setdefault(parameter, {})[kind] = value.copy_(saved)
    for full_name, scalar in scalars.items():
        kind, _, name = full_name.partition(".")
        if isinstance(scalar, Mapping) and _SAME_AS in scalar:
            first_kind, _, first = scalar[_SAME_AS].partition(".")
            scalar = states[parameters[first]][first_kind]
        states.setdefault(parameters[name], {})[kind] = scalar
    for owner, state in states.items():
        optimizer.state[owner] = state


def _like(parameter: Tensor, saved: Tensor, device: torch.device | str) -> Tensor:
    """Room for a tensor of the state; one number a parameter lies as the parameter does."""
    if saved.shape == parameter.shape and saved.is_floating_point():
        return torch.empty_like(parameter, dtype=saved.dtype, device=device)
    return torch.empty_like(saved, device=device)


def _reading(path: Path) -> safe_open:
    # Mapped pages count as resident, and to torch's profiler the whole mapping is a tensor.
    return safe_open(path, "pt", backend="pread")


def _describe(tensor: Tensor) -> str:
    frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)}{' frozen' if frozen else ''}"


def _place(tensor: Tensor) -> object:
    """What two names of one tensor agree in, and two tensors do not."""
    if tensor.numel() == 0:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
