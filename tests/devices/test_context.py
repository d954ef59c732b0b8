"""What lies outside the allocator: estimates with a spread and a source."""

import dataclasses

import pytest

from memfit.devices.catalog import catalog, find
from memfit.devices.context import Estimate, context_bytes, expected_context, growth_bytes
from memfit.records.device import Device
from memfit.units import GiB, MiB

UNLISTED = Device(name="card", kind="cuda", total_bytes=24 * GiB)

# MiB of a context, recorded by others with PyTorch 2 and lazy loading (sources: context.py).
CONTEXTS = [
    ("t4", 105),
    ("rtx-3090", 256),
    ("a100-80gb", 481),
    ("rtx-4090", 386),
    ("rtx-6000-ada", 426),
    ("l40s", 502),
    ("h100-80gb", 532),
    ("h100-80gb", 604),
]

# GiB of a process outside the allocator when it ran out of memory, so with what kernels loaded:
# in use less allocated less reserved, from the messages that PyTorch printed for others.
OUTSIDE = [
    ("t4", 0.12),
    ("t4", 0.20),
    ("v100-16gb", 0.38),
    ("v100-16gb", 0.46),
    ("v100-32gb", 0.37),
    ("p100-16gb", 0.31),
    ("rtx-3090", 0.30),
    ("rtx-3090", 0.41),
    ("a100-80gb", 0.48),
    ("a100-80gb", 0.52),
    ("l40s", 0.51),
    ("h100-80gb", 0.59),
    ("h100-80gb", 0.74),
    ("h200", 0.51),
    ("h200", 0.66),
    ("rtx-5090", 0.48),
    ("rtx-5090", 0.58),
    ("b200", 0.70),
]


@pytest.mark.parametrize(("name", "mib"), CONTEXTS)
def test_a_recorded_context_lies_inside_the_estimate(name, mib):
    estimate = context_bytes(find(name))
    assert estimate.low < mib * MiB < estimate.high


@pytest.mark.parametrize(("name", "gib"), OUTSIDE)
def test_context_and_growth_together_hold_what_processes_had_outside_the_allocator(name, gib):
    context, growth = context_bytes(find(name)), growth_bytes()
    assert context.low + growth.low < gib * GiB < context.high + growth.high
    assert context.num_bytes + growth.num_bytes == pytest.approx(gib * GiB, abs=180 * MiB)


@pytest.mark.parametrize("card", catalog().values(), ids=catalog())
def test_a_context_has_a_stack_for_every_thread(card):
    stacks = card.sms * card.threads_per_sm * 1024
    estimate = context_bytes(card)
    assert estimate == expected_context(card)
    assert stacks + 40 * MiB <= estimate.low < estimate.num_bytes < estimate.high < GiB


def test_of_two_cards_of_an_architecture_the_larger_has_the_larger_context():
    small, large = (context_bytes(find(name)) for name in ("rtx-3060-12gb", "rtx-3090"))
    assert large.num_bytes - small.num_bytes == (82 - 28) * 1536 * 1024


@pytest.mark.parametrize("card", [UNLISTED, dataclasses.replace(UNLISTED, architecture="Ada")])
def test_a_card_that_is_not_listed_has_an_estimate_with_a_wide_spread(card):
    estimate = context_bytes(card)
    assert estimate.high - estimate.low == 600 * MiB
    assert "assumed" in estimate.source


def test_a_cards_own_figures_count_before_its_architectures():
    mine = dataclasses.replace(
        find("rtx-4090"),
        context_bytes=500 * MiB,
        context_spread_bytes=10 * MiB,
        sources={"context_bytes": "measured here"},
    )
    assert context_bytes(mine) == Estimate(500 * MiB, 490 * MiB, 510 * MiB, "measured here")


def test_the_driver_grows_by_some_hundred_mebibytes_at_most():
    growth = growth_bytes()
    assert 0 < growth.low < growth.num_bytes < growth.high == 300 * MiB
    assert "vLLM" in growth.source
