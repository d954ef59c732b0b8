"""Aims of the techniques benchmark are judged by figures, and medians are taken of steps."""

from dataclasses import replace

import pytest

from benchmarks.techniques.contenders import (
    CHUNKED,
    FULL,
    GROUPS,
    LOOP,
    MAIN,
    PLAIN,
    TRAINERS,
    Contender,
    quick,
    samples_of,
)
from benchmarks.techniques.jobs import recipe_of
from benchmarks.techniques.results import Result, aims, summarise


def result(contender: Contender, peak: int, speed: float) -> Result:
    return Result(contender=contender, tensor_peak_bytes=peak, tokens_per_cpu_second=speed)


def verdicts(*results: Result) -> dict[str, bool]:
    return {aim.words: aim.passed for aim in aims(MAIN, results)}


def test_half_the_peak_takes_the_fastest_row_that_has_it() -> None:
    rows = [result(TRAINERS[0], 1000, 100.0), result(CHUNKED, 500, 96.0), result(FULL, 100, 80.0)]
    assert verdicts(*rows)["half the peak of Trainer, stock at 0.95 of its speed"]
    rows[1] = result(CHUNKED, 501, 96.0)
    assert not verdicts(*rows)["half the peak of Trainer, stock at 0.95 of its speed"]


def test_a_failed_row_is_no_candidate() -> None:
    rows = [result(TRAINERS[0], 1000, 100.0), Result(contender=CHUNKED, error="killed")]
    (aim,) = aims(MAIN, rows)
    assert aim.found == "no row has half the peak"


def test_the_step_of_memfit_may_take_two_percent_more_than_the_loop() -> None:
    words = f"{PLAIN.title} at most 1.02 of the time of {LOOP.title}"
    assert verdicts(result(LOOP, 1, 102.0), result(PLAIN, 1, 100.0))[words]
    assert not verdicts(result(LOOP, 1, 103.0), result(PLAIN, 1, 100.0))[words]


def test_the_first_step_and_untimed_ones_are_left_out_of_the_median() -> None:
    step = {"num_tokens": 100, "cpu_seconds": 1.0, "resident_peak_bytes": 70}
    answers = [
        {**step, "cpu_seconds": 50.0},
        {**step, "is_timed": False, "cpu_seconds": 0.0, "tensor_peak_bytes": 30, "live_bytes": 9},
        {**step, "cpu_seconds": 2.0},
        step,
        {**step, "cpu_seconds": 4.0},
    ]
    found = summarise(PLAIN, {"floor_bytes": 35}, answers, 30)
    assert (found.tokens_per_cpu_second, found.tensor_peak_bytes) == (50.0, 30)
    assert found.above_bytes == 70 - 35 - 30


@pytest.mark.parametrize("group", [*GROUPS, *map(quick, GROUPS)], ids=lambda group: group.name)
def test_every_recipe_of_the_benchmark_is_one(group) -> None:  # type: ignore[no-untyped-def]
    for one in group.contenders:
        assert recipe_of(one, group.size).is_settled


def test_keys_are_rows_of_one_table_each() -> None:
    keys = [one.key for group in GROUPS for one in group.contenders]
    twice = {key for key in keys if keys.count(key) > 1}
    # The large vocabulary repeats rows of the small one, which is the one that pages quote.
    assert twice <= {one.key for one in MAIN.contenders}


def test_samples_count_the_accumulated_ones() -> None:
    one = replace(PLAIN, recipe={"batch_size": 1, "accumulate": 8})
    assert (samples_of(one, MAIN.size), samples_of(PLAIN, MAIN.size)) == (8, 8)
