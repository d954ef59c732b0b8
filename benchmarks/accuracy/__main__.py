"""Predicts every row, prints the table, and writes docs/accuracy.md.

    python -m benchmarks.accuracy [--only TEXT] [--processes 2]

``--only`` takes the rows whose group or name contains the text, and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.accuracy.markdown import page
from benchmarks.accuracy.rows import load
from benchmarks.accuracy.text import table
from benchmarks.accuracy.workers import run

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="rows whose group or name contains this text")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    started = time.perf_counter()
    rows = [row for row in load() if options.only.lower() in f"{row.group} {row.name}".lower()]
    predictions, comparisons = run(rows, options.processes, with_recordings=not options.only)
    print(table(rows, predictions, comparisons))
    print(f"\n{len(rows)} rows in {time.perf_counter() - started:.0f} s")
    if not options.only:
        PAGE.write_text(page(rows, predictions, comparisons))
        print(f"Wrote {PAGE.relative_to(PAGE.parents[1])}")
    return int(any(prediction.error for prediction in predictions))


if __name__ == "__main__":
    sys.exit(main())
