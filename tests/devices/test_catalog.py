"""The catalog: figures that can be traced and are plausible, and names as people type them."""

import dataclasses

import pytest

from memfit.devices.catalog import catalog, find, matches
from memfit.errors import BadInput, UnknownName
from memfit.records.device import Device
from memfit.units import GiB, MiB

GB_ON_THE_BOX = {
    "rtx-2060-6gb": 6,
    "rtx-2060-super": 8,
    "rtx-2070": 8,
    "rtx-2070-super": 8,
    "rtx-2080": 8,
    "rtx-2080-super": 8,
    "rtx-2080-ti": 11,
    "titan-rtx": 24,
    "titan-v": 12,
    "quadro-rtx-5000": 16,
    "quadro-rtx-6000": 24,
    "quadro-rtx-8000": 48,
    "t4": 16,
    "p100-16gb": 16,
    "v100-16gb": 16,
    "v100-32gb": 32,
    "rtx-3060-laptop": 6,
    "rtx-3060-12gb": 12,
    "rtx-3060-ti": 8,
    "rtx-3070": 8,
    "rtx-3070-ti": 8,
    "rtx-3080-10gb": 10,
    "rtx-3080-12gb": 12,
    "rtx-3080-ti": 12,
    "rtx-3090": 24,
    "rtx-3090-ti": 24,
    "rtx-a4000": 16,
    "rtx-a5000": 24,
    "rtx-a6000": 48,
    "a10": 24,
    "a10g": 24,
    "a30": 24,
    "a40": 48,
    "a100-pcie-40gb": 40,
    "a100-pcie-80gb": 80,
    "a100-40gb": 40,
    "a100-80gb": 80,
    "rtx-4060-8gb": 8,
    "rtx-4060-ti-8gb": 8,
    "rtx-4060-ti-16gb": 16,
    "rtx-4070": 12,
    "rtx-4070-super": 12,
    "rtx-4070-ti": 12,
    "rtx-4070-ti-super": 16,
    "rtx-4080": 16,
    "rtx-4080-super": 16,
    "rtx-4090": 24,
    "rtx-4070-laptop": 8,
    "rtx-4090-laptop": 16,
    "rtx-4000-ada": 20,
    "rtx-5000-ada": 32,
    "rtx-6000-ada": 48,
    "l4": 24,
    "l40": 48,
    "l40s": 48,
    "h100-pcie-80gb": 80,
    "h100-80gb": 80,
    "h100-nvl-94gb": 94,
    "h200": 141,
    "gh200-96gb": 96,
    "rtx-5060-ti-16gb": 16,
    "rtx-5070": 12,
    "rtx-5070-ti": 16,
    "rtx-5080": 16,
    "rtx-5090": 32,
    "rtx-pro-5000-48gb": 48,
    "rtx-pro-6000": 96,
    "rtx-pro-6000-max-q": 96,
    "rtx-pro-6000-server": 96,
    "b200": 192,
}

RATES = ("fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops", "fp8_flops")

