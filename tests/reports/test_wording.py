from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.records.prediction import Attempt, Lengths, Moment, OutOfMemory, Uncertainty
from memfit.records.recipe import Recipe
from memfit.records.timeline import CATEGORIES
from memfit.reports import wording
from memfit.units import format_size


def test_every_category_has_its_place_in_the_stack():
    assert sorted(wording.STACK) == sorted(CATEGORIES)


def test_the_verdict_says_what_is_left_or_missing(prediction):
    assert wording.verdict(prediction) == "fits: 10.21 GiB of 16.00 GiB, 5.79 GiB to spare"
    small = replace(prediction, budget_bytes=9 << 30)
    assert wording.verdict(small) == "does not fit: 10.21 GiB of 9.00 GiB, 1.21 GiB too much"


def test_a_recipe_is_said_without_what_it_does_not_use():
    recipe = Recipe(batch_size=8, accumulate=4, precision="bf16", checkpointing="every:2")
    assert wording.techniques(recipe) == "batch 8 × 4 · bf16 · adamw · checkpointing every:2"
    assert wording.techniques(Recipe(optimizer="sgd")) == "batch 1 · fp32 · sgd"


def test_a_moment_is_said_without_what_is_unknown():
    moment = Moment(step=2, phase="backward", op="aten::mm", module="h.11.mlp")
    assert wording.where(moment) == "in step 2, backward, in h.11.mlp, at aten::mm"
    moment = Moment(step=0, phase="init", op="", module="")
    assert wording.where(moment) == "before the first step, init"


@pytest.mark.parametrize(
    ("part", "text"), [(0, "0 %"), (1, "<1 %"), (360, "36 %"), (1000, "100 %")]
)
def test_a_share_never_rounds_something_down_to_nothing(part, text):
    assert wording.share(part, 1000) == text


def test_a_difference_names_its_side_and_its_bytes():
    assert wording.difference(5, 5) == "equal to the byte"
    assert wording.difference(2048, 1024) == "predicted 1.0 KiB (1,024 bytes) above measured"
    assert wording.difference(1024, 2048) == "predicted 1.0 KiB (1,024 bytes) below measured"


def test_a_run_is_summed_up_without_what_was_not_measured(runlog_of):
    log = runlog_of(steps=4)
    bare = replace(
        log,
        predicted_peak_bytes=None,
        budget_bytes=None,
        steps=tuple(
            replace(row, peak_bytes=None, resident_bytes=None, eval_loss=None) for row in log.steps
        ),
    )
    assert list(wording.run_summary(bare)) == [
        "Steps",
        "Time",
        "Training loss",
        "Targets per second",
    ]
    assert wording.run_summary(replace(log, steps=())) == {"Steps": "none yet"}
    assert wording.run_summary(log)["Difference"] == "equal to the byte"


# On a GPU


def test_the_verdict_on_a_gpu_counts_from_the_most_it_may_be(gpu_prediction):
    most = format_size(gpu_prediction.at_most_bytes)
    need = format_size(gpu_prediction.peak.device_bytes)
    spare = format_size(gpu_prediction.budget_bytes - gpu_prediction.at_most_bytes)

    said = wording.verdict(gpu_prediction)

    assert said == f"fits: {need}, at most {most}, of 24.00 GiB, {spare} to spare"
    assert wording.why(gpu_prediction) == ""


