"""The smallest runs: a GPT that trains in milliseconds, and text for it."""

from __future__ import annotations

import random
from pathlib import Path

from memfit.job import Job
from memfit.models.gpt import GPTConfig, gpt_job

SEQ_LEN = 16
VOCAB_SIZE = 288
"""256 bytes, the end of text, and some pairs."""

TARGET = f"{Path(__file__)}:tiny_gpt"
"""The job on the command line."""


def tiny_gpt(num_layers: int = 2) -> Job:
    config = GPTConfig(
        num_layers=num_layers,
        dim=16,
        num_heads=2,
        num_kv_heads=1,
        vocab_size=VOCAB_SIZE,
        seq_len=SEQ_LEN,
    )
    return gpt_job(config, "tiny")


def deeper_gpt() -> Job:
    return tiny_gpt(num_layers=3)


def write_text_to_learn(path: Path) -> Path:
    """Sentences of eight words whose order is chance: much can be learnt of them, soon."""
    draw = random.Random(0)
    words = ["the", "model", "fits", "a", "batch", "when", "memory", "is", "small", "and", "loss"]
    lines = [" ".join(draw.choices(words, k=8)) + ".\n" for _ in range(800)]
    path.write_text("".join(lines))
    return path
