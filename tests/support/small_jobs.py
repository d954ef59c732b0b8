"""Small jobs of every family that predictions are proved on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from memfit.job import Job
from memfit.models.gpt import GPTConfig, gpt_job
from memfit.models.huggingface import job_from_config
from memfit.observer import Observer
from memfit.records.recipe import Recipe
from memfit.techniques import run

SEQ_LEN = 24

_GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 96,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_BERT = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
_VIT = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}

_RESNET = {
    "architectures": ["ResNetForImageClassification"],
    "model_type": "resnet",
    "num_channels": 3,
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 2],
}
_QWEN3 = {**_LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
_MIXTRAL = {
    **_LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "intermediate_size": 64,
    "num_local_experts": 4,
}


def _builtin_gpt() -> Job:
    config = GPTConfig(num_layers=2, dim=64, num_heads=4, num_kv_heads=2, vocab_size=96, seq_len=64)
    return gpt_job(config, "gpt")


JOBS: dict[str, Callable[[], Job]] = {
    "gpt": _builtin_gpt,
    "gpt2": partial(job_from_config, _GPT2),
    "llama": partial(job_from_config, _LLAMA),
    "bert": partial(job_from_config, _BERT),
    "vit": partial(job_from_config, _VIT),
}
"""The families that predictions are proved on with every recipe."""

OTHER_JOBS: dict[str, Callable[[], Job]] = {
    "resnet": partial(job_from_config, _RESNET),
    "qwen3": partial(job_from_config, _QWEN3),
    "mixtral": partial(job_from_config, _MIXTRAL),
}
"""Families with batch norm, with norms of queries and keys, and with experts."""


def run_of(job: Job, recipe: Recipe, num_steps: int = 2) -> Callable[[Observer], None]:
    """Building, steps and an evaluation: what a prediction traces and a test measures."""

    def steps(observer: Observer) -> None:
        applied = run.build(job, recipe, observer)
        make_batch = partial(job.batch, recipe.samples_per_step, SEQ_LEN)
        for number in range(1, num_steps + 1):
            run.take_step(applied, number, make_batch, observer)
        run.evaluate(applied, [partial(job.batch, recipe.batch_size, SEQ_LEN)], observer)

    return steps
