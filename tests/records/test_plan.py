"""A Plan is a recipe with its proof: it must fit, and may be written by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from memfit.errors import DamagedFile
from memfit.records.plan import Plan
from memfit.records.recipe import Recipe

WRITTEN_BY_HAND = {
    "memfit": "plan",
    "version": 1,
    "plan": {
        "target": "gpt2",
        "recipe": {"batch_size": 4, "accumulate": 2},
        "device": "cpu",
        "seq_len": 1024,
        "budget_bytes": 2**31,
        "predicted_peak_bytes": 2**30,
    },
}


def plan(**changes: Any) -> Plan:
    fields = {
        "target": "gpt2",
        "recipe": Recipe(batch_size=4, accumulate=2),
        "device": "cpu",
        "seq_len": 1024,
        "budget_bytes": 2**31,
        "predicted_peak_bytes": 2**30,
    }
    return Plan(**(fields | changes))


def test_a_plan_above_its_budget_is_no_plan() -> None:
    with pytest.raises(ValueError, match="its predicted peak is 11 bytes and its budget 10"):
        plan(budget_bytes=10, predicted_peak_bytes=11)


@pytest.mark.parametrize("change", [{"budget_bytes": 0}, {"predicted_peak_bytes": 0}])
def test_a_plan_has_a_budget_and_a_peak(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a positive budget and a positive predicted peak"):
        plan(**change)


def test_tokens_of_a_step_count_every_micro_batch() -> None:
    assert plan().tokens_per_step == 8 * 1024
    assert plan(seq_len=None).tokens_per_step is None


def test_a_plan_written_by_hand_is_as_good_as_one_that_was_found(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(WRITTEN_BY_HAND))

    assert Plan.load(path) == plan()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": "1024"}, r"Plan\.seq_len is '1024', not int \| None"),
        ({"recipe": {"batchsize": 4}}, "unexpected keyword argument 'batchsize'"),
        (
            {"recipe": {"precision": "fp8"}},
            "precision is 'fp8': choose one of fp32, bf16, fp16, bf16-pure",
        ),
        ({"budget_bytes": 1}, "a plan must fit"),
    ],
)
def test_a_slip_of_the_hand_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(WRITTEN_BY_HAND | {"plan": WRITTEN_BY_HAND["plan"] | change}))

    with pytest.raises(DamagedFile, match=message):
        Plan.load(path)
