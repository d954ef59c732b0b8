"""Will it fit?  The answer, its parts, and what asking leaves behind: nothing."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_runs import SEQ_LEN, tiny_gpt
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from memfit.errors import BadInput, UnknownName
from memfit.job import Job
from memfit.planner.predict import predict
from memfit.records.plan import Plan
from memfit.records.prediction import Prediction
from memfit.records.recipe import Recipe

RECIPE = Recipe(batch_size=2, accumulate=2)


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict(tiny_gpt(), RECIPE)


# What it says


def test_the_json_has_the_keys_of_the_contract(prediction):
    document = json.loads(json.dumps(prediction.as_dict(), allow_nan=False))

    assert set(document) >= {
        *("peak", "fits", "device", "recipe", "at_peak"),
        *("breakdown", "phases", "largest", "seconds"),
    }
    assert set(document["peak"]) == {
        *("requested_bytes", "allocated_bytes", "reserved_bytes", "device_bytes")
    }
    assert set(document["at_peak"]) == {"step", "phase", "op", "module"}
    assert {frozenset(tensor) for tensor in document["largest"]} == {
        frozenset({"bytes", "shape", "dtype", "op", "module", "category"})
    }
    assert document["recipe"] == RECIPE.as_dict()


def test_the_breakdown_sums_to_the_allocated_peak(prediction):
    assert sum(prediction.breakdown.values()) == prediction.peak.allocated_bytes
    assert all(prediction.breakdown.values())


def test_the_peak_is_the_highest_of_the_phases_and_in_the_one_it_names(prediction):
    assert set(prediction.phases) == {"init", "forward", "backward", "optimizer", "eval"}
    assert max(prediction.phases.values()) == prediction.peak.allocated_bytes
    assert prediction.phases[prediction.at_peak.phase] == prediction.peak.allocated_bytes


def test_on_the_cpu_all_layers_count_the_same_bytes(prediction):
    peak = prediction.peak

    assert peak.requested_bytes == peak.allocated_bytes == peak.reserved_bytes == peak.device_bytes


def test_the_largest_tensors_are_the_largest_live_at_the_peak(prediction):
    timeline, event = prediction.timeline, prediction.replay.peak_event
    live = sorted(map(int, timeline.num_bytes[timeline.live_blocks(event)]), reverse=True)

    assert [tensor.num_bytes for tensor in prediction.largest] == live[:20]


def test_parameters_are_counted(prediction):
    assert prediction.num_parameters == sum(p.numel() for p in tiny_gpt().model().parameters())


def test_a_run_fits_a_budget_of_its_peak_and_not_of_a_byte_less(prediction):
    peak = prediction.peak.device_bytes

    assert predict(tiny_gpt(), RECIPE, budget_bytes=peak).fits == "yes"
    assert replace(prediction, budget_bytes=peak - 1).fits == "no"


def test_without_a_budget_it_must_fit_the_device(prediction):
    assert prediction.budget_bytes == prediction.device.total_bytes > prediction.peak.device_bytes


def test_a_second_prediction_is_the_first_one_event_by_event(prediction):
    again = predict(tiny_gpt(), RECIPE)

    assert again.timeline == prediction.timeline
    assert again.replay == prediction.replay


def test_a_plan_brings_its_recipe_its_length_and_its_budget():
    plan = Plan(
        target="tiny",
        recipe=Recipe(optimizer="sgd"),
        device="cpu",
        seq_len=4,
        budget_bytes=10**9,
        predicted_peak_bytes=1,
    )

    found = predict(tiny_gpt(), plan)

    assert (found.recipe, found.seq_len, found.budget_bytes) == (plan.recipe, 4, 10**9)


def test_without_a_recipe_it_is_a_plain_run():
    assert predict(tiny_gpt()).recipe == Recipe()


# What it refuses


@pytest.mark.parametrize(
    ("seq_len", "message"),
    [
        (10 * SEQ_LEN + 1, "tiny cannot take a sequence of 161 tokens: it has positions for 160"),
        (0, "the sequence length is 0"),
    ],
)
def test_a_length_that_the_model_cannot_take_is_refused(seq_len, message):
    with pytest.raises(BadInput, match=message):
        predict(tiny_gpt(), RECIPE, seq_len=seq_len)


@pytest.mark.parametrize("rule", [{"torch_version": "2.11"}, {"alloc_conf": ""}])
def test_the_rules_of_a_gpu_are_refused_on_the_cpu(rule):
    with pytest.raises(BadInput, match="rules of a GPU: name one"):
        predict(tiny_gpt(), RECIPE, **rule)


def test_lengths_that_vary_are_refused_on_the_cpu():
    with pytest.raises(BadInput, match="the CPU's keeps nothing: give the longest, 8"):
        predict(tiny_gpt(), RECIPE, seq_len=(4, 8))


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize(
    ("samples", "seq_len", "message"),
    [
        (1, None, "16 tokens a step are not a whole number of sequences of 12"),
        (3, 8, "12:1,16 ends with 16 tokens and the sequence length is 8: leave the length out"),
        (3, (8, 16), "ends with 16 tokens and the lengths vary from 8 to 16"),
    ],
)
def test_a_schedule_that_training_refuses_is_refused(device, samples, seq_len, message):
    with pytest.raises(BadInput, match=message):
        predict(
            tiny_gpt(),
            Recipe(batch_size=samples, seq_schedule="12:1,16"),
            seq_len=seq_len,
            device=device,
        )


def test_a_schedule_goes_with_the_length_that_it_ends_with():
    recipe = Recipe(batch_size=3, seq_schedule="12:1,16")

    assert predict(tiny_gpt(), recipe, seq_len=16).seq_len == predict(tiny_gpt(), recipe).seq_len


def test_a_gpu_that_nobody_knows_is_answered_with_the_nearest_names():
    with pytest.raises(UnknownName, match="no GPU is called 'rtx-4091'") as caught:
        predict(tiny_gpt(), RECIPE, device="rtx-4091")

    assert "rtx-4090" in caught.value.nearest


def test_checkpointing_a_model_without_blocks_is_refused():
    job = job_of(lambda model, batch: model(batch).mean())

    with pytest.raises(BadInput, match="no repeated blocks"):
        predict(job, Recipe(checkpointing="full"))


# What it leaves behind


def job_of(
    loss: Callable[[nn.Module, Any], Any], model: Callable[[], nn.Module] = lambda: nn.Linear(4, 4)
) -> Job:
    return Job(model=model, batch=lambda size, seq_len: torch.randn(size, 4), loss=loss)


def test_the_generators_of_the_caller_are_untouched():
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(torch.dropout(batch, 0.5, True)).mean() * random.random()

    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()

    predict(job_of(loss))

    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


class Mistake(Exception):
    pass


def fail(*_: object) -> Any:
    raise Mistake


def fail_in_backward(model: nn.Module, batch: Tensor) -> Tensor:
    loss = model(batch).mean()
    loss.register_hook(fail)
    return loss


class FailsInForward(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        raise Mistake


JOBS_WITH_A_MISTAKE = {
    "model": job_of(fail, model=fail),
    "batch": replace(job_of(fail), batch=fail),
    "loss": job_of(fail),
    "forward": job_of(lambda model, batch: model(batch).mean(), lambda: FailsInForward(4, 4)),
    "backward": job_of(fail_in_backward),
}


@pytest.mark.parametrize("place", JOBS_WITH_A_MISTAKE)
@pytest.mark.parametrize("collects", [True, False])
def test_after_a_mistake_in_the_job_torch_is_as_it_was(place, collects):
    hooks = len(torch_modules._global_forward_pre_hooks), len(torch_modules._global_forward_hooks)
    if not collects:
        gc.disable()
    try:
        with pytest.raises(Mistake):
            predict(JOBS_WITH_A_MISTAKE[place])
        assert gc.isenabled() is collects
    finally:
        gc.enable()

    assert not torch._C._autograd._profiler_enabled()
    found = len(torch_modules._global_forward_pre_hooks), len(torch_modules._global_forward_hooks)
    assert found == hooks
    x = torch.full((100, 100), 2.0, requires_grad=True)
    (x @ x).sum().backward()
    assert (x.grad == 400.0).all()  # ops are real again, in forward and backward


def test_after_a_mistake_in_the_job_another_one_is_predicted_as_ever(prediction):
    with pytest.raises(Mistake):
        predict(JOBS_WITH_A_MISTAKE["forward"])

    assert predict(tiny_gpt(), RECIPE).timeline == prediction.timeline
