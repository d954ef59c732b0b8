"""The model of the benchmark, as transformers' configuration and as memfit's job.

Dropout is off, for all: with it, attention on a CPU falls back to kernels that hold the whole
(T, T) matrix, and nothing else would be seen.
"""

from __future__ import annotations

from typing import Any

from benchmarks.techniques.contenders import Contender, Size
from memfit.job import Job
from memfit.models.huggingface import job_from_config
from memfit.records.recipe import Recipe


def gpt2_config(size: Size, gelu: str) -> dict[str, Any]:
    """The fields of a GPT2Config."""
    return {
        "model_type": "gpt2",
        "n_layer": size.num_layers,
        "n_embd": size.dim,
        "n_head": size.num_heads,
        "vocab_size": size.vocab_size,
        "n_positions": size.seq_len,
        "activation_function": gelu,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def job_of(contender: Contender, size: Size) -> Job:
    """The same model for memfit."""
    return job_from_config(gpt2_config(size, contender.gelu))


def recipe_of(contender: Contender, size: Size) -> Recipe:
    """The contender's recipe."""
    return Recipe(**{"batch_size": size.batch_size, **contender.recipe})
