"""Will it fit?  Traces the run that training would make, and says what it needs.

What is traced is the trainer's own pieces: the model's construction, some steps, an evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from memfit.allocator.cpu import replay_on_cpu
from memfit.devices.detect import machine
from memfit.errors import BadInput
from memfit.job import Job
from memfit.observer import Observer
from memfit.records.device import Device
from memfit.records.plan import Plan
from memfit.records.prediction import LargeTensor, Moment, Peak, Prediction
from memfit.records.recipe import Recipe
from memfit.records.replay import Replay
from memfit.records.timeline import CATEGORIES, ORIGINS, PHASES, Timeline
from memfit.techniques import run
from memfit.tracing.step import trace
from memfit.units import GiB

NUM_STEPS = 2
"""The first step makes the optimizer's state, the second runs beside it: later ones repeat it."""

_NUM_LARGEST = 20


def predict(
    job: Job,
    recipe: Recipe | Plan | None = None,
    *,
    device: str = "cpu",
    seq_len: int | None = None,
    budget_bytes: int | None = None,
    num_steps: int = NUM_STEPS,
    on_progress: Callable[[int, int], None] | None = None,
) -> Prediction:
    """What the memory of training ``job`` with ``recipe`` will be, without running it.

    Args:
        job: how to build the model, a batch, and the loss.
        recipe: the techniques, or a plan with its recipe; a plain fp32 AdamW run when left out.
        device: ``cpu``; GPUs come with the virtual GPU.
        seq_len: tokens of a sample; the job's own length when left out.
        budget_bytes: what it must fit into; all of the device when left out.
        num_steps: optimizer steps to trace; an evaluation of one micro-batch follows.
        on_progress: called with (ops learnt, ops to learn) when scratch memory must be learnt.

    Raises:
        BadInput: the sequence is longer than the model takes, the recipe cannot be applied, or
            the job reads values that a trace does not have.
    """
    started = time.perf_counter()
    if isinstance(recipe, Plan):
        seq_len = recipe.seq_len if seq_len is None else seq_len
        budget_bytes = recipe.budget_bytes if budget_bytes is None else budget_bytes
        recipe = recipe.recipe
    recipe = recipe or Recipe()
    the_device = _device(device)
    length = job.check_seq_len(seq_len)
    parameters: list[int] = []

    def traced_run(observer: Observer) -> None:
        applied = run.build(job, recipe, observer)
        parameters.append(sum(p.numel() for p in applied.model.parameters()))
        make_batch = partial(job.batch, recipe.samples_per_step, length)
        for number in range(1, num_steps + 1):
            run.take_step(applied, number, make_batch, observer)
        run.evaluate(applied, [partial(job.batch, recipe.batch_size, length)], observer)

    timeline = trace(traced_run, on_progress)
    replay = replay_on_cpu(timeline)
    event = replay.peak_event
    return Prediction(
        job=job.name,
        seq_len=length if job.seq_len is not None else None,
        recipe=recipe,
        device=the_device,
        budget_bytes=the_device.total_bytes if budget_bytes is None else budget_bytes,
        peak=_peak(replay),
        at_peak=_moment(timeline, event),
        breakdown=timeline.breakdown(event),
        phases=timeline.phase_peaks(),
        largest=_largest(timeline, event),
        num_parameters=parameters[0],
        learnt_bytes=_learnt_bytes(timeline, event),
        seconds=time.perf_counter() - started,
        timeline=timeline,
        replay=replay,
    )


def _device(name: str) -> Device:
    if name.lower() == "cpu":
        return machine()
    from memfit.devices.catalog import find

    card = find(name)
    raise BadInput(
        f"this version predicts CPU runs only, not the {card.label or card.name}: a GPU allocates "
        "differently (its allocator, workspaces and kernels); for now, compare a CPU run with its "
        f"memory: --memory {card.total_bytes / GiB:.2f}GiB"
    )


def _peak(replay: Replay) -> Peak:
    return Peak(
        requested_bytes=replay.peak_requested_bytes,
        allocated_bytes=replay.peak_allocated_bytes,
        reserved_bytes=replay.peak_reserved_bytes,
        device_bytes=replay.peak_reserved_bytes,
    )


def _moment(timeline: Timeline, event: int) -> Moment:
    block = abs(int(timeline.events[event])) - 1
    return Moment(
        step=int(timeline.steps[event]),
        phase=PHASES[timeline.phases[event]],
        op=timeline.names[timeline.ops[block]],
        module=timeline.names[timeline.modules[block]],
    )


def _largest(timeline: Timeline, event: int) -> tuple[LargeTensor, ...]:
    live = timeline.live_blocks(event)
    order = np.argsort(-timeline.num_bytes[live], kind="stable")[:_NUM_LARGEST]
    found = []
    for block in live[order]:
        dtype, bracket, shape = timeline.names[timeline.tensors[block]].partition("[")
        found.append(
            LargeTensor(
                num_bytes=int(timeline.num_bytes[block]),
                shape=bracket + shape,
                dtype=dtype,
                op=timeline.names[timeline.ops[block]],
                module=timeline.names[timeline.modules[block]],
                category=CATEGORIES[timeline.categories[block]],
            )
        )
    return tuple(found)


def _learnt_bytes(timeline: Timeline, event: int) -> int:
    live = timeline.live_blocks(event)
    learnt = timeline.origins[live] == ORIGINS.index("learnt")
    return int(timeline.num_bytes[live][learnt].sum())
