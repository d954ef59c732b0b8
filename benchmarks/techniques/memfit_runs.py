"""memfit's own contenders: the step with a recipe, the same on documents, and ``memfit train``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.techniques.contenders import Contender, Size, samples_of
from benchmarks.techniques.jobs import job_of, recipe_of
from benchmarks.techniques.turns import CAPTURED_STEPS, Turns
from memfit.data.feed import Feed, open_feed
from memfit.data.filling import filled
from memfit.data.text import TextData, load
from memfit.job import Job
from memfit.observer import Unwatched
from memfit.planner.predict import settled
from memfit.records.recipe import Recipe
from memfit.records.runlog import StepRecord
from memfit.techniques import run
from memfit.techniques.optimizer import import_library

DATA = "python"
"""The text that Python carries: what the demo trains on."""


def run_memfit(contender: Contender, size: Size, turns: Turns) -> None:
    """Steps over random tokens."""
    job, samples = job_of(contender, size), samples_of(contender, size)
    batch = partial(job.batch, samples, size.seq_len)
    recipe = settled(job, recipe_of(contender, size), seq_len=size.seq_len)
    import_library(recipe)
    turns.ready()
    _take_turns(job, recipe, turns, lambda step: batch(), lambda step: None)


def run_feed(contender: Contender, size: Size, turns: Turns) -> None:
    """Steps over documents; only tokens that are targets count."""
    recipe = recipe_of(contender, size)
    data = load([DATA], vocab_size=size.vocab_size, seq_len=size.seq_len)
    feed: Feed = open_feed(
        data, recipe=recipe, seq_len=size.seq_len, seed=0, sequences=recipe.sequences
    )
    job = job_of(contender, size)
    turns.ready()
    if contender.pads:
        pieces = data.train_documents.pieces(size.seq_len)
        order = np.random.default_rng(0).permutation(len(pieces))

        def padded(step: int) -> dict[str, torch.Tensor]:
            """Documents as they come, one a row."""
            taken = np.arange((step - 1) * recipe.batch_size, step * recipe.batch_size)
            rows = list(pieces[order[taken % len(order)]][:, np.newaxis])
            return filled(
                data.train_documents,
                rows,
                size.seq_len,
                padding_id=data.end_of_text_id,
                with_positions=False,
            )

        _take_turns(job, recipe, turns, padded, lambda step: None)
        return
    _take_turns(
        job,
        recipe,
        turns,
        lambda step: feed.batch(step - 1),
        lambda step: feed.batch_size(step - 1, recipe.batch_size),
    )


def _take_turns(
    job: Job,
    recipe: Recipe,
    turns: Turns,
    make_batch: Callable[[int], Any],
    batch_size: Callable[[int], int | None],
) -> None:
    torch.manual_seed(0)
    applied = run.build(job, recipe, turns.capture)
    number = 0
    while turns.wait():
        number += 1
        watched = number <= CAPTURED_STEPS
        observer = turns.capture if watched else Unwatched()
        applied.step.on_phase = observer.phase
        outcome = run.take_step(
            applied, number, partial(make_batch, number), observer, batch_size(number)
        )
        turns.done(outcome.num_targets, state_bytes=_state_bytes(applied.optimizer))


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Tensors of the optimizer's state, those inside tensor subclasses too."""
    return sum(
        _bytes_of(value)
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def _bytes_of(tensor: torch.Tensor) -> int:
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(_bytes_of(getattr(tensor, name)) for name in names)
    return tensor.numel() * tensor.element_size()


def run_engine(contender: Contender, size: Size, turns: Turns) -> None:
    """``memfit train``, which records its first two steps itself and hands them out together."""
    from memfit.trainer.engine import train
    from memfit.trainer.options import TrainOptions

    class Stop(Exception):
        """There are no more turns."""

    def on_step(record: StepRecord) -> None:
        turns.done(
            record.num_targets,
            tensor_peak_bytes=record.peak_bytes,
            live_bytes=record.live_bytes,
            is_timed=record.step > CAPTURED_STEPS,
        )
        if not turns.wait():
            raise Stop

    with tempfile.TemporaryDirectory() as folder:
        options = TrainOptions(num_steps=1_000, eval_every=1_000, save_every=1_000)
        data: TextData = load([DATA], vocab_size=size.vocab_size, seq_len=size.seq_len)
        if not turns.wait():
            return
        try:
            train(
                job_of(contender, size),
                recipe_of(contender, size),
                data,
                Path(folder) / "run",
                options=options,
                on_step=on_step,
            )
        except Stop:
            return