# TFLOP/s, dense, fp32 accumulation, in the order of RATES: what the makers' documents print, or
# half of it where only the rate with sparsity is printed.
MAKERS_FIGURES = {
    "v100-16gb": (15.7, 0, 125, 0, 0),
    "t4": (8.1, 0, 65, 0, 0),
    "rtx-2080-ti": (13.4, 0, 53.8, 0, 0),
    "quadro-rtx-6000": (16.3, 0, 130.5, 0, 0),
    "rtx-3090": (35.6, 35.6, 71.2, 71.2, 0),
    "rtx-a4000": (19.2, 38.3, 76.7, 76.7, 0),
    "rtx-a5000": (27.8, 55.6, 111.1, 111.1, 0),
    "rtx-a6000": (38.7, 77.4, 154.8, 154.8, 0),
    "a10": (31.2, 62.5, 125, 125, 0),
    "a30": (10.3, 82, 165, 165, 0),
    "a40": (37.4, 74.8, 149.7, 149.7, 0),
    "a100-80gb": (19.5, 156, 312, 312, 0),
    "rtx-4090": (82.6, 82.6, 165.2, 165.2, 330.3),
    "rtx-4000-ada": (26.7, 53.5, 106.9, 106.9, 213.8),
    "rtx-5000-ada": (65.3, 130.6, 261.1, 261.1, 522.2),
    "rtx-6000-ada": (91.1, 182.1, 364.2, 364.2, 728.5),
    "l4": (30.3, 60, 121, 121, 242),
    "l40": (90.5, 90.5, 181, 181, 362),
    "l40s": (91.6, 183, 362, 362, 733),
    "h100-pcie-80gb": (51, 378, 756, 756, 1513),
    "h100-80gb": (66.9, 494.7, 989.4, 989.4, 1978.9),
    "h100-nvl-94gb": (60, 417.5, 835.5, 835.5, 1670.5),
    "h200": (67, 494.5, 989.5, 989.5, 1979),
    "rtx-5090": (104.8, 104.8, 209.5, 209.5, 419),
    "rtx-pro-6000": (126, 251.9, 503.8, 503.8, 1007.6),
    "b200": (75, 1100, 2250, 2250, 4500),
}

every_card = pytest.mark.parametrize("card", catalog().values(), ids=catalog())


@every_card
def test_every_figure_is_there_and_has_a_source(card):
    figures = {field.name for field in dataclasses.fields(Device)} - {
        "name",
        "kind",
        "label",
        "architecture",
        "sources",
    }
    assert set(card.sources) == figures
    assert all(len(source) > 20 for source in card.sources.values())
    assert all(getattr(card, figure) for figure in figures.difference(RATES) | {"fp32_flops"})
    assert card.architecture


def test_the_test_knows_every_card():
    assert list(catalog()) == list(GB_ON_THE_BOX)


@every_card
def test_a_card_has_a_little_less_than_stands_on_its_box(card):
    box = GB_ON_THE_BOX[card.name]
    assert 0.9 * box <= card.total_bytes / GiB < box


@every_card
def test_a_total_that_others_only_printed_roughly_says_so(card):
    source = card.sources["total_bytes"]
    exact = f"{card.total_bytes}" in source.replace(",", "") or card.total_bytes % MiB
    rough = {"MiB", "MB", "approximate", "not found", "deviceQuery"}
    assert exact or any(word in source for word in rough)


@every_card
def test_tensor_cores_learned_the_types_one_generation_after_the_other(card):
    capability = float(card.compute_capability)
    assert (card.fp16_flops > 0) == (capability >= 7.0)
    assert (card.tf32_flops > 0) == (card.bf16_flops > 0) == (capability >= 8.0)
    assert (card.fp8_flops > 0) == (capability >= 8.9)


@every_card
def test_half_the_bits_are_twice_the_rate(card):
    assert card.bf16_flops in (0, card.fp16_flops)
    assert card.tf32_flops == 0 or 1.99 < card.bf16_flops / card.tf32_flops < 2.05
    assert card.fp8_flops in (0, 2 * card.bf16_flops)


@pytest.mark.parametrize("name", MAKERS_FIGURES)
def test_the_rates_are_the_makers(name):
    rates = [getattr(catalog()[name], rate) / 10**12 for rate in RATES]
    assert rates == pytest.approx(MAKERS_FIGURES[name], rel=0.015)


@every_card
def test_an_sm_works_at_a_clock_that_exists(card):
    """The figure with sparsity, or of another number of multiprocessors, would not."""
    units = {"6.0": 64, "7.0": 64, "7.5": 64, "8.0": 64}.get(card.compute_capability, 128)
    assert 1.2e9 < card.fp32_flops / (card.sms * 2 * units) < 2.7e9 or card.name == "b200"


@every_card
def test_memory_is_as_fast_as_the_card_needs(card):
    assert 8 < card.fp32_flops / card.bandwidth_bytes_per_second < 120
    assert 2 * MiB < card.l2_bytes <= 128 * MiB
    assert card.link_bytes_per_second < card.bandwidth_bytes_per_second / 4


