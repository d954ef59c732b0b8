"""How long a run is, and when it evaluates and saves."""

import pytest
import torch

from memfit.errors import BadInput
from memfit.trainer.options import TrainOptions
from memfit.trainer.schedule import Schedule


def test_a_run_evaluates_and_saves_at_its_intervals_and_at_its_end():
    options = TrainOptions(num_steps=11, eval_every=4, save_every=5)
    steps = range(1, 12)

    assert [step for step in steps if options.evaluates(step)] == [4, 8, 11]
    assert [step for step in steps if options.saves(step)] == [5, 10, 11]


@pytest.mark.parametrize(
    ("warmup_steps", "schedule"),
    [(None, Schedule(50, 5)), (0, Schedule(50, 0)), (50, Schedule(50, 50))],
)
def test_the_schedule_is_that_of_the_steps_and_the_warm_up(warmup_steps, schedule):
    assert TrainOptions(num_steps=50, warmup_steps=warmup_steps).schedule() == schedule


@pytest.mark.parametrize("name", ["num_steps", "eval_every", "save_every", "keep"])
def test_a_number_below_one_is_refused(name):
    with pytest.raises(BadInput, match=f"{name} is 0: it must be at least 1"):
        TrainOptions(**{name: 0})


@pytest.mark.parametrize("seed", [-(2**63), 0, 2**64 - 1])
def test_a_seed_is_what_the_generators_take(seed):
    torch.Generator().manual_seed(TrainOptions(seed=seed).seed)
    for above in (2**64, 10**22, -(2**63) - 1):
        with pytest.raises(BadInput, match=f"seed is {above}: .* from -2..63 to 2..64 - 1"):
            TrainOptions(seed=above)


@pytest.mark.parametrize("warmup_steps", [-1, 11])
def test_a_warm_up_that_does_not_fit_the_run_is_refused_at_once(warmup_steps):
    with pytest.raises(
        BadInput, match=f"{warmup_steps} warm-up steps do not fit a run of 10 steps"
    ):
        TrainOptions(num_steps=10, warmup_steps=warmup_steps)
