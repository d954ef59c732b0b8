"""Will it fit?  Traces the run that training would make, and says what it needs.

What is traced is the trainer's own pieces: the model's construction, some steps, an evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from memfit.allocator.cpu import replay_on_cpu
from memfit.devices.detect import machine
from memfit.errors import BadInput
from memfit.job import Job
from memfit.planner import answer
from memfit.planner.settle import settle
from memfit.planner.steps import lengths_of, steps_of
from memfit.records.plan import Plan
from memfit.records.prediction import Peak, Prediction
from memfit.records.recipe import Recipe

NUM_STEPS = 2
"""The first step makes the optimizer's state, the second runs beside it: later ones repeat it."""


def predict(
    job: Job,
    recipe: Recipe | Plan | None = None,
    *,
    device: str = "cpu",
    seq_len: int | tuple[int, int] | None = None,
    budget_bytes: int | None = None,
    num_steps: int | None = None,
    torch_version: str | None = None,
    alloc_conf: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Prediction:
    """What the memory of training ``job`` with ``recipe`` will be, without running it.

    Args:
        job: how to build the model, a batch, and the loss.
        recipe: the techniques, or a plan with its recipe; a plain fp32 AdamW run when left out.
        device: ``cpu``, a GPU's name, or ``cuda`` for the GPU of this machine.
        seq_len: tokens of a sample; the job's own length when left out.  On a GPU, (shortest,
            longest) for batches of varying length.
        budget_bytes: what it must fit into; all of the device when left out.
        num_steps: optimizer steps of the run, when it may be over before they repeat (before the
            second, or before a stage of the schedule); an evaluation of one micro-batch follows.
        torch_version: the PyTorch whose allocator and kernels are simulated on a GPU, such as
            ``2.11``; the installed one when left out.
        alloc_conf: the allocator's settings, as in ``PYTORCH_ALLOC_CONF``; the environment's when
            left out.
        on_progress: called with (ops learnt, ops to learn) when scratch memory must be learnt.

    Raises:
        BadInput: the sequence is longer than the model takes, the recipe cannot be applied, its
            schedule of lengths does not go with the length or the samples of a step, or the job
            reads values that a trace does not have.
    """
    if isinstance(recipe, Plan):
        seq_len = recipe.seq_len if seq_len is None else seq_len
        budget_bytes = recipe.budget_bytes if budget_bytes is None else budget_bytes
        recipe = recipe.recipe
    recipe = recipe or Recipe()
    if recipe.stages is not None:
        seq_len = recipe.stages.check_longest(seq_len)
        recipe.stages.check_divides(recipe.samples_per_step * seq_len)
    recipe = settled(
        job,
        recipe,
        device=device,
        seq_len=seq_len,
        torch_version=torch_version,
        alloc_conf=alloc_conf,
        on_progress=on_progress,
    )
    if device.lower() != "cpu":
        from memfit.planner.gpu import predict_job

        return predict_job(
            job,
            recipe,
            device=device,
            seq_len=seq_len,
            budget_bytes=budget_bytes,
            num_steps=num_steps,
            torch_version=torch_version,
            alloc_conf=alloc_conf,
        )
    if torch_version is not None or alloc_conf is not None:
        raise BadInput(
            "the version of torch and the settings of its allocator are rules of a GPU: name one "
            "(--gpu rtx-4090, or device='rtx-4090'), or leave them out"
        )
    if isinstance(seq_len, tuple):
        raise BadInput(
            f"lengths from {seq_len[0]} to {seq_len[1]} ask what a GPU's allocator keeps between "
            f"batches; the CPU's keeps nothing: give the longest, {seq_len[1]}, or name a GPU"
        )
    return _predict_on_cpu(job, recipe, seq_len, budget_bytes, num_steps, on_progress)


def settled(job: Job, recipe: Recipe, **how: Any) -> Recipe:
    """The recipe with what its budget allows in the budget's place; itself where it has none.

    Args:
        job: what is trained.
        recipe: with or without a budget in checkpointing or offload.
        how: arguments of :func:`predict`.

    Raises:
        DoesNotFit: no choice is inside the budget.
        BadInput: what :func:`predict` refuses.
    """
    return recipe if recipe.is_settled else settle(job, recipe, predict=predict, **how)


def _predict_on_cpu(
    job: Job,
    recipe: Recipe,
    seq_len: int | None,
    budget_bytes: int | None,
    num_steps: int | None,
    on_progress: Callable[[int, int], None] | None,
) -> Prediction:
    from memfit.tracing.step import trace

    started = time.perf_counter()
    device = machine()
    length = job.check_seq_len(seq_len)
    take_steps = steps_of(job, recipe, lengths_of(recipe, length, NUM_STEPS, num_steps), "cpu")
    parameters: list[int] = []
    timeline = trace(lambda observer: parameters.append(take_steps(observer)), on_progress)
    replay = replay_on_cpu(timeline)
    event = replay.peak_event
    return Prediction(
        job=job.name,
        seq_len=length if job.seq_len is not None else None,
        recipe=recipe,
        device=device,
        budget_bytes=device.total_bytes if budget_bytes is None else budget_bytes,
        peak=Peak(
            requested_bytes=replay.peak_requested_bytes,
            allocated_bytes=replay.peak_allocated_bytes,
            reserved_bytes=replay.peak_reserved_bytes,
            device_bytes=replay.peak_reserved_bytes,
        ),
        at_peak=answer.moment(timeline, event),
        breakdown=answer.breakdown(timeline, replay),
        phases=answer.phase_peaks(timeline, replay),
        largest=answer.largest(timeline, event),
        num_parameters=parameters[0],
        learnt_bytes=answer.learnt_bytes(timeline, event),
        seconds=time.perf_counter() - started,
        timeline=timeline,
        replay=replay,
    )
