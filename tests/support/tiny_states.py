"""A model of everything that a saved state must hold, trained a few steps and saved."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.apply import Applied, apply
from memfit.trainer import saved_state
from memfit.trainer.rng import rng_state
from memfit.trainer.saved_state import restore, save
from memfit.trainer.state_file import RunIdentity

RECIPE = Recipe(batch_size=2, accumulate=2, learning_rate=0.01)
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


class Tiny(nn.Module):
    """Dropout draws random numbers, batch norm has buffers, ``mix`` is not contiguous."""

    def __init__(self, *, tied: bool = False, width: int = 4, frozen: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.mix = nn.Parameter(torch.randn(width, width).t())
        self.head = nn.Linear(width, 8, bias=False)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.norm.weight.requires_grad_(not frozen)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.dropout(self.norm(self.embedding(tokens)), 0.5, self.training)
        return self.head(x + x @ self.mix)


def tiny_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens), (tokens + 1) % 8)


def build(recipe: Recipe = RECIPE, **settings: Any) -> Applied:
    job = Job(
        model=lambda: Tiny(**settings), batch=lambda size, _: torch.zeros(size), loss=tiny_loss
    )
    return apply(job, recipe)


def run_of(recipe: Recipe = RECIPE) -> RunIdentity:
    return RunIdentity(job_name="tiny", recipe=recipe, seq_len=16, seed=1, data_hash="1f" * 32)


def train(applied: Applied, first: int, last: int) -> list[float]:
    """The losses of the steps, whose batches follow from their numbers."""
    losses = []
    for step in range(first, last + 1):
        batch = torch.randint(8, (4,), generator=torch.Generator().manual_seed(step))
        losses.append(applied.step(batch).loss)
    return losses


def saved(folder: Path, *steps: int, keep: int = 3, **settings: Any) -> Applied:
    """Trains from scratch and saves after each of ``steps``."""
    torch.manual_seed(0)
    applied, done = build(**settings), 0
    for step in steps:
        train(applied, done + 1, step)
        save_again(folder, step, applied, keep=keep)
        done = step
    return applied


def save_again(folder: Path, step: int, applied: Applied, keep: int = 3) -> Path:
    run = run_of(applied.step.recipe)
    return save(
        folder,
        step=step,
        model=applied.model,
        optimizer=applied.optimizer,
        run=run,
        keep=keep,
        extra={"tokenizer": "tokenizer.json"},
    )


def go_on(folder: Path, applied: Applied, **changes: Any) -> saved_state.Restored:
    run = replace(run_of(applied.step.recipe), **changes)
    return restore(folder, model=applied.model, optimizer=applied.optimizer, run=run)


def everything(applied: Applied) -> dict[str, Any]:
    """All that the next step hangs on, as bytes where it is tensors."""
    names = {parameter: name for name, parameter in applied.model.named_parameters()}
    optimizer = {
        (names[parameter], kind): value
        for parameter, state in applied.optimizer.state.items()
        for kind, value in state.items()
    }
    tensors = {**applied.model.state_dict(), **optimizer}
    return {"rng": rng_state()} | {
        name: (t.dtype, t.shape, t.contiguous().flatten().view(torch.uint8).tolist())
        for name, t in tensors.items()
    }


def resign(path: Path, **changes: Any) -> None:
    """Changes state.json and gives it the checksum of its new contents."""
    document = json.loads(path.read_text()) | changes
    del document["checksum"]
    document["checksum"] = hashlib.sha256(json.dumps(document).encode()).hexdigest()
    path.write_text(json.dumps(document))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])
