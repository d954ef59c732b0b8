from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.records.prediction import Moment
from memfit.records.recipe import Recipe
from memfit.records.timeline import CATEGORIES
from memfit.reports import wording


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
    assert wording.where(moment) == "step 2, backward, in h.11.mlp, at aten::mm"
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
