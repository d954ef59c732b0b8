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


def run_of(job: Job, recipe: Recipe, num_steps: int = 2) -> Callable[[Observer], None]:
    """Building, steps and an evaluation: what a prediction traces and a test measures."""

    def steps(observer: Observer) -> None:
        applied = run.build(job, recipe, observer)
        make_batch = partial(job.batch, recipe.samples_per_step, SEQ_LEN)
        for number in range(1, num_steps + 1):
            run.take_step(applied, number, make_batch, observer)
        run.evaluate(applied, [partial(job.batch, recipe.batch_size, SEQ_LEN)], observer)

    return steps
