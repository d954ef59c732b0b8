"""The learning rate rises in a line, falls along half a cosine, and ends where it should."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from memfit.errors import BadInput
from memfit.trainer.schedule import Schedule, set_rates

fractions = st.floats(0, 1)
step_counts = st.integers(1, 500)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    num_steps = draw(step_counts)
    return Schedule(num_steps, draw(st.integers(0, num_steps)), draw(fractions))


def factors(schedule: Schedule) -> list[float]:
    """Those of all steps; [0] is that of step 1."""
    return [schedule.factor(step) for step in range(1, schedule.num_steps + 1)]


@given(schedules())
def test_the_rate_rises_until_warm_up_ends_and_never_after(schedule):
    rates = factors(schedule)
    rising, falling = rates[: schedule.warmup_steps], rates[max(schedule.warmup_steps - 1, 0) :]

    assert rising == sorted(rising)
    assert len(set(rising)) == len(rising)
    assert falling == sorted(falling, reverse=True)


@given(schedules())
def test_the_peak_is_the_end_of_warm_up_and_the_end_is_the_final_fraction_exactly(schedule):
    rates = factors(schedule)

    if schedule.warmup_steps:
        assert rates[schedule.warmup_steps - 1] == 1
    if schedule.warmup_steps < schedule.num_steps:
        assert rates[-1] == schedule.final_fraction


@given(schedules())
def test_every_factor_is_above_zero_before_the_last_step_and_at_most_one(schedule):
    *before, last = factors(schedule)

    assert all(0 < factor <= 1 for factor in before)
    assert 0 <= last <= 1


def test_the_values_of_a_short_run():
    assert factors(Schedule(6, 2, final_fraction=0.2)) == pytest.approx(
        [
            0.5,
            1,
            0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2,
            0.6,
            0.2 + 0.8 * (1 - math.sqrt(0.5)) / 2,
            0.2,
        ]
    )


@pytest.mark.parametrize(
    ("num_steps", "warmup_steps"), [(1, 1), (5, 1), (11, 2), (200, 20), (1_000, 100), (10_000, 100)]
)
def test_warm_up_takes_a_tenth_of_the_run_and_at_most_100_steps(num_steps, warmup_steps):
    assert Schedule.for_steps(num_steps) == Schedule(num_steps, warmup_steps, 0.1)


@pytest.mark.parametrize(
    ("num_steps", "warmup_steps", "final_fraction", "said"),
    [
        (0, 0, 0.1, "a run of 0 steps trains nothing: write at least 1"),
        (10, 11, 0.1, "11 warm-up steps do not fit a run of 10 steps: choose from 0 to 10"),
        (10, -1, 0.1, "-1 warm-up steps do not fit a run of 10 steps: choose from 0 to 10"),
        (10, 1, 1.5, "final_fraction is 1.5: it is a part of the peak rate, 0 to 1"),
        (10, 1, math.nan, "final_fraction is nan: it is a part of the peak rate, 0 to 1"),
    ],
)
def test_numbers_out_of_range_are_refused(num_steps, warmup_steps, final_fraction, said):
    with pytest.raises(BadInput) as refused:
        Schedule(num_steps, warmup_steps, final_fraction)

    assert str(refused.value) == said


@pytest.mark.parametrize("step", [0, 11])
def test_there_is_no_factor_outside_the_run(step):
    with pytest.raises(AssertionError, match=f"step {step} of 10"):
        Schedule(10, 1).factor(step)


def groups_of(*settings: dict[str, object]) -> torch.optim.Optimizer:
    groups = [{"params": [nn.Parameter(torch.ones(2, 2))], **setting} for setting in settings]
    return torch.optim.SGD(groups, lr=1.0, weight_decay=0.25, momentum=0.5)


def muon_group() -> dict[str, object]:
    return {"kind": "muon", "initial_lr": 0.02, "initial_weight_decay": 0.1}


@given(schedules(), st.data())
def test_every_group_has_its_own_peak_times_the_factor(schedule, data):
    step = data.draw(st.integers(1, schedule.num_steps))
    optimizer = groups_of({"initial_lr": 0.5}, muon_group())

    set_rates(optimizer, schedule, step)

    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == [0.5 * schedule.factor(step), 0.02 * schedule.factor(step)]


def test_groups_that_are_not_muons_keep_momentum_and_weight_decay():
    optimizer = groups_of({"initial_lr": 0.5, "initial_weight_decay": 0.25})

    set_rates(optimizer, Schedule(10, 0), 7)

    (group,) = optimizer.param_groups
    assert (group["momentum"], group["weight_decay"]) == (0.5, 0.25)


def test_muons_momentum_rises_over_300_steps_and_stays():
    optimizer = groups_of(muon_group())
    momenta = []
    for step in (1, 2, 151, 301, 302, 400):
        set_rates(optimizer, Schedule(400, 0), step)
        momenta.append(optimizer.param_groups[0]["momentum"])

    assert momenta == pytest.approx([0.85, 0.85 + 0.1 / 300, 0.9, 0.95, 0.95, 0.95])
    assert momenta[-1] == 0.95


def test_muons_weight_decay_falls_along_a_cosine_and_would_be_0_after_the_last_step():
    optimizer = groups_of(muon_group())
    decays = []
    for step in range(1, 5):
        set_rates(optimizer, Schedule(4, 0), step)
        decays.append(optimizer.param_groups[0]["weight_decay"])

    half = math.sqrt(0.5)
    assert decays == pytest.approx(
        [0.1, 0.1 * (1 + half) / 2, 0.1 / 2, 0.1 * (1 - half) / 2], rel=1e-12
    )


def test_rates_depend_on_the_step_alone_so_a_resumed_run_has_the_same():
    walked, jumped = groups_of(muon_group()), groups_of(muon_group())
    schedule = Schedule(9, 3)

    for step in range(1, 8):
        set_rates(walked, schedule, step)
    set_rates(jumped, schedule, 7)

    names = ("lr", "momentum", "weight_decay")
    assert [walked.param_groups[0][n] for n in names] == [jumped.param_groups[0][n] for n in names]


@given(schedules(), schedules(), st.data())
def test_schedules_agree_as_far_as_every_group_has_the_same_rates_under_both(one, other, data):
    num_done = data.draw(st.integers(0, min(one.num_steps, other.num_steps)))

    def rates(schedule: Schedule, step: int) -> list[object]:
        optimizer = groups_of({"initial_lr": 0.5}, muon_group())
        set_rates(optimizer, schedule, step)
        return [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]

    alike = all(rates(one, step) == rates(other, step) for step in range(1, num_done + 1))

    assert one.agrees(other, num_done, with_decay=True) == alike
    assert one.agrees(one, one.num_steps, with_decay=True)
    assert not one.agrees(other, max(one.num_steps, other.num_steps) + 1, with_decay=False)
