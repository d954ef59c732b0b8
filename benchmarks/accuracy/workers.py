"""Rows and recordings, predicted in processes beside each other."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor

from benchmarks.accuracy import environment
from benchmarks.accuracy.alignment import Comparison
from benchmarks.accuracy.results import Prediction
from benchmarks.accuracy.rows import Row


def run(
    rows: Sequence[Row], num_processes: int, *, with_recordings: bool
) -> tuple[list[Prediction], list[Comparison]]:
    """Predictions of the rows, and comparisons of the recordings that are here."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(
        num_processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=environment.enter,
        initargs=(environment.install(),),
    ) as pool:
        by_run: dict[Hashable, Future[Prediction]] = {}
        for row in rows:
            if _run_key(row) not in by_run:
                by_run[_run_key(row)] = pool.submit(predict_row, row)
                by_run[_run_key(row)].add_done_callback(_show_progress)
        predictions = [by_run[_run_key(row)] for row in rows]
        recordings = range(_number_of_recordings() if with_recordings else 0)
        comparisons = [pool.submit(compare_recording, number) for number in recordings]
        done = [pending.result() for pending in predictions]
        return done, [pending.result() for pending in comparisons]


def _run_key(row: Row) -> Hashable:
    """What rows of one run have in common: it is predicted once for them all."""
    names = tuple(figure.name for figure in row.figures)
    run = (row.kind, tuple(sorted(row.arguments.items())))
    return run, row.gpu, row.torch, row.addresses, row.fits, names


def predict_row(row: Row) -> Prediction:
    """In a worker process: a prediction, or why there is none."""
    from benchmarks.accuracy.predict import predict

    try:
        return predict(row)
    except Exception as error:
        return Prediction(error=f"{type(error).__name__}: {error}")


def compare_recording(number: int) -> Comparison:
    """In a worker process: one of the recordings that are here."""
    from benchmarks.accuracy.recordings import available, compare

    return compare(available()[number])


def _number_of_recordings() -> int:
    from benchmarks.accuracy.recordings import available

    return len(available())


def _show_progress(pending: Future[Prediction]) -> None:
    """A dot a row while someone looks."""
    if sys.stderr.isatty():
        failed = pending.exception() is not None or bool(pending.result().error)
        sys.stderr.write("!" if failed else ".")
        sys.stderr.flush()
