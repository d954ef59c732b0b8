"""Batches of varying length: which are traced, how their steps are put in another order, and what
that reserves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_runs import WrittenRun, training

from memfit.errors import BadInput
from memfit.planner.lengths import LengthRange, can_reorder, in_order, simulate_lengths
from memfit.planner.rig import Rig, rig_of
from memfit.planner.simulate import simulate
from memfit.units import MiB

SIZES = [50 * MiB, 20 * MiB, 37 * MiB, 64 * MiB]


@pytest.fixture(scope="module")
def rig() -> Rig:
    return rig_of("rtx-4090", torch_version="2.13", alloc_conf="")


@given(st.integers(1, 200), st.integers(0, 2000))
def test_both_ends_are_traced_and_the_longest_comes_last(shortest, more):
    longest = shortest + more

    first, *lengths = LengthRange(shortest, longest).to_trace()

    assert shortest <= first <= longest
    assert (lengths[0], lengths[-1]) == (shortest, longest)
    assert lengths == sorted(set(lengths)) and len(lengths) <= 12


@pytest.mark.parametrize(
    ("lengths", "why"), [((128, 64), "write the shortest first"), ((0, 4), "begin below 1")]
)
def test_what_is_no_range_is_refused(lengths, why):
    with pytest.raises(BadInput, match=why):
        LengthRange(*lengths).check()


def test_the_order_that_was_traced_gives_the_run_that_was_traced():
    timeline = training(SIZES)

    assert in_order(timeline, [1, 2, 3, 4]) == timeline


def test_another_order_is_the_run_that_would_have_been_traced_in_it():
    found = in_order(training(SIZES), [1, 3, 2, 4])
    wanted = training([SIZES[0], SIZES[2], SIZES[1], SIZES[3]])

    for column in ("events", "phases", "steps", "num_bytes", "categories", "ops", "modules"):
        assert getattr(found, column).tolist() == getattr(wanted, column).tolist()


def test_a_step_may_come_twice_or_not_at_all():
    found = in_order(training(SIZES), [1, 4, 4, 2])
    wanted = training([SIZES[0], SIZES[3], SIZES[3], SIZES[1]])

    assert found.steps.tolist() == wanted.steps.tolist()
    assert found.events.tolist() == wanted.events.tolist()
    # The evaluation stays that of the traced run.
    assert found.num_bytes.tolist()[:-1] == wanted.num_bytes.tolist()[:-1]


def test_steps_that_free_what_they_take_can_be_reordered():
    assert can_reorder(training(SIZES))


def test_a_step_that_leaves_something_to_the_next_cannot_be():
    run = WrittenRun()
    kept = None
    for step in (1, 2, 3):
        run.begin("forward", step)
        logits = run.take(10 * MiB)
        if kept is not None:
            run.free(kept)
        kept = logits

    assert not can_reorder(run.timeline())


def test_varying_lengths_reserve_more_than_the_longest_alone(rig):
    lengths = LengthRange(64, 128)
    sizes = [length * MiB for length in lengths.to_trace()]
    constant = simulate(training([128 * MiB] * 3), rig)

    simulated, found = simulate_lengths(training(sizes), lengths, rig, constant)

    assert found.constant_reserved_bytes == constant.replay.peak_reserved_bytes
    assert found.varying_reserved_bytes == simulated.replay.peak_reserved_bytes
    assert found.growth_bytes > 0
    assert found.has_settled
    assert simulated.timeline.steps.max() == found.num_steps
    assert simulated.replay.peak_allocated_bytes == constant.replay.peak_allocated_bytes


def test_the_same_question_has_the_same_answer(rig):
    lengths = LengthRange(64, 128)
    timeline = training([length * MiB for length in lengths.to_trace()])
    constant = simulate(training([128 * MiB] * 3), rig)

    first, second = (simulate_lengths(timeline, lengths, rig, constant) for _ in range(2))

    assert first[1] == second[1]
    assert first[0].timeline == second[0].timeline


def test_steps_that_cannot_be_reordered_are_replayed_as_they_were_traced(rig):
    run = WrittenRun()
    kept = run.take(10 * MiB)
    for step in range(1, 4):
        run.begin("forward", step)
        run.free(kept)
        kept = run.take(step * 20 * MiB)
    timeline = run.timeline()

    simulated, found = simulate_lengths(timeline, LengthRange(1, 3), rig, simulate(training(), rig))

    assert simulated.timeline == timeline
    assert (found.num_steps, found.has_settled) == (3, False)
