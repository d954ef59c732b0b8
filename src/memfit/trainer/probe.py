"""Tries a batch size on the real device: two whole steps and an evaluation, with the longest batch.

A prediction says what PyTorch will allocate.  What a library allocates beside it, only a try says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memfit.errors import OutOfMemory
from memfit.job import Job
from memfit.observer import Observer, Unwatched
from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe
from memfit.techniques import run
from memfit.techniques.transaction import attempt, free_memory
from memfit.trainer.rng import rng_state, set_rng_state

MARGIN = 0.02
"""Share of the budget that a probe must leave free: later steps may lie less well in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """What :func:`probe` measured."""

    fits: bool
    peak_bytes: int | None
    """Of tensors on the CPU; on CUDA what the probe made PyTorch reserve.  None when memory ran
    out, or the micro-batch had to be halved."""


def probe(
    job: Job, recipe: Recipe, batch: Any, *, budget_bytes: int, device: str = "cpu"
) -> Probed:
    """Builds the job and runs it for two steps and an evaluation, then frees everything.

    Generators are left as they were found, that of the GPU too.

    Args:
        batch: of ``recipe.samples_per_step`` samples, of the greatest length there can be.
        budget_bytes: what the peak must stay in, less the margin.

    Raises:
        BadInput: the recipe cannot be applied to this job.
    """
    before = rng_state()
    where = torch.device(device)
    on_gpu = torch.cuda.get_rng_state(where) if where.type == "cuda" else None
    try:
        peak, _ = attempt(lambda: _peak(job, recipe, batch, where))
    finally:
        set_rng_state(before)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, where)
        free_memory(where)
    fits = peak is not None and peak <= math.floor(budget_bytes * (1 - MARGIN))
    return Probed(fits=fits, peak_bytes=peak)


def _peak(job: Job, recipe: Recipe, batch: Any, device: torch.device) -> int | None:
    if device.type == "cuda":
        free_memory(device)  # what an earlier probe has reserved is not of this one
        before = torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        survived = _take(job, recipe, batch, device, Unwatched())
        return torch.cuda.max_memory_reserved(device) - before if survived else None
    capture = Capture()
    with capture:
        survived = _take(job, recipe, batch, device, capture)
    curve = capture.timeline.curve()
    return int(np.max(curve, initial=0)) if survived else None


def _take(job: Job, recipe: Recipe, batch: Any, device: torch.device, observer: Observer) -> bool:
    """Whether two steps and an evaluation went through without the micro-batch being halved."""
    applied = run.build(job, recipe, observer, device=str(device))
    try:
        for number in (1, 2):
            run.take_step(applied, number, lambda: batch, observer)
        run.evaluate(applied, [lambda: batch], observer)
    except OutOfMemory:
        return False
    return applied.step.num_halvings == 0 and applied.step.num_eval_halvings == 0
