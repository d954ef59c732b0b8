"""What a prediction for a GPU cannot know, in bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from written_runs import WrittenRun, training

from memfit.planner.rig import Rig, rig_of
from memfit.planner.simulate import simulate
from memfit.planner.uncertainty import leanest, parts
from memfit.records.prediction import Lengths, Uncertainty
from memfit.units import MiB


@pytest.fixture(scope="module")
def rig() -> Rig:
    return rig_of("rtx-4090", torch_version="2.13", alloc_conf="")


def named(found: tuple[Uncertainty, ...]) -> dict[str, Uncertainty]:
    return {part.name: part for part in found}


def test_a_steady_run_is_uncertain_only_about_what_lies_outside_the_allocator(rig):
    found, allocated = parts(simulate(training(), rig), rig)

    context, growth = found
    assert (context.name, growth.name) == ("CUDA context", "driver's growth")
    assert context.is_outside and growth.is_outside
    assert context.below_bytes == rig.context.num_bytes - rig.context.low
    assert growth.above_bytes == rig.growth.high - rig.growth.num_bytes
    assert allocated == (224 * MiB + 4096, 224 * MiB + 4096)


def of_two_equal_holes(first: int) -> WrittenRun:
    """Two free blocks of one size: which is taken decides whether 30 MiB more find room.

    Each hole lies in a segment of its own, whose other half is taken; that of the ``first`` is
    freed, so that the block which then joins it can serve 30 MiB, if it is whole.
    """
    run = WrittenRun()
    run.begin("forward", 1)
    holes, halves = [], []
    for _ in range(2):
        whole = run.take(40 * MiB)
        run.free(whole)
        halves.append(run.take(20 * MiB))
        holes.append(run.take(20 * MiB))
    run.free(*holes)
    run.take(20 * MiB)
    run.free(halves[first])
    run.take(30 * MiB)
    return run


def test_two_replays_that_differ_by_addresses_are_the_spread_up_to_torch_2_12(rig):
    older = replace(rig, version=rig.version._replace(minor=11))
    spread = []
    for first in (0, 1):
        run = simulate(of_two_equal_holes(first).timeline(), older)
        part = named(parts(run, older)[0]).get("segment addresses")
        assert part is not None
        spread.append((part.below_bytes, part.above_bytes))
        assert "segment addresses" not in named(parts(run, rig)[0])

    assert sorted(spread) == [(0, 30 * MiB), (30 * MiB, 0)]


def test_estimated_workspaces_may_be_nothing_or_twice_as_large(rig):
    run = WrittenRun()
    run.begin("forward", 1)
    run.take(40 * MiB)
    run.free(run.take(30 * MiB, "workspace", origin="estimate"))
    timeline = run.timeline()

    part = named(parts(simulate(timeline, rig), rig)[0])["estimated workspaces"]

    assert (part.below_bytes, part.above_bytes) == (30 * MiB, 30 * MiB)
    assert leanest(timeline).num_bytes.tolist() == [40 * MiB, 0]


def test_estimates_that_move_only_the_allocated_peak_are_named_too(rig):
    run = WrittenRun()
    run.begin("forward", 1)
    run.take(4 * MiB)  # of a segment of 20 MiB
    run.take(2 * MiB, "workspace", origin="estimate")

    found, allocated = parts(simulate(run.timeline(), rig), rig)

    part = named(found)["estimated workspaces"]
    assert (part.below_bytes, part.above_bytes) == (0, 0)
    assert allocated == (4 * MiB, 8 * MiB)


def test_without_estimates_a_run_is_its_own_leanest():
    timeline = training()

    assert leanest(timeline) is timeline


def test_what_a_full_card_takes_back_would_be_kept_with_more_room(rig):
    run = WrittenRun()
    run.free(run.take(60 * MiB))
    run.take(80 * MiB)
    full = replace(rig, budget_bytes=100 * MiB + rig.outside.total_bytes)

    part = named(parts(simulate(run.timeline(), full), full)[0])["a full card"]

    assert (part.below_bytes, part.above_bytes) == (0, 60 * MiB)


def test_a_run_that_does_not_settle_may_grow_by_as_much_again(rig):
    growing = training([20 * MiB, 40 * MiB, 60 * MiB, 100 * MiB])

    simulated = simulate(growing, rig)
    part = named(parts(simulated, rig)[0])["steps that do not repeat"]

    before = rig.replay(training([20 * MiB, 40 * MiB, 60 * MiB])).peak_reserved_bytes
    assert part.above_bytes == simulated.replay.peak_reserved_bytes - before > 0


def test_lengths_that_vary_may_reserve_as_little_as_the_longest_alone(rig):
    lengths = Lengths(
        shortest=64,
        longest=128,
        num_steps=20,
        has_settled=True,
        constant_reserved_bytes=100,
        varying_reserved_bytes=130,
        other_orders_bytes=7,
    )

    part = named(parts(simulate(training(), rig), rig, lengths=lengths)[0])["batch lengths"]

    assert (part.below_bytes, part.above_bytes, part.is_outside) == (30, 7, False)


@pytest.mark.parametrize("fact", ["unknown values read", "scratch unknown", "compile"])
def test_what_cannot_be_bounded_is_named_and_not_counted(rig, fact):
    simulated = simulate(training(**{fact: "train.py:7"}), rig)

    part = named(parts(simulated, rig)[0])[fact]

    assert (part.below_bytes, part.above_bytes) == (0, None)
    assert part.reason.endswith(": train.py:7")
