"""The loop of xMem's published measurements: transformers models, four iterations.

The optimizer is made before the model is moved; what the model returned, the loss and the batch of
one iteration stay alive until the next one replaces them.  Lines of text are padded to the longest
of their batch, at most 128 tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.accuracy.transformers_models import CONFIGS, from_config
from memfit.observer import Observer


def model_of(name: str) -> nn.Module:
    """Made from its configuration on the host, its values left undefined."""
    is_t5 = CONFIGS[name][0] == "T5Config"
    model = from_config(name, "AutoModelForSeq2SeqLM" if is_t5 else "AutoModelForCausalLM")
    return model.train()


def text_batch(batch_size: int, length: int, vocab_size: int, *, padded: bool) -> dict[str, Tensor]:
    """Lines padded to ``length``: all but one are half as long, or all of them reach it.

    That there is padding at all decides whether a mask is built; how much of it does not matter.
    """
    input_ids = torch.randint(10, vocab_size, (batch_size, length))
    attention_mask = torch.ones(batch_size, length, dtype=torch.int64)
    if padded:
        attention_mask[1:, length // 2 :] = 0
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def train(
    observer: Observer,
    *,
    model: str,
    optimizer: str,
    batch_size: int,
    lengths: tuple[int, ...] = (128, 128, 128, 128),
    padded: bool = True,
    zero_grad_mode: int = 0,
) -> None:
    """An iteration for each of ``lengths``.

    Mode 0 zeroes the gradients first, 1 between forward and backward, 2 after the step.
    """
    observer.phase("init")
    net = model_of(model)
    stepper: torch.optim.Optimizer = getattr(torch.optim, optimizer)(net.parameters(), lr=0.001)
    net.to("cuda")
    vocab_size: int = net.config.vocab_size  # type: ignore[assignment, union-attr]
    for step, length in enumerate(lengths, 1):
        observer.step(step)
        observer.phase("forward")
        cpu_batch = text_batch(batch_size, length, vocab_size, padded=padded)
        batch = {name: tensor.to("cuda") for name, tensor in cpu_batch.items()}
        if zero_grad_mode == 0:
            stepper.zero_grad()
        outputs = net(**batch)
        loss = outputs.loss
        if zero_grad_mode == 1:
            stepper.zero_grad()
        observer.phase("backward")
        loss.backward()
        observer.phase("optimizer")
        stepper.step()
        if zero_grad_mode == 2:
            stepper.zero_grad()
    observer.phase("save")
