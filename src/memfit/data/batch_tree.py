"""A batch as a tree: tensors in tuples, lists and mappings, at any depth.

PyTorch's pytree knows dicts, and takes any other mapping for a leaf, as transformers'
``BatchEncoding``, which its collators give.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.utils import _pytree as pytree


def leaves(batch: Any) -> list[Any]:
    """What is neither a tuple, a list nor a mapping, in order."""
    known: Iterable[Any] = pytree.tree_leaves(batch)
    return [
        inner
        for leaf in known
        for inner in (leaves(list(leaf.values())) if isinstance(leaf, Mapping) else [leaf])
    ]


def map_leaves(change: Callable[[Any], Any], batch: Any) -> Any:
    """The batch with each leaf changed; a mapping keeps its class, and what else it holds."""

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Mapping):
            return change(leaf)
        return with_values(leaf, {name: map_leaves(change, leaf[name]) for name in leaf})

    return pytree.tree_map(changed, batch)


def with_values(mapping: Mapping[Any, Any], values: Mapping[Any, Any]) -> Any:
    """A copy of ``mapping`` with other values; a plain dict where its class takes none.

    That is what PyTorch's own loader makes of a mapping (``torch.utils.data.default_collate``).
    """
    try:
        copied = copy.copy(mapping)
        copied.update(values)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return dict(values)
    return copied
