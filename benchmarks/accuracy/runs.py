"""The runs that rows name by kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.accuracy import bert, course_a_runs, course_b_runs, single_ops, xmem
from benchmarks.accuracy.rows import Row
from memfit.observer import Observer

RUNS: dict[str, Callable[..., None]] = {
    "course-a": course_a_runs.train,
    "course-a-forward": course_a_runs.forward_only,
    "course-b": course_b_runs.train,
    "course-b-forward": course_b_runs.forward,
    "attention": single_ops.attention,
    "head-and-loss": single_ops.head_and_cross_entropy,
    "bert": bert.train,
    "xmem": xmem.train,
}


def run_of(row: Row, **changes: Any) -> Callable[[Observer], None]:
    """The run of a row, ready to be traced; ``changes`` replace some of its arguments."""
    return partial(RUNS[row.kind], **{**row.arguments, **changes})
