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
            # Shorter sequences of a stage are more: the tokens of a step stay the same.
            longest = recipe.stages.longest if recipe.stages else length
            samples = recipe.samples_per_step * longest // length
            make_batch = partial(job.batch, samples, length)
            batch_size = recipe.batch_size * longest // length
            run.take_step(applied, number, make_batch, observer, batch_size)
        run.evaluate(applied, [partial(job.batch, recipe.batch_size, lengths[-1])], observer)
        return sum(p.numel() for p in applied.model.parameters())

    return take


def lengths_of(recipe: Recipe, length: int, num_steps: int) -> list[int]:
    """The sequence length of each step to trace: ``num_steps`` of the last stage.

    A stage before it has a step of its own, as it may need some bytes more; the first has two, as
    in the first step of all there is no optimizer state yet.
    """
    if recipe.stages is None:
        return [length] * num_steps
    *before, last = recipe.stages.lengths
    return [*before[:1], *before, *[last] * num_steps]
