"""Measures every technique, prints the tables, and writes docs/techniques.md and the how-to pages.

    python -m benchmarks.techniques [--quick] [--only TEXT]

``--only`` runs the groups whose name contains the text, and keeps what earlier calls found of the
others.  ``--quick`` takes a model of milliseconds to try the benchmark itself, and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.techniques.contenders import GROUPS, quick
from benchmarks.techniques.markdown import (
    asked_for,
    described,
    page,
    sentence,
    table,
    with_measured,
)
from benchmarks.techniques.results import aims
from benchmarks.techniques.rounds import run_group
from benchmarks.techniques.stored import keep, stored

DOCS = Path(__file__).parents[2] / "docs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a model of milliseconds")
    parser.add_argument("--only", default="", help="the group of this name")
    options = parser.parse_args()
    started = time.perf_counter()

    def on_progress(line: str) -> None:
        print(f"[{time.perf_counter() - started:4.0f} s] {line}", flush=True)

    failed = False
    for group in GROUPS:
        if options.only and options.only.lower() != group.name:
            continue
        group = quick(group) if options.quick else group
        found = run_group(group, on_progress, is_quick=options.quick)
        failed = failed or any(one.error for one in found)
        print("\n".join(table(group, found)))
        for aim in aims(group, found):
            print(f"{'pass' if aim.passed else 'miss'}: {aim.words}: {aim.found}", flush=True)
        if not options.quick:  # each time: a stopped run leaves its part
            keep(group, found)
            write()
    return int(failed)


def write() -> None:
    """The page of tables, and the measured cost on each how-to page."""
    measured = stored(GROUPS)
    (DOCS / "techniques.md").write_text(page(measured, GROUPS), encoding="utf-8")
    groups = [group for group in GROUPS if group.name in measured]
    said = {
        f"table:{one.name}": "\n".join(
            [described(one), "", *table(one, measured[one.name].results)]
        )
        for one in groups
    }
    said |= {
        one.contender.key: sentence(group, one, measured[group.name].results)
        for group in reversed(groups)
        for one in measured[group.name].results
        if not one.error
    }
    for path in sorted((DOCS / "how-to").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for key in asked_for(text):
            if key not in said and len(groups) == len(GROUPS):
                print(f"{path.name} asks for {key}, which was not measured")
        path.write_text(with_measured(text, said), encoding="utf-8")
    print(f"Wrote docs/techniques.md and docs/how-to ({len(groups)} of {len(GROUPS)} groups)")


if __name__ == "__main__":
    sys.exit(main())
