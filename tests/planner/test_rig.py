"""The rig: which card, whose allocator, and what of the card is left to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.allocator.settings import Settings
from memfit.allocator.version import TorchVersion
from memfit.devices import detect
from memfit.devices.catalog import catalog
from memfit.errors import BadInput, UnknownName
from memfit.planner import rig as rigs
from memfit.planner.rig import rig_of
from memfit.units import GiB

CARD = "rtx-4090"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def test_what_lies_outside_the_allocator_is_taken_off_the_budget():
    rig = rig_of(CARD, budget_bytes=8 * GiB)

    assert rig.expected_room_bytes == 8 * GiB - rig.context.num_bytes - rig.growth.num_bytes
    assert rig.most_room_bytes == 8 * GiB - rig.context.low - rig.growth.low
    assert rig.outside.total_bytes == rig.context.num_bytes + rig.growth.num_bytes > 0


def test_without_a_budget_all_of_the_card_may_be_used():
    assert rig_of(CARD).budget_bytes == catalog()[CARD].total_bytes


def test_a_budget_smaller_than_the_context_leaves_no_room():
    assert rig_of(CARD, budget_bytes=1).most_room_bytes == 0


def test_a_budget_larger_than_the_card_is_refused():
    with pytest.raises(BadInput, match="leave it out to use the whole card"):
        rig_of(CARD, budget_bytes=100 * GiB)


@pytest.mark.parametrize(
    ("version", "others"),
    [("2.12", ("descending",)), ("2.13", ()), ("2.11.0+cu128", ("descending",))],
)
def test_where_segments_lie_matters_up_to_torch_2_12(version, others):
    assert rig_of(CARD, torch_version=version).other_addresses == others


def test_the_installed_torch_is_the_default(monkeypatch):
    monkeypatch.setattr(rigs, "installed_version", lambda package: "2.12.1+cu130")

    assert rig_of(CARD).version == TorchVersion(2, 12)


def test_settings_come_from_the_environment_unless_they_are_given(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

    found = rig_of(CARD)
    assert (found.alloc_conf, found.settings) == (
        "expandable_segments:True",
        Settings(expandable_segments=True),
    )
    assert rig_of(CARD, alloc_conf="").settings == Settings()


def test_a_memory_fraction_limits_what_may_be_reserved():
    rig = rig_of(CARD, torch_version="2.14", alloc_conf="per_process_memory_fraction:0.5")

    half = round(rig.card.total_bytes / 2)
    assert rig.expected_room_bytes == rig.most_room_bytes == half
    assert rig.budget_bytes == half + rig.context.high + rig.growth.high
    assert rig.with_fraction(0.25).expected_room_bytes == round(rig.card.total_bytes / 4)


def test_settings_that_pytorch_would_refuse_are_refused():
    with pytest.raises(BadInput):
        rig_of(CARD, alloc_conf="no_such_option:1")


def test_a_card_of_this_machine_is_preferred_and_is_what_cuda_means(monkeypatch):
    here = replace(catalog()[CARD], total_bytes=23 * GiB)
    monkeypatch.setattr(detect, "gpus", lambda: [here])
    monkeypatch.setattr(rigs, "gpus", lambda: [here])

    assert rig_of(CARD).card == rig_of("cuda").card == here


def test_cuda_without_a_gpu_in_the_machine_asks_for_a_name(monkeypatch):
    monkeypatch.setattr(rigs, "gpus", list)

    with pytest.raises(BadInput, match="name a card"):
        rig_of("cuda")


def test_a_card_that_nobody_knows_is_answered_with_the_nearest_names():
    with pytest.raises(UnknownName, match="no GPU is called 'rtx-4091'") as caught:
        rig_of("rtx-4091")

    assert CARD in caught.value.nearest
