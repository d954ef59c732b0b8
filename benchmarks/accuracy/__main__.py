"""Predicts every row, prints the table, and writes docs/accuracy.md.

    python -m benchmarks.accuracy [--only TEXT] [--processes 2]

``--only`` takes the rows whose group or name contains the text, and writes nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.accuracy import environment
from benchmarks.accuracy.alignment import Comparison
from benchmarks.accuracy.markdown import page
from benchmarks.accuracy.results import Prediction
from benchmarks.accuracy.rows import Row, load
from benchmarks.accuracy.text import table

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


def run(
    rows: Sequence[Row], num_processes: int, *, with_recordings: bool
) -> tuple[list[Prediction], list[Comparison]]:
    """Predictions of the rows and comparisons of the recordings that are here, in parallel."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(
        num_processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=environment.enter,
        initargs=(environment.install(),),
    ) as pool:
        pending = [pool.submit(predict_row, row) for row in rows]
        compared = pool.map(compare_recording, range(number_of_recordings() * with_recordings))
        return [_reported(future.result) for future in pending], list(compared)


def _reported(result: Callable[[], Prediction]) -> Prediction:
    prediction = result()
    sys.stderr.write("." if not prediction.error else "!")
    sys.stderr.flush()
    return prediction


def predict_row(row: Row) -> Prediction:
    """In a worker process: a prediction, or why there is none."""
    from benchmarks.accuracy.predict import predict

    try:
        return predict(row)
    except Exception as error:
        return Prediction(error=f"{type(error).__name__}: {error}")


def number_of_recordings() -> int:
    """How many of the recordings are here."""
    from benchmarks.accuracy.recordings import available

    return len(available())


def compare_recording(number: int) -> Comparison:
    """In a worker process: one of the recordings that are here."""
    from benchmarks.accuracy.recordings import available, compare

    return compare(available()[number])


if __name__ == "__main__":
    sys.exit(main())
