"""The smallest runs: a GPT that trains in milliseconds, and text for it."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from memfit.job import Job
from memfit.models.gpt import GPTConfig, gpt_job

SEQ_LEN = 16
VOCAB_SIZE = 288
"""256 bytes, the end of text, and some pairs."""

TARGET = f"{Path(__file__)}:tiny_gpt"
"""The job on the command line; DEEPER has another model, SLOW the same."""

DEEPER, SLOW = (TARGET.replace("tiny_gpt", name) for name in ("deeper_gpt", "slow_gpt"))


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


def slow_gpt() -> Job:
    """The same numbers as :func:`tiny_gpt`, in steps that leave time to interrupt them."""
    job = tiny_gpt()

    def loss(model: nn.Module, batch: Any) -> Any:
        time.sleep(0.05)
        return job.loss(model, batch)

    return replace(job, loss=loss)


def write_text_to_learn(path: Path) -> Path:
    """Sentences of eight words whose order is chance: much can be learnt of them, soon."""
    draw = random.Random(0)
    words = ["the", "model", "fits", "a", "batch", "when", "memory", "is", "small", "and", "loss"]
    lines = [" ".join(draw.choices(words, k=8)) + ".\n" for _ in range(800)]
    path.write_text("".join(lines))
    return path
