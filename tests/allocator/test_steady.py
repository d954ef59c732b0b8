"""Steps are repeated until the allocator's state repeats."""

from __future__ import annotations

import pytest
from timelines import Script

from memfit.allocator.replay import replay_on_cuda
from memfit.allocator.steady import repeat_until_steady
from memfit.allocator.version import NEWEST, TorchVersion
from memfit.records.timeline import PHASES, Action, Timeline
from memfit.units import MiB

V2_11 = TorchVersion(2, 11)


def training(num_steps: int, *, script: Script | None = None) -> Script:
    """Steps that keep a state which each step makes anew, and temporaries."""
    script = script or Script().at("init", 0).take("weights", 64 * MiB)
    for step in range(1, num_steps + 1):
        script.at("forward", step).take("activation", 7 * MiB)
        script.at("backward", step).take("gradient", 64 * MiB).give("activation")
        script.at("optimizer", step).take(f"state {step}", 64 * MiB)
        if step > 1:
            script.give(f"state {step - 1}")
        script.give("gradient")
    return script


def steps_of(timeline: Timeline) -> list[int]:
    return sorted({int(step) for step in timeline.steps if step})


def test_a_step_that_leaves_what_it_found_is_repeated_until_that_is_seen() -> None:
    timeline = training(3).timeline()
    longer, steady = repeat_until_steady(timeline, version=V2_11)
    assert steady
    # State 2 lies where state 4 will: two kinds of steps take turns, and two are added.
    assert steps_of(longer) == [1, 2, 3, 4, 5]
    assert longer == training(5).timeline()


def test_in_a_copy_the_block_of_the_step_before_is_that_of_the_copy_before() -> None:
    timeline = training(3).timeline()
    longer, _ = repeat_until_steady(timeline, version=V2_11)
    replay = replay_on_cuda(longer, version=V2_11)
    assert replay.requested[-1] == 128 * MiB
    assert set(longer.live_blocks(len(longer.events) - 1)) == {0, len(longer.num_bytes) - 1}


def test_what_follows_the_last_step_stays_behind_the_copies() -> None:
    script = (
        training(3).at("eval", 3).take("eval", MiB).give("eval").give("state 3").give("weights")
    )
    longer, steady = repeat_until_steady(script.timeline(), version=V2_11)
    wanted = (
        training(5).at("eval", 5).take("eval", MiB).give("eval").give("state 5").give("weights")
    )
    assert steady and longer == wanted.timeline()


def test_actions_inside_a_step_are_repeated_with_it_and_others_keep_their_places() -> None:
    def run(num_steps: int) -> Timeline:
        script = Script().at("init", 0).act("empty_cache").take("weights", MiB)
        for step in range(1, num_steps + 1):
            script.at("forward", step).act("reset_peak").take("x", MiB).act("synchronize").give("x")
        return script.act("empty_cache").timeline()

    longer, steady = repeat_until_steady(run(2), version=V2_11)
    assert steady and longer == run(len(steps_of(longer)))
    assert Action(len(longer.events), "empty_cache") == longer.actions[-1]


@pytest.mark.parametrize("version", [V2_11, NEWEST])
def test_steps_that_empty_the_cache_become_steady_although_segments_move(
    version: TorchVersion,
) -> None:
    script = Script().at("init", 0).take("weights", 3 * MiB)
    for step in (1, 2, 3):
        script.at("forward", step).take("x", 30 * MiB).take("y", 40 * MiB)
        script.at("optimizer", step).give("x").give("y").act("empty_cache").take("z", 5).give("z")
    longer, steady = repeat_until_steady(script.timeline(), version=version)
    assert steady and steps_of(longer) == [1, 2, 3, 4]


def test_steps_that_ask_for_different_sizes_are_not_repeated() -> None:
    script = training(2).at("forward", 3).take("other", 5).give("other").give("state 2")
    timeline = script.timeline()
    assert repeat_until_steady(timeline, version=V2_11) == (timeline, False)


@pytest.mark.parametrize(
    "script",
    [Script(), Script().at("init", 0).take("weights", 5), training(1)],
    ids=["nothing", "no step", "one step"],
)
def test_without_two_steps_nothing_is_repeated(script: Script) -> None:
    timeline = script.timeline()
    assert repeat_until_steady(timeline, version=V2_11) == (timeline, False)


def test_a_step_that_keeps_more_each_time_is_repeated_up_to_the_limit() -> None:
    def leak(num_steps: int) -> Timeline:
        script = Script().at("init", 0).take("weights", MiB)
        for step in range(1, num_steps + 1):
            script.at("forward", step).take(f"kept {step}", MiB)
        return script.timeline()

    assert repeat_until_steady(leak(2), version=V2_11, max_steps=7) == (leak(7), False)


def test_a_step_that_frees_what_an_early_step_made_is_not_repeated() -> None:
    script = Script().at("init", 0).take("1", MiB).take("2", MiB)
    for step in (1, 2):
        script.at("forward", step).take("x", MiB).give("x").give(str(step))
    timeline = script.timeline()
    assert repeat_until_steady(timeline, version=V2_11) == (timeline, False)


def test_a_step_that_frees_its_own_block_and_the_one_before_is_not_repeated() -> None:
    script = Script().at("forward", 1).take("a", MiB)
    script.at("forward", 2).take("b", MiB).give("a").give("b")
    timeline = script.timeline()
    assert repeat_until_steady(timeline, version=V2_11) == (timeline, False)


def test_when_memory_runs_out_nothing_is_repeated() -> None:
    timeline = training(3).timeline()
    result = repeat_until_steady(timeline, version=V2_11, capacity_bytes=200 * MiB)
    assert result == (timeline, False)


def test_reserved_memory_that_grows_in_a_later_step_is_found() -> None:
    """Three sizes that take each other's places: the third step is not the last word."""

    def run(num_steps: int) -> Script:
        script = Script().at("init", 0).take("weights", 20 * MiB)
        for step in range(1, num_steps + 1):
            script.at("forward", step).take(f"a {step}", 11 * MiB).take("b", 13 * MiB)
            script.at("optimizer", step).take(f"c {step}", 12 * MiB).give("b")
            if step > 1:
                script.give(f"a {step - 1}").give(f"c {step - 1}")
        return script

    longer, steady = repeat_until_steady(run(3).timeline(), version=NEWEST)
    assert steady
    peak = replay_on_cuda(longer, version=NEWEST).peak_reserved_bytes
    assert peak == replay_on_cuda(run(40).timeline(), version=NEWEST).peak_reserved_bytes
    assert PHASES[int(longer.phases[-1])] == "optimizer"
