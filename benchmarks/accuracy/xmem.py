"""The loop of xMem's published measurements: transformers models, four iterations.

The optimizer is made before the model is moved; what the model returned, the loss and the batch of
one iteration stay alive until the next one replaces them.  Lines of text are padded to the longest
of their batch, at most 128 tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.accuracy.transformers_configs import CONFIGS
from memfit.observer import Observer


def model_of(name: str) -> nn.Module:
    """Made from its configuration on the host, its values left undefined."""
    import transformers
    from transformers.modeling_utils import no_init_weights

    kind, changes = CONFIGS[name]
    config = getattr(transformers, kind)(**changes)
    with no_init_weights():
        if kind == "T5Config":
            model: nn.Module = transformers.AutoModelForSeq2SeqLM.from_config(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()  # type: ignore[operator]  # left out with the values
    return model.train()


def padded_batch(batch_size: int, length: int, vocab_size: int) -> dict[str, Tensor]:
    """One line of ``length`` tokens, the others half as long, as lines of text differ.

    That there is padding at all decides whether a mask is built; how much of it does not matter.
    """
    input_ids = torch.randint(10, vocab_size, (batch_size, length))
    attention_mask = torch.ones(batch_size, length, dtype=torch.int64)
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
        cpu_batch = padded_batch(batch_size, length, vocab_size)
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
