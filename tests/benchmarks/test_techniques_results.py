"""Aims of the techniques benchmark are judged by figures, and medians are taken of steps."""

from dataclasses import replace

import pytest

from benchmarks.techniques.contenders import (
    FULL,
    GROUPS,
    LOOP,
    LOSS,
    MAIN,
    PLAIN,
    SELECTIVE,
    SEQUENCES,
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


def test_half_the_peak_is_asked_of_one_row_and_at_its_speed() -> None:
    words = f"{SELECTIVE.title}: half the peak of Trainer, stock at 0.95 of its speed"
    stock = result(TRAINERS[0], 1000, 100.0)
    better = result(FULL, 100, 120.0)
    assert verdicts(stock, better, result(SELECTIVE, 500, 95.0))[words]
    assert not verdicts(stock, better, result(SELECTIVE, 501, 95.0))[words]
    assert not verdicts(stock, better, result(SELECTIVE, 500, 94.0))[words]


def test_an_aim_with_a_failed_row_is_left_out() -> None:
    rows = [result(TRAINERS[0], 1000, 100.0), Result(contender=SELECTIVE, error="killed")]
    assert aims(MAIN, rows) == []


def test_the_loss_alone_is_to_take_a_tenth() -> None:
    full, chunked = LOSS.contenders[:2]
    words = f"{chunked.title}: a tenth of the memory of {full.title}"
    assert verdicts(result(full, 1000, 1.0), result(chunked, 100, 1.0))[words]
    assert not verdicts(result(full, 1000, 1.0), result(chunked, 101, 1.0))[words]


def test_documents_are_timed_together() -> None:
    step = {"num_tokens": 100, "cpu_seconds": 1.0, "resident_peak_bytes": 70}
    answers = [step, {**step, "tensor_peak_bytes": 30, "live_bytes": 9}, {**step, "num_tokens": 10}]
    found = summarise(SEQUENCES.contenders[0], {"floor_bytes": 35}, answers, None)
    assert found.tokens_per_cpu_second == 55.0


def test_the_step_of_memfit_may_take_two_percent_more_than_the_loop() -> None:
    words = f"{PLAIN.title}: at most 1.02 of the time of {LOOP.title}"
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
        budget = "budget" in str(one.recipe.get("checkpointing"))
        assert recipe_of(one, group.size).is_settled is not budget


def test_a_group_has_no_key_twice_its_baseline_and_six_contenders_at_most() -> None:
    for group in GROUPS:
        keys = [one.key for one in group.contenders]
        assert len(keys) == len(set(keys)) <= 6, group.name
        assert group.baseline in keys


def test_samples_count_the_accumulated_ones() -> None:
    one = replace(PLAIN, recipe={"batch_size": 1, "accumulate": 8})
    assert (samples_of(one, MAIN.size), samples_of(PLAIN, MAIN.size)) == (8, 8)