ENDS = OutOfMemory(
    moment=Moment(step=2, phase="backward", op="aten::mm", module="head"),
    asked_bytes=300 << 20,
    reserved_bytes=(9 << 30) - (100 << 20),
)
FAILS = Attempt(room_bytes=9 << 30, addresses="ascending", num_alloc_retries=2, out_of_memory=ENDS)
GOES = replace(FAILS, num_alloc_retries=0, out_of_memory=None)


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        (
            (GOES,),
            (
                "It goes through as expected, but what is not certain reaches 170.0 MiB past the "
                "budget."
            ),
        ),
        (
            (replace(GOES, num_alloc_retries=1),),
            (
                "It goes through only because the allocator gives cached memory back and asks "
                "again, once in 3 steps: each time the GPU waits."
            ),
        ),
        (
            (FAILS, GOES),
            (
                "As expected it runs out of memory in step 2, backward, in head, at aten::mm: it "
                "asks for 300.0 MiB, and the device has 100.0 MiB left; with the least that may "
                "lie outside the allocator it goes through."
            ),
        ),
    ],
)
def test_what_is_tight_says_why(gpu_prediction, attempts, said):
    tight = replace(
        gpu_prediction, budget_bytes=gpu_prediction.peak.device_bytes, attempts=attempts
    )

    assert tight.fits == "tight"
    assert wording.verdict(tight).startswith("tight: ")
    assert wording.why(tight) == said


def test_what_does_not_fit_says_where_it_ends(gpu_prediction):
    failed = replace(gpu_prediction, budget_bytes=9 << 30, attempts=(FAILS, FAILS))

    assert wording.verdict(failed).startswith("does not fit: ")
    assert wording.why(failed) == (
        "It runs out of memory in step 2, backward, in head, at aten::mm: it asks for 300.0 MiB, "
        "and the device has 100.0 MiB left."
    )


def test_the_rules_name_the_allocator_and_who_ran_the_step(gpu_prediction, prediction):
    assert wording.rules(gpu_prediction) == (
        "The allocator is that of torch 2.12 with expandable_segments:False; 3 steps simulated, "
        "which repeat; the step was run by torch 2.13.0."
    )
    assert wording.rules(prediction) == ""


def test_what_moves_only_the_allocated_peak_is_inside_what_is_reserved():
    inside = Uncertainty(name="workspaces", below_bytes=0, above_bytes=0, reason="")

    assert wording.change(inside) == "inside what is reserved"
    assert wording.change(replace(inside, below_bytes=1 << 20)) == "−1.0 MiB"
    assert wording.change(replace(inside, above_bytes=None)) == "not counted"


@pytest.mark.parametrize(
    ("num_steps", "said"), [(0, "False; the"), (1, "; one step simulated; the")]
)
def test_a_run_of_at_most_one_step_is_not_said_to_repeat_or_not(gpu_prediction, num_steps, said):
    simulation = replace(gpu_prediction.simulation, num_steps=num_steps, is_steady=False)
    rules = wording.rules(replace(gpu_prediction, simulation=simulation))

    assert said in rules
    assert "repeat" not in rules


def test_lengths_that_vary_are_told_beside_the_longest():
    varied = Lengths(
        shortest=64,
        longest=1024,
        num_steps=24,
        has_settled=False,
        constant_reserved_bytes=8 << 30,
        varying_reserved_bytes=10 << 30,
    )
    said = (
        "Lengths from 64 to 1,024: 10.00 GiB reserved after 24 steps, 2.00 GiB more than with "
        "1,024 alone (8.00 GiB)"
    )
    assert wording.lengths(varied) == f"{said}; it had not stopped growing."
    assert wording.lengths(replace(varied, has_settled=True)) == f"{said}."
    same = replace(varied, varying_reserved_bytes=8 << 30)
    assert "24 steps, the same as with 1,024 alone" in wording.lengths(same)


def test_a_script_is_one_that_runs_as_it_is(gpu_prediction):
    script = replace(gpu_prediction, recipe=None, seq_len=None)

    assert wording.setting(script) == "a script, as it is · on rtx-4090"


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (5, 5, ""),
        (1 << 30, 3 << 30, "1.00 GiB to 3.00 GiB"),
        (1 << 30, (1 << 30) + 1024, "within 1.0 KiB"),
    ],
)
def test_bounds_are_said_as_far_as_they_can_be_told_apart(least, most, said):
    assert wording.bounds(least, most) == said
