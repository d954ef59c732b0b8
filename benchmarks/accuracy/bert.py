"""bert-large rows: Hugging Face's Trainer as of early 2022, its loop written out.

What is assumed of that Trainer and of its torch (1.10): eager attention; softmax keeps its input;
``zero_grad`` fills gradients with zeros and keeps them; gradients are clipped to norm 1 by a loop;
every loss is added to a running total on the GPU.  The rows print nvidia-smi's figure at the end of
an epoch, which is the reserved memory, since nothing is given back, and a CUDA context that the
source measured.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.accuracy.bert_optimizers import Adam8bit, LoopAdamW
from benchmarks.accuracy.old_torch import old_softmax
from benchmarks.accuracy.transformers_models import from_config
from memfit.observer import Observer

NUM_STEPS = 4


def bert_large() -> nn.Module:
    """With a head for two classes, on the host, its values left undefined."""
    return from_config(
        "bert-large-uncased", "AutoModelForSequenceClassification", attn_implementation="eager"
    )


def optimizer_of(name: str, model: nn.Module) -> Optimizer:
    """The Trainer's choice for ``name``, with its two groups of parameters."""
    without_decay = [p for p in model.parameters() if p.dim() < 2]
    with_decay = [p for p in model.parameters() if p.dim() >= 2]
    groups: list[Any] = [{"params": with_decay}, {"params": without_decay}]
    if name == "adamw":
        return LoopAdamW(groups)
    if name == "adam8bit":
        return Adam8bit(groups)
    if name == "adafactor":
        kind: Any = import_module("transformers.optimization").Adafactor
        adafactor: Optimizer = kind(groups, lr=5e-5, scale_parameter=False, relative_step=False)
        return adafactor
    raise ValueError(f"no optimizer {name!r}: adamw, adam8bit or adafactor")


def train(
    observer: Observer,
    *,
    batch_size: int,
    seq_len: int,
    optimizer: str = "adamw",
    precision: str = "fp32",
    accumulate: int = 1,
) -> None:
    """A few optimizer steps of ``accumulate`` batches each."""
    observer.phase("init")
    model = bert_large().to("cuda")
    model.train()
    stepper = optimizer_of(optimizer, model)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    total = torch.tensor(0.0).to("cuda")
    for step in range(1, NUM_STEPS + 1):
        observer.step(step)
        for _ in range(accumulate):
            observer.phase("forward")
            batch = {
                "input_ids": torch.randint(100, 30_000, (batch_size, seq_len)).to("cuda"),
                "labels": torch.randint(0, 2, (batch_size,)).to("cuda"),
            }
            with old_softmax(), torch.autocast("cuda", torch.float16, enabled=precision == "fp16"):
                loss = model(**batch).loss
            loss = loss / accumulate if accumulate > 1 else loss
            observer.phase("backward")
            scaler.scale(loss).backward()
            total += loss.detach()
            del loss
        observer.phase("optimizer")
        scaler.unscale_(stepper)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(stepper)
        scaler.update()
        model.zero_grad(set_to_none=False)
    observer.phase("save")
