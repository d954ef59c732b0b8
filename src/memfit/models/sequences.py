"""A job with random batches in the form of packed rows or documents, to predict their training.

Rows are what ``Job.batch`` makes.  A packed batch has more tensors, and a mask of attention, which
takes memory; a prediction of packed training has to have them too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from memfit.job import Job
from memfit.models.objectives import labelled_batch, packed_batch


def with_sequences(job: Job, sequences: str) -> Job:
    """The job with batches of the form that ``memfit.data.feed`` makes, as large as they can be.

    Args:
        job: a language model.
        sequences: one of ``Recipe.sequences``; for ``rows`` it is the job itself.

    Raises:
        BadInput: the job does not take such batches.
    """
    job.check_sequences(sequences)
    if sequences == "rows":
        return job
    make_batch = packed_batch if sequences == "packed" else labelled_batch
    return replace(job, batch=partial(make_batch, job.vocab_size or 1))


def packed_job(job: Job) -> Job:
    """``with_sequences(job, "packed")``."""
    return with_sequences(job, "packed")
