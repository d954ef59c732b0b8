"""The run that a prediction traces: a job's model is built, steps are taken, and an evaluation.

These are the trainer's own pieces, in the trainer's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from memfit.job import Job
from memfit.models.sequences import with_sequences
from memfit.observer import Observer
from memfit.records.recipe import Recipe
from memfit.techniques import run
from memfit.techniques.optimizer import import_library


def steps_of(
    job: Job, recipe: Recipe, lengths: Sequence[int], device: str
) -> Callable[[Observer], int]:
    """A run with one step for each of ``lengths``, and an evaluation of the last length.

    It gives the number of the model's parameters.

    Raises:
        BadInput: the job does not take the recipe's sequences.
        MissingExtra: the optimizer's library is not installed.
    """
    job = with_sequences(job, recipe.sequences)
    import_library(recipe)  # not in the middle of a trace, where a library sees a card

    def take(observer: Observer) -> int:
        applied = run.build(job, recipe, observer, device=device)
        for number, length in enumerate(lengths, start=1):
            make_batch = partial(job.batch, recipe.samples_per_step, length)
            run.take_step(applied, number, make_batch, observer)
        run.evaluate(applied, [partial(job.batch, recipe.batch_size, lengths[-1])], observer)
        return sum(p.numel() for p in applied.model.parameters())

    return take
