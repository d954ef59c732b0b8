"""A traced run on a rig: repeated until it is steady, replayed, and tried on a full card."""

from __future__ import annotations

from dataclasses import replace

import pytest
from written_runs import WrittenRun, training

from memfit.planner.rig import Rig, rig_of
from memfit.planner.simulate import attempts, simulate
from memfit.records.prediction import Attempt, Moment, OutOfMemory
from memfit.units import MiB

NEEDED = 226 * MiB
"""What ``training()`` reserves: 224 MiB of blocks in segments of whole 2 MiB."""


@pytest.fixture(scope="module")
def rig() -> Rig:
    return rig_of("rtx-4090", torch_version="2.13", alloc_conf="")


def with_room(rig: Rig, expected: int) -> Rig:
    return replace(rig, budget_bytes=expected + rig.outside.total_bytes)


def test_the_last_step_is_repeated_until_it_changes_nothing(rig):
    found = simulate(training(), rig)

    assert found.is_steady
    assert found.timeline.steps.max() > 3
    assert found.replay.peak_reserved_bytes == NEEDED


def test_steps_that_differ_are_taken_as_they_are(rig):
    traced = training([64 * MiB, 32 * MiB, 64 * MiB])

    found = simulate(traced, rig)

    assert not found.is_steady
    assert found.timeline == traced


@pytest.mark.parametrize("room", [NEEDED, 2 * NEEDED])
def test_with_enough_room_the_run_is_what_it_is_without_a_limit(rig, room):
    found = simulate(training(), with_room(rig, room))

    assert found.replay is found.unlimited
    assert attempts(found, rig, found.timeline) == (
        Attempt(room_bytes=room, addresses="ascending", num_alloc_retries=0, out_of_memory=None),
    )


def one_that_leaves_holes() -> WrittenRun:
    """Takes and frees 60 MiB, then needs 80 MiB that the 60 cannot serve."""
    run = WrittenRun()
    run.begin("forward", 1)
    run.free(run.take(60 * MiB))
    run.take(80 * MiB, op="aten::mm", module="head")
    return run


def test_on_a_full_card_cached_memory_is_given_back_and_less_is_reserved(rig):
    found = simulate(one_that_leaves_holes().timeline(), with_room(rig, 100 * MiB))

    assert found.unlimited.peak_reserved_bytes == 140 * MiB
    assert found.replay.peak_reserved_bytes == 80 * MiB
    assert (found.attempt.num_alloc_retries, found.attempt.out_of_memory) == (1, None)


def test_a_run_that_ends_says_where_and_is_shown_with_all_it_needs(rig):
    tight = with_room(rig, 70 * MiB)
    found = simulate(one_that_leaves_holes().timeline(), tight)

    assert found.attempt.out_of_memory == OutOfMemory(
        moment=Moment(step=1, phase="forward", op="aten::mm", module="head"),
        asked_bytes=80 * MiB,
        reserved_bytes=0,
    )
    assert found.replay is found.unlimited


def test_what_fails_as_expected_is_tried_with_the_most_room_at_every_order_of_addresses(rig):
    older = replace(with_room(rig, 70 * MiB), version=rig.version._replace(minor=11))
    found = simulate(one_that_leaves_holes().timeline(), older)

    tried = attempts(found, older, found.timeline)

    assert [(a.addresses, a.room_bytes) for a in tried] == [
        ("ascending", 70 * MiB),
        ("ascending", older.most_room_bytes),
        ("descending", older.most_room_bytes),
    ]
    assert [a.out_of_memory is None for a in tried] == [False, True, True]


def test_with_a_memory_fraction_a_run_ends_on_a_card_that_has_room(rig):
    share = 100 * MiB / rig.card.total_bytes
    found = simulate(training(), rig.with_fraction(share))

    assert found.unlimited.peak_reserved_bytes == NEEDED
    assert found.attempt.out_of_memory is not None


def test_garbage_is_collected_before_the_card_is_full(rig):
    share = 400 * MiB / rig.card.total_bytes
    settings = replace(rig.settings, garbage_collection_threshold=0.1)
    run = one_that_leaves_holes().timeline()

    found = simulate(run, replace(rig, settings=settings).with_fraction(share))

    assert found.unlimited.peak_reserved_bytes == 140 * MiB
    assert found.replay.peak_reserved_bytes == 80 * MiB
    assert found.attempt.num_alloc_retries == 0