@every_card
def test_a_context_is_hundreds_of_mebibytes(card):
    assert 50 * MiB < card.context_bytes - card.context_spread_bytes
    assert card.context_bytes + card.context_spread_bytes < GiB


def test_figures_that_a_capability_fixes():
    fixed = {
        card.compute_capability: (
            card.architecture,
            card.threads_per_sm,
            card.shared_memory_per_block_bytes,
        )
        for card in catalog().values()
    }
    assert fixed == {
        "6.0": ("Pascal", 2048, 49152),
        "7.0": ("Volta", 2048, 98304),
        "7.5": ("Turing", 1024, 65536),
        "8.0": ("Ampere", 2048, 166912),
        "8.6": ("Ampere", 1536, 101376),
        "8.9": ("Ada", 1536, 101376),
        "9.0": ("Hopper", 2048, 232448),
        "10.0": ("Blackwell", 2048, 232448),
        "12.0": ("Blackwell", 1536, 101376),
    }


@every_card
def test_a_card_is_found_by_its_name_and_by_the_label_that_cuda_prints(card):
    assert find(card.name) is card
    assert find(card.name.upper().replace("-", "_")) is card
    assert card in matches(card.label)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("geforce rtx 4090 24GB", "rtx-4090"),
        ("3060", "rtx-3060-12gb"),
        ("RTX 3060 12 GB", "rtx-3060-12gb"),
        ("RTX 3080 12GB", "rtx-3080-12gb"),
        ("2080ti", "rtx-2080-ti"),
        ("RTX 3090 Ti", "rtx-3090-ti"),
        ("4060", "rtx-4060-8gb"),
        ("4060ti 16gb", "rtx-4060-ti-16gb"),
        ("4070 ti super", "rtx-4070-ti-super"),
        ("RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("a6000", "rtx-a6000"),
        ("RTX 6000 24GB", "quadro-rtx-6000"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("rtx pro 6000", "rtx-pro-6000"),
        ("rtx 8000", "quadro-rtx-8000"),
        ("A100 80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("v100-32gb", "v100-32gb"),
        ("P100", "p100-16gb"),
        ("nvidia t4", "t4"),
        ("h100", "h100-80gb"),
        ("h100 sxm5", "h100-80gb"),
        ("h100-pcie", "h100-pcie-80gb"),
        ("h100 nvl", "h100-nvl-94gb"),
        ("l40", "l40"),
        ("l40s", "l40s"),
        ("H200-141GB", "h200"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
    ],
)
def test_short_forms_mean_the_one_card_they_can_mean(typed, name):
    assert find(typed).name == name


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("a100", "a100-40gb or a100-80gb"),
        ("V100", "v100-16gb or v100-32gb"),
        ("NVIDIA A100-SXM4", "a100-40gb or a100-80gb"),
        ("4060 Ti", "rtx-4060-ti-8gb or rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 3080", "rtx-3080-10gb or rtx-3080-12gb"),
        ("rtx-5000", "quadro-rtx-5000 or rtx-5000-ada or rtx-pro-5000-48gb"),
    ],
)
def test_a_short_form_of_several_cards_is_refused_with_their_names(typed, names):
    with pytest.raises(BadInput, match=f"{typed}' is more than one GPU: write {names}$"):
        find(typed)


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("rtx-4091", "rtx-4090"),
        ("RTX 3070 Super", "rtx-2070-super"),
        ("rtx-3060-8gb", "rtx-3060-12gb"),
        ("a100-pcie-60gb", "a100-pcie-80gb"),
        ("b300", "b200"),
    ],
)
def test_a_card_that_only_resembles_another_is_refused_with_the_nearest_names(typed, nearest):
    with pytest.raises(UnknownName, match=r"no GPU is called .*memfit gpus") as refusal:
        find(typed)
    assert nearest in refusal.value.nearest


@pytest.mark.parametrize("typed", ["", "rtx", "gpu", "80gb", "7", "RTX 4091 Laptop GPU"])
def test_what_names_no_card_is_refused(typed):
    with pytest.raises(UnknownName):
        find(typed)
