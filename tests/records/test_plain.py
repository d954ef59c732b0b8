"""Values from JSON are checked against the type of their field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from memfit.records.plain import from_plain


@dataclass
class Shelf:
    label: str
    num_books: int
    width: float = 1.0
    owner: str | None = None
    prices: Mapping[str, int] | None = None
    notes: Mapping[str, Any] | None = None
    shelves: tuple[int, ...] = ()


@pytest.mark.parametrize(
    "data",
    [
        {"label": "a", "num_books": 3},
        {"label": "a", "num_books": 3, "width": 2},
        {"label": "a", "num_books": 3, "owner": None},
        {"label": "a", "num_books": 3, "prices": {"x": 1}, "notes": {"x": [1]}, "shelves": (1, 2)},
    ],
)
def test_values_of_the_declared_types_build_the_record(data: dict[str, Any]) -> None:
    assert from_plain(Shelf, data) == Shelf(**data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 3}, "Shelf.label is 3, not str"),
        ({"num_books": "3"}, "Shelf.num_books is '3', not int"),
        ({"num_books": 3.0}, r"Shelf.num_books is 3\.0, not int"),
        ({"num_books": True}, "Shelf.num_books is True, not int"),
        ({"width": True}, "Shelf.width is True, not float"),
        ({"owner": 1}, r"Shelf.owner is 1, not str \| None"),
        ({"prices": {"x": "1"}}, "Shelf.prices is"),
        ({"prices": [1]}, "Shelf.prices is"),
        ({"shelves": (1, "2")}, "Shelf.shelves is"),
        ({"colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        from_plain(Shelf, {"label": "a", "num_books": 3} | change)


def test_a_missing_field_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="num_books"):
        from_plain(Shelf, {"label": "a"})


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Shelf is \[1, 2\], not an object"):
        from_plain(Shelf, [1, 2])
