"""Checkpointing finds the layers of transformers' families and changes no bit of their gradients.

With the encoder and decoder that T5 and Whisper are, layers of two classes in turn (Jamba), one
layer that is called as often as others have layers (ALBERT), experts and state-space layers.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from memfit.job import Job
from memfit.models.huggingface import job_from_config
from memfit.records.recipe import Recipe
from memfit.techniques.apply import apply
from memfit.techniques.blocks import repeated_blocks

_SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_CONFIGS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "jamba": {
        "num_experts": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 4,
    },
    "mamba2": {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8},
    "qwen3_moe": {**_EXPERTS, "num_experts": 4, "head_dim": 16},
    "deepseek_v3": {
        **_EXPERTS,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
    },
}


def _t5() -> Job:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=96,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )

    def loss(model: Any, tokens: Tensor) -> Tensor:
        found: Tensor = model(input_ids=tokens, labels=tokens).loss
        return found

    return Job(
        model=lambda: T5ForConditionalGeneration(copy.deepcopy(config)),
        batch=lambda batch_size, seq_len: torch.randint(96, (batch_size, seq_len)),
        loss=loss,
    )


def _whisper() -> Job:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"attention_heads": 2, "ffn_dim": 64, "layers": 2}
    config = WhisperConfig(
        vocab_size=96,
        d_model=32,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        **{f"{part}_{name}": n for name, n in sizes.items() for part in ("encoder", "decoder")},
    )

    def loss(model: Any, sound: Tensor) -> Tensor:
        labels = torch.arange(len(sound) * 12).view(-1, 12)
        found: Tensor = model(input_features=sound, labels=labels).loss
        return found

    return Job(
        model=lambda: WhisperForConditionalGeneration(copy.deepcopy(config)),
        batch=lambda batch_size, seq_len: torch.randn(batch_size, 8, 32),
        loss=loss,
    )


@cache
def job_of(family: str) -> Job:
    others: dict[str, Callable[[], Job]] = {"t5": _t5, "whisper": _whisper}
    if family in others:
        return others[family]()
    return job_from_config({**_SIZES, **_CONFIGS[family], "model_type": family})


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("t5", {"T5Block": 4}),
        ("whisper", {"WhisperEncoderLayer": 2, "WhisperDecoderLayer": 2}),
        ("albert", {"AlbertLayer": 1}),
        ("jamba", {"JambaMambaDecoderLayer": 2, "JambaAttentionDecoderLayer": 2}),
        ("mamba2", {"Mamba2Block": 4}),
        ("gemma3_text", {"Gemma3DecoderLayer": 4}),
        ("qwen3_moe", {"Qwen3MoeDecoderLayer": 4}),
        ("deepseek_v3", {"DeepseekV3DecoderLayer": 4}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*falling back")
def test_the_layers_are_found_and_a_step_through_them_is_that_of_the_plain_run(
    family, layers, checkpointing
):
    job = job_of(family)
    found: list[list[Tensor]] = []
    for recipe in (Recipe(batch_size=2), Recipe(batch_size=2, checkpointing=checkpointing)):
        torch.manual_seed(0)
        model, optimizer, step = apply(job, recipe)
        gradients: list[Tensor] = []

        def keep(*_: object, model=model, gradients=gradients) -> None:
            gradients.extend(p.grad.clone() for p in model.parameters() if p.grad is not None)

        optimizer.register_step_pre_hook(keep)
        outcome = step(job.batch(2, 16))
        found.append([torch.tensor(outcome.loss), torch.get_rng_state(), *gradients])

    blocks = repeated_blocks(model)
    assert Counter(type(block).__name__ for block in blocks) == layers
    assert all("forward" in vars(block) for block in blocks)
    assert len(found[0]) > 10
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
