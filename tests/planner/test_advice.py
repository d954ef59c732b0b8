"""What to change when one sample is too large: the changes that are said do make it smaller."""

from __future__ import annotations

import pytest
from tiny_runs import tiny_gpt

from memfit.planner.advice import advise
from memfit.planner.predict import predict
from memfit.records.recipe import Recipe
from memfit.units import format_size


def test_the_change_that_is_named_first_has_the_peak_that_it_names():
    recipe = Recipe(batch_size=4)

    advice = advise(tiny_gpt(), recipe)

    first = advice.partition(": ")[2].partition(";")[0]
    flags, _, size = first.partition(" needs ")
    words = flags.replace("--", "").split()
    one = Recipe(**dict(zip(words[::2], words[1::2], strict=True)))
    assert size == format_size(predict(tiny_gpt(), one).peak.device_bytes)


@pytest.mark.parametrize("more", [{}, {"optimizer_in_backward": True, "clip_norm": None}])
def test_lengths_that_do_not_divide_one_sample_are_advised_on_too(more):
    recipe = Recipe(batch_size=6, seq_schedule="12:1,16", **more)

    advice = advise(tiny_gpt(), recipe)

    assert "--checkpointing full" in advice
    assert "--seq-len" not in advice  # the schedule says the lengths
