"""Muon with its momentum in 8 bits, beside Muon: the loss of both on real text, step by step.

    python -m benchmarks.muon_8bit [--steps 500]

trains one small GPT on the bytes of Python's own manual twice, from the same weights, on the same
batches, at nanochat's rates and schedules, and prints the mean loss of each tenth of the run, how
far the curves are apart, and the state of both in bytes a parameter.
"""

from __future__ import annotations

import argparse
from functools import cache
from pydoc_data.topics import topics
from typing import NamedTuple

import torch
from torch import Tensor

from memfit.models.gpt import GPT, GPTConfig, next_token_loss
from memfit.optimizers.muon import muon_adamw
from memfit.trainer.schedule import Schedule, set_rates

CONFIG = GPTConfig(num_layers=3, dim=96, num_heads=3, num_kv_heads=3, vocab_size=256, seq_len=96)
BATCH_SIZE = 8


class Run(NamedTuple):
    """What one training gave."""

    losses: list[float]
    """The loss of each step, in nats a byte."""

    state_bytes: float
    """Muon's state, in bytes a parameter of a hidden matrix."""


def train(num_steps: int, *, eight_bit: bool, config: GPTConfig = CONFIG) -> Run:
    """Trains a model from the same weights on the same batches each time."""
    torch.manual_seed(0)
    model = GPT(config)
    optimizer = muon_adamw(model, learning_rate=0.02, weight_decay=0.1, eight_bit=eight_bit)
    schedule = Schedule.for_steps(num_steps)
    losses = []
    for step in range(1, num_steps + 1):
        loss_sum, num_targets = next_token_loss(model, batch(step, config.seq_len))
        loss = loss_sum / num_targets
        loss.backward()
        set_rates(optimizer, schedule, step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    muon = optimizer.parts[0]
    num_bytes = sum(t.nbytes for state in muon.state.values() for t in state.values())
    numbers = sum(p.numel() for group in muon.param_groups for p in group["params"])
    return Run(losses, num_bytes / numbers)


def batch(step: int, seq_len: int) -> Tensor:
    """Bytes (B, T+1) of the text, int64, from places that hang on the step alone."""
    generator = torch.Generator().manual_seed(step)
    length = seq_len + 1
    starts = torch.randint(len(_text()) - length, (BATCH_SIZE,), generator=generator)
    return torch.stack([_text()[start : start + length] for start in starts.tolist()]).long()


def tenths(losses: list[float]) -> list[float]:
    """The mean loss of each tenth of a run."""
    parts = torch.tensor(losses, dtype=torch.float64).tensor_split(10)
    return [part.mean().item() for part in parts]


def furthest(one: list[float], other: list[float]) -> float:
    """The largest difference of the means of tenths, relative to the first."""
    return max(abs(b / a - 1) for a, b in zip(tenths(one), tenths(other), strict=True))


@cache
def _text() -> Tensor:
    text = "\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    num_steps = parser.parse_args().steps
    plain = train(num_steps, eight_bit=False)
    narrow = train(num_steps, eight_bit=True)
    print(f"{'tenth':>5} {'muon':>8} {'8 bits':>8} {'apart':>8}")
    for number, (a, b) in enumerate(
        zip(tenths(plain.losses), tenths(narrow.losses), strict=True), start=1
    ):
        print(f"{number:>5} {a:>8.4f} {b:>8.4f} {b / a - 1:>+8.3%}")
    print(f"furthest apart: {furthest(plain.losses, narrow.losses):.3%}")
    print(f"state: {plain.state_bytes:.4f} and {narrow.state_bytes:.4f} bytes a parameter")


if __name__ == "__main__":
    main()
