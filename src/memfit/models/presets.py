"""Jobs by name: published models, with the figures of their published configurations.

``nanochat-dN`` is the built-in GPT at any depth N; everything else is built by transformers.  A
preset is an architecture, not weights: the model starts from scratch.

Source of each configuration: the ``config.json`` beside the published weights, named at its place;
``num_parameters`` is the published count, which a test compares with the model that is built.
Fields that say what transformers assumes anyway are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from memfit.errors import UnknownName
from memfit.job import Job

_NANOCHAT = re.compile(r"nanochat-d([1-9]\d{0,2})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A named job that is not built yet."""

    description: str
    """One line for a list."""

    num_parameters: int
    """Trained numbers, tied weights counted once."""

    build: Callable[[int | None, int | None], Job]
    """``(seq_len, vocab_size)`` -> the job; None for the preset's own."""


def preset(name: str, *, seq_len: int | None = None, vocab_size: int | None = None) -> Job:
    """The job called ``name``: one of ``PRESETS``, or ``nanochat-dN`` for any depth N.

    Args:
        name: for example ``gpt2``.
        seq_len: the job's sequence length, in tokens, in place of the preset's; ignored where
            there are no sequences.
        vocab_size: the tokenizer's, in place of the model's.

    Raises:
        UnknownName: there is no such preset.
        BadInput: the model cannot take sequences of ``seq_len``, or has no vocabulary to set.
    """
    if is_preset(name):
        found = PRESETS.get(name) or _nanochat(int(name.removeprefix("nanochat-d")))
        return replace(found.build(seq_len, vocab_size), name=name)
    raise UnknownName("preset", name, PRESETS, "see all: memfit predict --list")


def is_preset(name: str) -> bool:
    """Whether :func:`preset` knows ``name``."""
    return name in PRESETS or _NANOCHAT.fullmatch(name) is not None


def _nanochat(depth: int) -> Preset:
    width = -(-depth // 2) * 128
    return Preset(
        description=f"nanochat's GPT, {depth} layers, built in",
        num_parameters=12 * depth * width**2 + 2 * 32_768 * width,
        build=partial(_build_nanochat, depth),
    )


def _build_nanochat(depth: int, seq_len: int | None, vocab_size: int | None) -> Job:
    from memfit.models.gpt import GPTConfig, gpt_job

    sizes = {"seq_len": seq_len, "vocab_size": vocab_size}
    asked = {key: value for key, value in sizes.items() if value is not None}
    return gpt_job(GPTConfig.of_depth(depth, **asked))


def _published(description: str, num_parameters: int, config: dict[str, Any]) -> Preset:
    return Preset(
        description=description,
        num_parameters=num_parameters,
        build=partial(_build_published, config),
    )


def _build_published(config: dict[str, Any], seq_len: int | None, vocab_size: int | None) -> Job:
    from memfit.models.huggingface import job_from_config

    job = job_from_config(config, vocab_size=vocab_size)
    return job if seq_len is None or job.seq_len is None else replace(job, seq_len=seq_len)


def _gpt2(n_layer: int, n_embd: int, n_head: int) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_layer": n_layer, "n_embd": n_embd, "n_head": n_head}


def _bert(num_layers: int, hidden_size: int, num_heads: int) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "num_hidden_layers": num_layers,
        "hidden_size": hidden_size,
        "num_attention_heads": num_heads,
        "intermediate_size": 4 * hidden_size,
    }


def _llama_3(rope_factor: float, **sizes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": 128_256,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": rope_factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        **sizes,
    }


def _qwen3(**sizes: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        **sizes,
    }


PRESETS: dict[str, Preset] = {
    # openai-community/gpt2, -medium, -large, -xl
    "gpt2": _published("GPT-2 small", 124_439_808, _gpt2(12, 768, 12)),
    "gpt2-medium": _published("GPT-2 medium", 354_823_168, _gpt2(24, 1024, 16)),
    "gpt2-large": _published("GPT-2 large", 774_030_080, _gpt2(36, 1280, 20)),
    "gpt2-xl": _published("GPT-2 XL", 1_557_611_200, _gpt2(48, 1600, 25)),
    **{f"nanochat-d{depth}": _nanochat(depth) for depth in (4, 12, 20, 26, 32)},
    # HuggingFaceTB/SmolLM2-135M
    "smollm2-135m": _published(
        "SmolLM2 135M",
        134_515_008,
        {
            "model_type": "llama",
            "vocab_size": 49_152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "initializer_range": 1 / 24,
            "rms_norm_eps": 1e-5,
            "rope_theta": 100_000.0,
            "tie_word_embeddings": True,
        },
    ),
    # meta-llama/Llama-3.2-1B
    "llama-3.2-1b": _published(
        "Llama 3.2 1B",
        1_235_814_400,
        _llama_3(
            32.0,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            tie_word_embeddings=True,
        ),
    ),
    # meta-llama/Llama-3.1-8B
    "llama-3.1-8b": _published(
        "Llama 3.1 8B",
        8_030_261_248,
        _llama_3(
            8.0,
            hidden_size=4096,
            intermediate_size=14_336,
            num_hidden_layers=32,
            num_attention_heads=32,
            tie_word_embeddings=False,
        ),
    ),
    # Qwen/Qwen3-0.6B
    "qwen3-0.6b": _published(
        "Qwen3 0.6B",
        596_049_920,
        _qwen3(
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            tie_word_embeddings=True,
        ),
    ),
    # Qwen/Qwen3-8B
    "qwen3-8b": _published(
        "Qwen3 8B",
        8_190_735_360,
        _qwen3(
            hidden_size=4096,
            intermediate_size=12_288,
            num_hidden_layers=36,
            num_attention_heads=32,
            tie_word_embeddings=False,
        ),
    ),
    # mistralai/Mistral-7B-v0.1
    "mistral-7b": _published(
        "Mistral 7B v0.1",
        7_241_732_096,
        {
            "model_type": "mistral",
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32_768,
            "sliding_window": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
        },
    ),
    # google-bert/bert-base-uncased, bert-large-uncased
    "bert-base": _published("BERT base, masked words", 109_514_298, _bert(12, 768, 12)),
    "bert-large": _published("BERT large, masked words", 335_174_458, _bert(24, 1024, 16)),
    # microsoft/resnet-50
    "resnet50": _published(
        "ResNet-50, ImageNet classes",
        25_557_032,
        {
            "model_type": "resnet",
            "embedding_size": 64,
            "hidden_sizes": [256, 512, 1024, 2048],
            "depths": [3, 4, 6, 3],
            "layer_type": "bottleneck",
            "num_labels": 1000,
        },
    ),
    # google/vit-base-patch16-224
    "vit-b-16": _published(
        "ViT-B/16 at 224 pixels, ImageNet classes",
        86_567_656,
        {
            "model_type": "vit",
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": 224,
            "patch_size": 16,
            "num_labels": 1000,
        },
    ),
}
