"""Presets are the published models: their sizes are proved on the meta device."""

import subprocess
import sys

import pytest
import torch

from memfit.errors import BadInput, UnknownName
from memfit.models.presets import PRESETS, is_preset, preset

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "smollm2-135m": 134_515_008,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "mistral-7b": 7_241_732_096,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "resnet50": 25_557_032,
    "vit-b-16": 86_567_656,
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    job = preset(name)
    with torch.device("meta"):
        model = job.model()

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert num_parameters == PRESETS[name].num_parameters
    assert num_parameters == PUBLISHED.get(name, num_parameters)
    assert job.name == name


def test_every_published_model_is_listed_beside_five_depths_of_nanochat() -> None:
    depths = ["nanochat-d4", "nanochat-d12", "nanochat-d20", "nanochat-d26", "nanochat-d32"]

    assert sorted(PRESETS) == sorted([*PUBLISHED, *depths])


@pytest.mark.parametrize(
    ("name", "seq_len", "max_seq_len", "vocab_size"),
    [
        ("gpt2", 1024, 1024, 50_257),
        ("nanochat-d12", 2048, 20_480, 32_768),
        ("llama-3.1-8b", 2048, None, 128_256),
        ("bert-base", 512, 512, None),
        ("resnet50", None, None, None),
    ],
)
def test_a_preset_knows_its_sequence_and_its_vocabulary(
    name: str, seq_len: int | None, max_seq_len: int | None, vocab_size: int | None
) -> None:
    job = preset(name)

    assert (job.seq_len, job.max_seq_len, job.vocab_size) == (seq_len, max_seq_len, vocab_size)


def test_nanochat_comes_in_any_depth() -> None:
    job = preset("nanochat-d3", seq_len=16, vocab_size=100)

    assert (job.name, job.seq_len, job.max_seq_len, job.vocab_size) == ("nanochat-d3", 16, 160, 100)
    assert len(job.model().blocks) == 3
    assert job.batch(2, 16).shape == (2, 17)


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b"])
def test_a_preset_takes_another_sequence_and_vocabulary(name: str) -> None:
    job = preset(name, seq_len=100, vocab_size=512)

    assert (job.seq_len, job.vocab_size) == (100, 512)
    with torch.device("meta"):
        assert job.model().get_input_embeddings().num_embeddings == 512


def test_a_sequence_beyond_the_learnt_positions_is_refused() -> None:
    with pytest.raises(BadInput, match="sequence of 1025 tokens: it has positions for 1024"):
        preset("gpt2", seq_len=1025)


def test_images_ignore_a_sequence_length() -> None:
    assert preset("vit-b-16", seq_len=64).seq_len is None


@pytest.mark.parametrize("name", ["gpt-2", "nanochat-d0", "nanochat-d", "nanochat-d1234", ""])
def test_an_unknown_preset_is_refused_with_the_nearest_names(name: str) -> None:
    assert not is_preset(name)
    with pytest.raises(UnknownName, match="memfit predict --list") as caught:
        preset(name)

    assert ("gpt2" in caught.value.nearest) == (name == "gpt-2")


def test_the_list_needs_no_torch() -> None:
    code = "import sys; from memfit.models import presets, target; print('torch' in sys.modules)"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
