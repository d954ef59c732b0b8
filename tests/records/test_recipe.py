"""What a Recipe accepts, and what it says to what it does not."""

from typing import Any

import pytest

from memfit.errors import BadInput
from memfit.records.recipe import Recipe


@pytest.mark.parametrize(
    ("checkpointing", "every"), [("none", None), ("full", 1), ("every:1", 1), ("every:12", 12)]
)
def test_checkpointing_says_every_how_many_blocks_one_is_recomputed(
    checkpointing: str, every: int | None
) -> None:
    assert Recipe(checkpointing=checkpointing).checkpoint_every == every


def test_a_step_sees_the_samples_of_all_its_micro_batches() -> None:
    assert Recipe(batch_size=8, accumulate=3).samples_per_step == 24


def test_a_changed_copy_leaves_the_first_alone() -> None:
    recipe = Recipe(batch_size=8)

    assert recipe.but(batch_size=4, accumulate=2) == Recipe(batch_size=4, accumulate=2)
    assert recipe == Recipe(batch_size=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": "fp8"}, "precision is 'fp8': choose one of fp32, bf16, fp16, bf16-pure"),
        ({"optimizer": "adam"}, "optimizer is 'adam': choose one of adamw, sgd, adafactor"),
        ({"batch_size": 0}, "batch_size is 0: it must be a whole number, at least 1"),
        ({"batch_size": 2.0}, r"batch_size is 2\.0: it must be a whole number"),
        ({"accumulate": -1}, "accumulate is -1: it must be a whole number"),
        (
            {"checkpointing": "every:0"},
            "checkpointing is 'every:0': write none, full, every:N with N >= 1",
        ),
        ({"checkpointing": "every:2\n"}, "checkpointing is"),
        ({"checkpointing": "some"}, "checkpointing is 'some'"),
        ({"learning_rate": -1e-3}, r"learning_rate is -0\.001: it must be 0 or above, and finite"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"weight_decay": float("inf")}, "weight_decay is inf"),
        ({"clip_norm": 0.0}, r"clip_norm is 0\.0: it must be above 0 and finite, or None"),
        ({"clip_norm": float("nan")}, "clip_norm is nan"),
        (
            {"sequences": "documents", "seq_schedule": "16:1,32"},
            "16:1,32 does not go with sequences documents, .*: choose rows or packed",
        ),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_what_to_write(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        Recipe(**change)
