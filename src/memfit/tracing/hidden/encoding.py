"""Calls as JSON, to send them to another process and to name them in the cache."""

from __future__ import annotations

from typing import Any

import torch

from memfit.tracing.calls import Call, TensorSpec

_TORCH_NAMES = (torch.dtype, torch.memory_format, torch.layout)


def call_to_json(call: Call) -> dict[str, Any]:
    """A call as plain data."""
    return {
        "op": call.op,
        "args": [_encode(value) for value in call.args],
        "kwargs": [[name, _encode(value)] for name, value in call.kwargs],
    }


def call_from_json(data: dict[str, Any]) -> Call:
    """The call that :func:`call_to_json` wrote."""
    return Call(
        data["op"],
        tuple(_decode(value) for value in data["args"]),
        tuple((name, _decode(value)) for name, value in data["kwargs"]),
    )


def _encode(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        dtype = str(value.dtype)
        return {"tensor": [value.shape, value.stride, dtype, value.offset, value.storage]}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, _TORCH_NAMES):
        return {"torch": str(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"an argument of type {type(value).__name__} cannot be sent")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if isinstance(value, dict):
        if "torch" in value:
            return getattr(torch, value["torch"].removeprefix("torch."))
        if "device" in value:
            return torch.device(value["device"])
        shape, stride, dtype, offset, storage = value["tensor"]
        dtype = getattr(torch, dtype.removeprefix("torch."))
        return TensorSpec(tuple(shape), tuple(stride), dtype, offset, storage)
    return value
