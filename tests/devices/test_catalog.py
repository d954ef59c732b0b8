"""The catalog: figures that can be traced and are plausible, and names as people type them."""

import pytest

from memfit.devices.catalog import catalog, find
from memfit.errors import BadInput, UnknownName
from memfit.units import GiB

GB_ON_THE_BOX = {
    "rtx-3060-12gb": 12,
    "rtx-3090": 24,
    "rtx-4060-8gb": 8,
    "rtx-4060-ti-16gb": 16,
    "rtx-4090": 24,
    "rtx-5090": 32,
    "rtx-a6000": 48,
    "t4": 16,
    "v100-16gb": 16,
    "v100-32gb": 32,
    "a10": 24,
    "a40": 48,
    "a100-40gb": 40,
    "a100-80gb": 80,
    "l4": 24,
    "l40s": 48,
    "h100-80gb": 80,
    "h200": 141,
    "b200": 192,
}


@pytest.mark.parametrize("card", catalog().values(), ids=catalog())
def test_every_figure_has_a_source(card):
    figures = {"total_bytes", "compute_capability", "sms", "bandwidth_bytes_per_second"}
    assert set(card.sources) == figures | {"bf16_flops"}
    assert all(len(source) > 20 for source in card.sources.values())
    assert all(getattr(card, figure) for figure in figures)


def test_the_test_knows_every_card():
    assert list(catalog()) == list(GB_ON_THE_BOX)


@pytest.mark.parametrize("card", catalog().values(), ids=catalog())
def test_a_card_has_a_little_less_than_stands_on_its_box(card):
    box = GB_ON_THE_BOX[card.name]
    assert 0.9 * box <= card.total_bytes / GiB <= box


@pytest.mark.parametrize("card", catalog().values(), ids=catalog())
def test_only_cards_since_ampere_have_bf16_tensor_cores(card):
    assert (card.bf16_flops > 0) == (float(card.compute_capability) >= 8.0)


@pytest.mark.parametrize("card", [card for card in catalog().values() if card.bf16_flops])
def test_a_bf16_peak_is_the_tensor_cores_dense_rate_at_a_clock_that_exists(card):
    """The figure with sparsity, or with fp16 accumulation, would need twice the clock."""
    per_clock = {"GeForce": 512, "A100": 2048, "H100": 4096, "H200": 4096, "B200": 8192}
    rate = next((rate for word, rate in per_clock.items() if word in card.label), 1024)
    assert 1.4e9 < card.bf16_flops / (card.sms * rate) < 2.6e9


@pytest.mark.parametrize("card", catalog().values(), ids=catalog())
def test_a_card_is_found_by_its_name_and_by_the_label_that_cuda_prints(card):
    assert find(card.name) is card
    assert find(card.name.upper().replace("-", "_")) is card
    assert find(card.label) is card


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("geforce rtx 4090 24GB", "rtx-4090"),
        ("3060", "rtx-3060-12gb"),
        ("RTX 3060 12 GB", "rtx-3060-12gb"),
        ("4060", "rtx-4060-8gb"),
        ("4060ti", "rtx-4060-ti-16gb"),
        ("a6000", "rtx-a6000"),
        ("A100 80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("v100-32gb", "v100-32gb"),
        ("nvidia t4", "t4"),
        ("h100", "h100-80gb"),
        ("l40s", "l40s"),
        ("H200-141GB", "h200"),
    ],
)
def test_short_forms_mean_the_one_card_they_can_mean(typed, name):
    assert find(typed).name == name


@pytest.mark.parametrize("typed", ["a100", "V100", "NVIDIA A100-SXM4"])
def test_a_short_form_of_two_cards_is_refused_with_both_names(typed):
    with pytest.raises(BadInput, match=r"more than one GPU: write \w+-\w+ or \w+-\w+$"):
        find(typed)


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("rtx-4091", "rtx-4090"),
        ("RTX 3090 Ti", "rtx-3090"),
        ("l40", "l40s"),
        ("h100-pcie", "h100-80gb"),
        ("a10g", "a10"),
        ("rtx-3060-8gb", "rtx-3060-12gb"),
    ],
)
def test_a_card_that_only_resembles_another_is_refused_with_the_nearest_names(typed, nearest):
    with pytest.raises(UnknownName, match=r"no GPU is called .*memfit gpus") as refusal:
        find(typed)
    assert nearest in refusal.value.nearest


@pytest.mark.parametrize("typed", ["", "rtx", "gpu", "80gb", "RTX 4090 Laptop GPU"])
def test_what_names_no_card_is_refused(typed):
    with pytest.raises(UnknownName):
        find(typed)
