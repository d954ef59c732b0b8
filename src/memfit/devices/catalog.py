"""The catalog of cards: what each can hold and how fast it is, with where every figure stands.

The figures live in ``catalog.toml`` beside this file, so they can be read and corrected without
reading code.  ``find`` understands what people type for a card: its catalog name, the label that
CUDA prints, and short forms that mean one card only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from memfit.devices.derived import completed, rates, table
from memfit.errors import BadInput, UnknownName
from memfit.records.device import Device
from memfit.units import GiB

_MAKERS_WORDS = frozenset({"nvidia", "geforce", "tesla", "rtx", "gpu", "generation"})
_SIZE = re.compile(r"(\d+) ?gi?b\b")
_PACKAGE = re.compile(r"\bsxm\d?\b|\bhbm\de?\b")
"""How a chip is mounted and fed, in labels of cards that have one such form in the catalog."""


@functools.cache
def catalog() -> dict[str, Device]:
    """Every card in the catalog by name, in the order of the file.  Not to be changed."""
    return {name: _card(name, entry) for name, entry in table("catalog.toml").items()}


def _card(name: str, entry: Mapping[str, Any]) -> Device:
    figures = {field: value for field, value in entry.items() if field not in _CLOCKS}
    sources = {field: text for field, text in entry["sources"].items() if field not in _CLOCKS}
    if "rates" in entry:
        computed, origins = rates(entry)
        figures = computed | figures
        sources = origins | sources
    return completed(Device(name=name, kind="cuda", **(figures | {"sources": sources})))


_CLOCKS = ("rates", "boost_hz", "tensor_hz")
"""What an entry gives only so that its rates can be computed."""


def matches(name: str) -> list[Device]:
    """The cards that ``name`` may mean; none when it is no card's name.

    A size in ``name`` (``a100 80GB``) must be the card's, to a tenth: makers count what drivers
    keep.  A number that is no card's model (``6000``) means every card whose name has it.
    """
    labelled = [card for card in catalog().values() if card.label.lower() == name.lower().strip()]
    if labelled:
        return labelled
    model, size = _spoken(name)
    cards = catalog().values()
    meant = [card for card in cards if model in (_spoken(card.name)[0], _spoken(card.label)[0])]
    if not meant and model.isdigit():
        meant = [card for card in cards if model in card.name.split("-")]
    return [card for card in meant if size is None or 0.9 <= card.total_bytes / (size * GiB) <= 1.1]


def find(name: str) -> Device:
    """The card that ``name`` means: ``rtx-4090``, ``RTX_4090``, ``4090``, ``NVIDIA L4``.

    Raises:
        UnknownName: no card is meant; the message names the nearest.
        BadInput: more than one is meant (``a100``); the message names them.
    """
    meant = matches(name)
    if not meant:
        see = (
            "`memfit gpus` lists all; for a card that is not among them, take one of its "
            "generation and give its size with --memory"
        )
        raise UnknownName("GPU", name, catalog(), see)
    if len(meant) > 1:
        names = " or ".join(card.name for card in meant)
        raise BadInput(f"{name!r} is more than one GPU: write {names}")
    return meant[0]


def _spoken(text: str) -> tuple[str, int | None]:
    """The model and the GB in a card's name: ``RTX 3060 12 GB`` is (``3060``, 12)."""
    text = text.lower().replace("-", " ").replace("_", " ")
    size = _SIZE.search(text)
    words = re.findall(r"[a-z]+|\d+", _PACKAGE.sub("", _SIZE.sub("", text)))
    model = "".join(word for word in words if word not in _MAKERS_WORDS)
    return model, int(size[1]) if size else None
