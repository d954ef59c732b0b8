"""The loops that course model B's recordings were taken in, each from an empty allocator."""

from __future__ import annotations

import torch

from benchmarks.accuracy.course_a_runs import mixed_precision
from benchmarks.accuracy.course_b import VOCAB_SIZE, CourseModelB, LastPositionLoss, OwnAdam
from memfit.observer import Observer


def train(observer: Observer, *, batch_size: int, seq_len: int, precision: str) -> None:
    """Three steps of forward, loss, backward and Adam, with autocast around all three if at all."""
    observer.phase("init")
    model = CourseModelB("cuda")
    optimizer = OwnAdam(model.parameters())
    criterion = LastPositionLoss()
    ids = torch.randint(0, VOCAB_SIZE, (batch_size, seq_len)).to("cuda")
    labels = torch.randint(0, VOCAB_SIZE, (batch_size,)).to("cuda")
    with mixed_precision(precision):
        for step in range(1, 4):
            observer.step(step)
            observer.phase("forward")
            optimizer.zero_grad()
            logits = model(ids)
            last = logits[:, -1, :]
            loss = criterion(last, labels)
            observer.phase("backward")
            loss.backward()
            observer.phase("optimizer")
            optimizer.step()
    observer.phase("save")


def forward(observer: Observer, *, batch_size: int, seq_len: int, precision: str) -> None:
    """Three forwards, each in its own autocast region if at all; the graph dies with the logits."""

    def run() -> None:
        with mixed_precision(precision):
            logits = model(ids)
        assert logits.shape[1] == seq_len

    observer.phase("init")
    model = CourseModelB("cuda")
    ids = torch.randint(0, VOCAB_SIZE, (batch_size, seq_len)).to("cuda")
    for step in range(1, 4):
        observer.step(step)
        observer.phase("forward")
        run()
    observer.phase("save")
