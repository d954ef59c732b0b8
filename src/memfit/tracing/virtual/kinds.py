"""What an op is to the virtual GPU: a view, a write, random, a loss: from its schema and name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memfit.tracing.categories import LOSS_OPS
from memfit.tracing.hidden.cuda.table import COVERED

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

Handler = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
"""``(the Dispatch, op, args, kwargs)`` -> the result, or NotImplemented for the fallback's."""


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


def kind_of(op: torch._ops.OpOverload, handlers: dict[str, Handler]) -> Kind:
    """What ``op`` is; ``handlers`` are by base name."""
    schema = op._schema
    aliases = [value.alias_info for value in schema.returns]
    written = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    name = op.name().partition(".")[0]
    return Kind(
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
        is_loss=name in LOSS_OPS,
        is_covered=name in COVERED,
        handler=handlers.get(name),
    )
