"""The run that a prediction traces: a job's model is built, steps are taken, and an evaluation.

These are the trainer's own pieces, in the trainer's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from memfit.job import Job
from memfit.models.sequences import with_sequences
from memfit.observer import Observer
from memfit.records.recipe import Recipe
from memfit.records.stages import Stage
from memfit.techniques import run
from memfit.techniques.optimizer import import_library

_UNTIL_REPEATED = 2
"""Steps of one length of which the last is repeated by those after it."""


def steps_of(
    job: Job, recipe: Recipe, lengths: Sequence[int], device: str
) -> Callable[[Observer], int]:
    """A run with one step for each of ``lengths``, and an evaluation.

    The evaluation is of the longest stage, where there are stages, else of the last length.  It
    gives the number of the model's parameters.

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
        longest = recipe.stages.longest if recipe.stages else lengths[-1]
        run.evaluate(applied, [partial(job.batch, recipe.batch_size, longest)], observer)
        return sum(p.numel() for p in applied.model.parameters())

    return take


def lengths_of(
    recipe: Recipe, length: int, num_traced: int, num_steps: int | None = None
) -> list[int]:
    """The sequence length of each step to trace: those of each stage until they repeat.

    The first step of a stage may leave something for those after it, as the first step of all
    makes the optimizer's state.  A stage or a run that is over sooner has no more steps than that.

    Args:
        recipe: with or without stages.
        length: of the sequences where there are no stages, in tokens.
        num_traced: the most steps of the last stage; of one before it there are two at most.
        num_steps: optimizer steps of the run, from 1; as many as it takes when left out.
    """
    end = math.inf if num_steps is None else num_steps
    stages = recipe.stages.stages if recipe.stages else (Stage(length, None),)
    lengths: list[int] = []
    done: float = 0
    for stage in stages:
        last_step = min(end, stage.last_step or end)
        most = num_traced if last_step == end else _UNTIL_REPEATED
        lengths += [stage.seq_len] * int(min(last_step - done, most))
        done = last_step
    return lengths
