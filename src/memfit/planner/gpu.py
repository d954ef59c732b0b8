"""The answer for a GPU: a run traced on the virtual one, its allocator simulated, and the verdict.

A job is built and stepped by memfit, with a recipe; a script runs as it is.  Both give a Timeline,
and from there on there is no difference.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.allocator.addresses import POLICIES
from memfit.errors import BadInput
from memfit.job import Job
from memfit.planner import answer, uncertainty
from memfit.planner.lengths import LengthRange, simulate_lengths
from memfit.planner.rig import Rig, rig_of
from memfit.planner.simulate import Simulated, attempts, simulate
from memfit.planner.steps import lengths_of, steps_of
from memfit.records.prediction import Attempt, Lengths, Peak, Prediction, Simulation
from memfit.records.recipe import Recipe

if TYPE_CHECKING:
    from memfit.tracing.virtual.run import Traced

NUM_STEPS = 3
"""The first makes the optimizer's state, the second runs beside it, and the third shows whether
it repeats the second: from there on steps are copied."""


def predict_job(
    job: Job,
    recipe: Recipe,
    *,
    device: str,
    seq_len: int | tuple[int, int] | None = None,
    budget_bytes: int | None = None,
    num_steps: int | None = None,
    torch_version: str | None = None,
    alloc_conf: str | None = None,
) -> Prediction:
    """What training ``job`` takes on a GPU; the arguments are those of :func:`predict`."""
    started = time.perf_counter()
    rig = rig_of(
        device, budget_bytes=budget_bytes, torch_version=torch_version, alloc_conf=alloc_conf
    )
    lengths = _length_range(job, seq_len)
    longest = lengths.longest if lengths else job.check_seq_len(_whole(seq_len))
    traced = _trace(rig, job, recipe, lengths_of(recipe, longest, NUM_STEPS, num_steps))
    simulated, varying = simulate(traced.timeline, rig), None
    if lengths is not None:
        steps = _trace(rig, job, recipe, lengths.to_trace())
        simulated, varying = simulate_lengths(steps.timeline, lengths, rig, simulated)
    return _prediction(
        simulated,
        rig,
        job=job.name,
        seq_len=longest if job.seq_len is not None else None,
        recipe=recipe,
        num_parameters=traced.value,
        lengths=varying,
        started=started,
    )


def predict_script(
    path: Path,
    arguments: Sequence[str] = (),
    *,
    device: str,
    budget_bytes: int | None = None,
    num_steps: int = NUM_STEPS,
    torch_version: str | None = None,
    alloc_conf: str | None = None,
) -> Prediction:
    """What an unmodified training script takes on a GPU.

    It runs on a GPU that is not there, in a process of its own, for a few optimizer steps.

    Args:
        path: the script, as given to ``python``.
        arguments: what follows it on its command line.
        device: a GPU's name, or ``cuda`` for the GPU of this machine.
        budget_bytes: what it must fit into; all of the device when left out.
        num_steps: optimizer steps after which it is stopped.
        torch_version: the PyTorch whose allocator and kernels are simulated.
        alloc_conf: the allocator's settings, as in ``PYTORCH_ALLOC_CONF``.

    Raises:
        BadInput: there is no such script, or it allocates nothing on the GPU.
    """
    from memfit.tracing.virtual.script import trace_script

    started = time.perf_counter()
    rig = rig_of(
        device, budget_bytes=budget_bytes, torch_version=torch_version, alloc_conf=alloc_conf
    )
    if not path.is_file():
        raise BadInput(f"there is no script {path}: give the path of a Python file")
    traced = trace_script(
        path,
        arguments,
        card=rig.card,
        version=rig.version,
        settings=rig.unlimited,
        num_steps=num_steps,
    )
    if not len(traced.timeline.events):
        raise BadInput(
            f"{path} allocated nothing on the GPU: does it move its model there, and does it do "
            'its work when it is run (under `if __name__ == "__main__":`)?'
        )
    conf = traced.timeline.facts.get("PYTORCH_ALLOC_CONF")
    if conf is not None and alloc_conf is None:  # the script sets it for itself
        rig = rig_of(
            device, budget_bytes=budget_bytes, torch_version=torch_version, alloc_conf=conf
        )
    fraction = traced.timeline.facts.get("per_process_memory_fraction")
    if fraction is not None:
        rig = rig.with_fraction(float(fraction))
    return _prediction(
        simulate(traced.timeline, rig),
        rig,
        job=shlex.join([str(path), *arguments]),
        seq_len=None,
        recipe=None,
        num_parameters=None,
        lengths=None,
        started=started,
    )


def _trace(rig: Rig, job: Job, recipe: Recipe, lengths: Sequence[int]) -> Traced:
    from memfit.tracing.virtual.run import trace_on_gpu

    return trace_on_gpu(
        steps_of(job, recipe, lengths, "cuda"),
        card=rig.card,
        version=rig.version,
        settings=rig.unlimited,
    )


def _prediction(
    simulated: Simulated,
    rig: Rig,
    *,
    job: str,
    seq_len: int | None,
    recipe: Recipe | None,
    num_parameters: int | None,
    lengths: Lengths | None,
    started: float,
) -> Prediction:
    timeline, replay, outside = simulated.timeline, simulated.replay, rig.outside
    event = replay.peak_event
    parts, allocated_range = uncertainty.parts(simulated, rig, lengths=lengths)
    above = sum(part.above_bytes or 0 for part in parts)
    device_bytes = replay.peak_reserved_bytes + outside.total_bytes
    tried: tuple[Attempt, ...] = ()
    if device_bytes + above > rig.budget_bytes:
        tried = attempts(simulated, rig, uncertainty.leanest(timeline))
    return Prediction(
        job=job,
        seq_len=seq_len,
        recipe=recipe,
        device=rig.card,
        budget_bytes=rig.budget_bytes,
        peak=Peak(
            requested_bytes=replay.peak_requested_bytes,
            allocated_bytes=replay.peak_allocated_bytes,
            reserved_bytes=replay.peak_reserved_bytes,
            device_bytes=device_bytes,
        ),
        at_peak=answer.moment(timeline, event),
        breakdown=answer.breakdown(timeline, replay),
        phases=answer.phase_peaks(timeline, replay),
        largest=answer.largest(timeline, event),
        num_parameters=num_parameters,
        learnt_bytes=answer.learnt_bytes(timeline, event),
        outside=outside,
        uncertainty=parts,
        attempts=tried,
        allocated_range=allocated_range,
        lengths=lengths,
        simulation=Simulation(
            torch=str(rig.version),
            alloc_conf=rig.alloc_conf,
            addresses=POLICIES[0],
            num_steps=int(timeline.steps.max(initial=0)),
            is_steady=simulated.is_steady,
        ),
        seconds=time.perf_counter() - started,
        timeline=timeline,
        replay=replay,
    )


def _length_range(job: Job, seq_len: int | tuple[int, int] | None) -> LengthRange | None:
    """The range of lengths that is asked for; None for one length."""
    if not isinstance(seq_len, tuple):
        return None
    lengths = LengthRange(*seq_len)
    lengths.check()
    if job.seq_len is None:
        raise BadInput(f"{job.name} has no sequences, so no lengths that vary: leave them out")
    job.check_seq_len(lengths.longest)
    return None if lengths.shortest == lengths.longest else lengths


def _whole(seq_len: int | tuple[int, int] | None) -> int | None:
    return seq_len[1] if isinstance(seq_len, tuple) else seq_len
