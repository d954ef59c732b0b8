"""What earlier calls measured, a file a group under build/, so that the table can be made in parts.

A file is gone with ``make clean``.  No torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from benchmarks.techniques.contenders import Group
from benchmarks.techniques.results import Result

FOLDER = Path(__file__).parents[2] / "build" / "techniques"


class Measured(NamedTuple):
    """A group's results, and under what they were found."""

    results: Sequence[Result]
    when: str
    torch: str


def keep(group: Group, results: Sequence[Result], folder: Path = FOLDER) -> None:
    """Writes the group's file, in place of an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(one), "contender": one.contender.key} for one in results]
    content = {"when": date.today().isoformat(), "torch": version("torch"), "rows": rows}
    path = _path(folder, group)
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
    partial.replace(path)


def stored(groups: Sequence[Group], folder: Path = FOLDER) -> dict[str, Measured]:
    """What is there of ``groups``, but not of one whose contenders have changed since."""
    found = {}
    for group in groups:
        path = _path(folder, group)
        if not path.exists():
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        keys = [one.key for one in group.contenders]
        if [row["contender"] for row in content["rows"]] != keys:
            continue
        results = [
            Result(**{**row, "contender": one})
            for row, one in zip(content["rows"], group.contenders, strict=True)
        ]
        found[group.name] = Measured(results, content["when"], content["torch"])
    return found


def _path(folder: Path, group: Group) -> Path:
    return folder / f"{group.name.replace(' ', '-')}.json"
