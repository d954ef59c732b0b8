"""The catalog of cards: what each can hold and how fast it is, with where every figure stands.

The figures live in ``catalog.toml`` beside this file, so they can be read and corrected without
reading code.  ``find`` understands what people type for a card: its catalog name, the label that
CUDA prints, and short forms that mean one card only.
"""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources

from memfit.errors import BadInput, UnknownName
from memfit.records.device import Device
from memfit.units import GiB

_MAKERS_WORDS = frozenset({"nvidia", "geforce", "tesla", "rtx"})
_SIZE = re.compile(r"(\d+) ?gi?b\b")


@functools.cache
def catalog() -> dict[str, Device]:
    """Every card in the catalog by name, in the order of the file.  Not to be changed."""
    text = resources.files("memfit.devices").joinpath("catalog.toml").read_text("utf-8")
    return {
        name: Device(name=name, kind="cuda", **card) for name, card in tomllib.loads(text).items()
    }


def find(name: str) -> Device:
    """The card that ``name`` means: ``rtx-4090``, ``RTX_4090``, ``4090``, ``NVIDIA L4``.

    A size in ``name`` (``a100 80GB``) must be the card's, to a tenth: makers count what drivers
    keep.

    Raises:
        UnknownName: no card is meant; the message names the nearest.
        BadInput: more than one is meant (``a100``); the message names them.
    """
    model, size = _spoken(name)
    meant = [
        card
        for card in catalog().values()
        if model in (_spoken(card.name)[0], _spoken(card.label)[0])
        and (size is None or 0.9 <= card.total_bytes / (size * GiB) <= 1.1)
    ]
    if not meant:
        see = "`memfit gpus` lists all, and --memory 24GiB takes any size"
        raise UnknownName("GPU", name, catalog(), see)
    if len(meant) > 1:
        names = " or ".join(card.name for card in meant)
        raise BadInput(f"{name!r} is more than one GPU: write {names}")
    return meant[0]


def _spoken(text: str) -> tuple[str, int | None]:
    """The model and the GB in a card's name: ``RTX 3060 12 GB`` is (``3060``, 12)."""
    text = text.lower().replace("-", " ").replace("_", " ")
    size = _SIZE.search(text)
    words = re.findall(r"[a-z]+|\d+", _SIZE.sub("", text))
    model = "".join(word for word in words if word not in _MAKERS_WORDS)
    return model, int(size[1]) if size else None
