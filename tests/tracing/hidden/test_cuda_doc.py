"""The page on hidden memory names every op that has a rule, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from memfit.tracing.hidden.cuda.table import COVERED

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "hidden-memory.md"


def named() -> set[str]:
    """The ops in the first column of the page's table."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [row.split("|")[1] for row in rows[2:]]
    return {f"aten::{name}" for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_page_names_every_op_that_has_a_rule() -> None:
    assert named() == set(COVERED)


def test_every_row_says_what_how_much_where_since_when_and_how_it_is_known() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7}
