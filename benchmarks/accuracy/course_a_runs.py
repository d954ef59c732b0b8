"""The loops that course model A's rows were measured in.

Phases tell where a stage's figure was read: ``after forward`` is what is allocated when the phase
``forward`` of the last step ends.  ``eval`` begins when the step's work is done and holds what its
function gives back on leaving; ``end`` is read at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.accuracy.course_a import SIZES, VOCAB_SIZE, CourseModelA, cross_entropy
from benchmarks.accuracy.course_adamw import CourseAdamW
from memfit.observer import Observer

CUDA = torch.device("cuda")


def mixed_precision(precision: str) -> AbstractContextManager[object]:
    """``bf16`` is autocast over fp32 parameters; ``fp32`` is nothing."""
    if precision == "bf16":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def random_ids(batch_size: int, seq_len: int) -> Tensor:
    """(B, T) int64, made on the GPU."""
    return torch.randint(0, VOCAB_SIZE, (batch_size, seq_len), device=CUDA)


def build(size: str, context_length: int, layers_per_segment: int = 0) -> CourseModelA:
    """The model, made on the GPU from its first tensor."""
    with CUDA:
        return CourseModelA(SIZES[size], context_length, layers_per_segment)


def train_step(
    model: nn.Module,
    optimizer: Optimizer | None,
    ids: Tensor,
    labels: Tensor,
    precision: str,
    observer: Observer,
    average: Callable[[nn.Module], None] | None = None,
) -> Tensor:
    """Zeroes the gradients, then forward, torch's cross entropy, backward and step.

    The loss is taken inside autocast from float32 logits; backward runs outside it.  The logits
    live until this function returns, the loss goes to the caller.
    """
    observer.phase("forward")
    model.zero_grad(set_to_none=True)
    with mixed_precision(precision):
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    observer.phase("backward")
    loss.backward()
    if average is not None:
        average(model)
    observer.phase("optimizer")
    if optimizer is not None:
        optimizer.step()
    observer.phase("eval")
    return loss


def average_gradients(world_size: int) -> Callable[[nn.Module], None]:
    """What data parallelism by hand does to one rank's memory: an all-reduce in place per gradient.

    NCCL sums into the gradient's own storage and the mean is taken in place, so nothing is
    allocated, whether the reductions overlap with backward or follow it.
    """

    def average(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(world_size)

    return average


def train(
    observer: Observer,
    *,
    size: str,
    batch_size: int,
    seq_len: int,
    precision: str = "fp32",
    optimizer: str = "course-adamw",
    warmups: int = 15,
    layers_per_segment: int = 0,
    world_size: int = 1,
) -> None:
    """``warmups`` steps, gradients zeroed, the peak reset, and the step that is measured."""
    observer.phase("init")
    model = build(size, seq_len, layers_per_segment)
    ids, labels = random_ids(batch_size, seq_len), random_ids(batch_size, seq_len)
    adamw = CourseAdamW(model.parameters()) if optimizer == "course-adamw" else None
    average = average_gradients(world_size) if world_size > 1 else None
    for step in range(1, warmups + 1):
        observer.step(step)
        train_step(model, adamw, ids, labels, precision, observer, average)
    observer.step(warmups + 1)
    observer.phase("forward")
    model.zero_grad(set_to_none=True)
    torch.cuda.reset_peak_memory_stats()
    loss = train_step(model, adamw, ids, labels, precision, observer, average)
    observer.phase("save")
    del loss


def forward_only(
    observer: Observer, *, size: str, batch_size: int, seq_len: int, precision: str, warmups: int
) -> None:
    """Forwards whose graph is kept until the next statement, then one more after a reset."""

    def forward() -> None:
        observer.phase("forward")
        with mixed_precision(precision):
            logits = model(ids)
        observer.phase("eval")
        del logits

    observer.phase("init")
    model = build(size, seq_len)
    ids = random_ids(batch_size, seq_len)
    for step in range(1, warmups + 1):
        observer.step(step)
        forward()
    observer.step(warmups + 1)
    torch.cuda.reset_peak_memory_stats()
    forward()
    observer.phase("save")


def recorded_step(
    observer: Observer, *, size: str, batch_size: int, seq_len: int, warmups: int
) -> None:
    """The loop of a recording of one step: the course's own cross entropy and its AdamW."""

    def step() -> None:
        logits = model(ids)
        loss = cross_entropy(logits, labels)
        observer.phase("backward")
        loss.backward()
        observer.phase("optimizer")
        optimizer.step()
        observer.phase("eval")

    observer.phase("init")
    model = build(size, seq_len)
    optimizer = CourseAdamW(model.parameters())
    ids, labels = random_ids(batch_size, seq_len), random_ids(batch_size, seq_len)
    for number in range(1, warmups + 2):
        optimizer.zero_grad(set_to_none=True)
        observer.step(number)
        observer.phase("forward")
        step()
    observer.phase("save")
