"""From plain JSON data to a dataclass, each value checked against the type of its field.

A plan may be written by hand: ``"seq_len": "1024"`` should be refused when it is read, by name,
and not surface as a TypeError in the middle of a run.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

R = TypeVar("R")


@functools.cache
def _hints(record: type[object]) -> dict[str, Any]:
    return get_type_hints(record)


def from_plain(record: type[R], data: Any) -> R:
    """Builds ``record`` from a JSON object.

    Raises:
        TypeError: a field is missing, unknown, or holds another type.
        ValueError: from the record's own checks.
    """
    if not isinstance(data, dict):
        raise TypeError(f"{record.__name__} is {data!r:.40}, not an object")
    hints = _hints(record)  # type: ignore[arg-type]  # mypy 11469: a type is hashable
    for name, value in data.items():
        if name in hints and not fits(value, hints[name]):
            raise TypeError(f"{record.__name__}.{name} is {value!r:.40}, not {_say(hints[name])}")
    return record(**data)


def fits(value: Any, hint: Any) -> bool:
    """Whether ``value`` is of the type ``hint``; an int is a float too, a bool is no number."""
    if hint is Any:
        return True
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in get_args(hint))
    if origin is Mapping:
        keys, values = get_args(hint)
        return isinstance(value, dict) and all(
            fits(k, keys) and fits(v, values) for k, v in value.items()
        )
    if origin is tuple:
        (item, _) = get_args(hint)
        return isinstance(value, tuple) and all(fits(one, item) for one in value)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, (int, float))
    return isinstance(value, hint)


def _say(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
