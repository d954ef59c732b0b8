"""The rows of the table: what was measured, by whom, and of which run.  No torch."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from memfit.units import GiB, MiB

PATH = Path(__file__).with_name("rows.toml")

_PRINTED = re.compile(r"(\d+(?:\.(\d+))?) (MiB|GiB)")
_UNITS = {"MiB": MiB, "GiB": GiB}


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One measured number of a row."""

    name: str
    """What was measured, e.g. ``peak allocated``: the names that ``figures.read`` knows."""

    num_bytes: int

    rounding_bytes: int = 0
    """The true number lies so far around ``num_bytes`` at most: half of the last printed digit."""

    printed: str = ""
    """What the source prints; empty where it gives bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One run that someone measured."""

    name: str
    group: str
    """The rows of one source and kind of measurement, under one heading."""

    kind: str
    """Which of ``runs.RUNS`` it is."""

    url: str
    """Where the figures stand."""

    gpu: str
    """The card's name in memfit's catalog."""

    torch: str
    """Whose rules apply."""

    arguments: Mapping[str, Any]
    """What the run is called with."""

    addresses: str = "ascending"
    """How the driver of that machine puts segments: the policy of the first prediction."""

    figures: tuple[Figure, ...] = ()
    """Empty where the run ran out of memory."""

    fits: bool = True
    """Whether it ran."""

    notes: str = ""
    causes: Mapping[str, str]
    """Figure -> why the prediction differs from it, ``*`` for all; kept by hand."""

    published: Mapping[str, int]
    """Other predictors -> what they answered, in bytes."""


def group_words(path: Path = PATH) -> dict[str, str]:
    """Group -> what is assumed of its runs."""
    with path.open("rb") as file:
        groups = tomllib.load(file)["group"]
    return {name: group["words"].strip() for name, group in groups.items()}


def load(path: Path = PATH) -> tuple[Row, ...]:
    """The rows in the order of the file."""
    with path.open("rb") as file:
        document = tomllib.load(file)
    return tuple(_row(**fields) for fields in document["row"])


def _row(measured: Mapping[str, int | str] | None = None, **fields: Any) -> Row:
    figures = tuple(figure(name, value) for name, value in (measured or {}).items())
    return Row(figures=figures, **{"causes": {}, "published": {}} | fields)


def figure(name: str, value: int | str) -> Figure:
    """A figure from what ``rows.toml`` says: bytes, or text as printed by its source.

    Raises:
        ValueError: the text is not a number with MiB or GiB.
    """
    if isinstance(value, int):
        return Figure(name=name, num_bytes=value)
    match = _PRINTED.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is neither bytes nor a number with MiB or GiB")
    unit = _UNITS[match[3]]
    half_digit = Fraction(unit, 2 * 10 ** len(match[2] or ""))
    return Figure(
        name=name,
        num_bytes=round(Fraction(match[1]) * unit),
        rounding_bytes=round(half_digit),
        printed=value,
    )
