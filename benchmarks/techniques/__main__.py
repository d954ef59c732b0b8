"""Measures every technique, prints the tables, and writes docs/techniques.md and the how-to pages.

    python -m benchmarks.techniques [--quick] [--only TEXT]

``--quick`` takes a model of milliseconds to try the benchmark itself, ``--only`` the groups whose
name contains the text; both write nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.techniques.contenders import GROUPS, quick
from benchmarks.techniques.markdown import asked_for, page, sentence, table, with_measured
from benchmarks.techniques.results import Result, aims
from benchmarks.techniques.rounds import run_group

DOCS = Path(__file__).parents[2] / "docs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a model of milliseconds")
    parser.add_argument("--only", default="", help="groups whose name contains this text")
    options = parser.parse_args()
    started = time.perf_counter()

    def on_progress(line: str) -> None:
        print(f"[{time.perf_counter() - started:4.0f} s] {line}", flush=True)

    results: dict[str, Sequence[Result]] = {}
    for group in GROUPS:
        if options.only.lower() not in group.name:
            continue
        group = quick(group) if options.quick else group
        found = results[group.name] = run_group(group, on_progress, is_quick=options.quick)
        print("\n".join(table(group, found)))
        for aim in aims(group, found):
            print(f"{'pass' if aim.passed else 'miss'}: {aim.words}: {aim.found}", flush=True)
        if not options.quick and not options.only:  # each time: a stopped run leaves its part
            write(results)
    return int(any(one.error for found in results.values() for one in found))


def write(results: Mapping[str, Sequence[Result]]) -> None:
    """The page of tables, and the measured cost on each how-to page."""
    (DOCS / "techniques.md").write_text(page(results, GROUPS), encoding="utf-8")
    sentences = {
        one.contender.key: sentence(group, one, results[group.name])
        for group in reversed(GROUPS)
        if group.name in results
        for one in results[group.name]
        if not one.error
    }
    for path in sorted((DOCS / "how-to").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for key in asked_for(text):
            if key not in sentences and len(results) == len(GROUPS):
                print(f"{path.name} asks for {key}, which was not measured")
        path.write_text(with_measured(text, sentences), encoding="utf-8")
    print(f"Wrote docs/techniques.md and docs/how-to ({len(results)} of {len(GROUPS)} groups)")


if __name__ == "__main__":
    sys.exit(main())
