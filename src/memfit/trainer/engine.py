"""Trains: a job, a plan and text become a folder with weights and a log.

The pieces that touch memory (construction, step, evaluation) are those of ``techniques.run``,
which prediction runs too.  What is here is the rest of a run: data, schedule, log, saved states.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from memfit.data.batches import Batches, EvalBatches
from memfit.data.text import TextData, load
from memfit.errors import BadInput, MemfitError
from memfit.job import Job
from memfit.observer import Observer
from memfit.records.plan import Plan
from memfit.records.recipe import Recipe
from memfit.records.runlog import RunLog, StepRecord
from memfit.techniques import run
from memfit.techniques.apply import Applied
from memfit.techniques.step import StepOutcome
from memfit.trainer import saved_state
from memfit.trainer.folder import RunFolder
from memfit.trainer.interrupt import Interrupt
from memfit.trainer.meter import MEASURED_STEPS, Meter, is_measured, step_memory
from memfit.trainer.options import TrainOptions
from memfit.trainer.state_file import RunIdentity

_EVAL_ROWS = 64
"""Rows of the held-out part behind an evaluation, the same ones each time."""


def train(
    job: Job,
    plan: Plan | Recipe,
    data: TextData | str | Path | Sequence[str | Path],
    out: Path | str,
    *,
    options: TrainOptions | None = None,
    seq_len: int | None = None,
    resume: bool = False,
    force: bool = False,
    on_step: Callable[[StepRecord], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> RunLog:
    """Trains a language model on text.

    Args:
        job: a job whose batch is token ids (B, T+1) and that says its ``vocab_size``.
        plan: a plan, or a bare recipe.
        data: loaded text, or the paths to load it from.
        out: the run's folder.
        options: steps, evaluation, saving, seed.
        seq_len: tokens of a sample; the plan's or the job's when left out.
        resume: go on from the newest saved state in ``out``.
        force: begin anew in a folder that holds a run.
        on_step: called after each step, in order.
        on_note: called with sentences for the person: what was resumed, what was interrupted.

    Returns:
        The run's log, of former sessions too; shorter than asked when it was interrupted.

    Raises:
        BadInput: the job does not train on text, the text is too short, the folder holds a run,
            something cannot be written, or the state to resume is another run's.
        MemfitError: the run has diverged: its loss or its gradients are no longer numbers.
    """
    recipe = plan.recipe if isinstance(plan, Plan) else plan
    if seq_len is None and isinstance(plan, Plan):
        seq_len = plan.seq_len
    if job.vocab_size is None:
        raise BadInput(f"{job.name} does not train on text: its job names no vocab_size")
    length = job.check_seq_len(seq_len)
    folder = RunFolder(Path(out))
    folder.check(resume=resume, force=force)
    if not isinstance(data, TextData):
        paths = [data] if isinstance(data, (str, Path)) else data
        data = load(paths, vocab_size=job.vocab_size, seq_len=length)
    header = RunLog(
        job=job.name,
        recipe=recipe.as_dict(),
        predicted_peak_bytes=plan.predicted_peak_bytes if isinstance(plan, Plan) else None,
        budget_bytes=plan.budget_bytes if isinstance(plan, Plan) else None,
        facts={"torch": torch.__version__, "threads": str(torch.get_num_threads())},
    )
    session = _Session(
        job=job,
        recipe=recipe,
        data=data,
        seq_len=length,
        options=options or TrainOptions(),
        folder=folder,
        on_step=on_step or (lambda record: None),
        on_note=on_note or (lambda note: None),
    )
    with Interrupt() as interrupt:
        session.run(header, plan, resume, interrupt)
    return RunLog.load(folder.log)


class _Session:
    """One sitting of a run: from its start or a saved state to its end or an interruption."""

    def __init__(
        self,
        *,
        job: Job,
        recipe: Recipe,
        data: TextData,
        seq_len: int,
        options: TrainOptions,
        folder: RunFolder,
        on_step: Callable[[StepRecord], None],
        on_note: Callable[[str], None],
    ) -> None:
        self.job, self.recipe, self.options, self.folder = job, recipe, options, folder
        self.on_step, self.on_note = on_step, on_note
        self.tokenizer = data.tokenizer_path
        self.schedule = options.schedule()
        self.batches = Batches(
            data.train_tokens,
            samples_per_step=recipe.samples_per_step,
            seq_len=seq_len,
            seed=options.seed,
        )
        held_out = EvalBatches(
            data.eval_tokens[: _EVAL_ROWS * seq_len + 1],
            batch_size=recipe.batch_size,
            seq_len=seq_len,
        )
        self.held_out = [partial(held_out.batch, index) for index in range(held_out.num_batches)]
        self.identity = RunIdentity(
            job_name=job.name,
            recipe=recipe,
            seq_len=seq_len,
            seed=options.seed,
            data_hash=f"{data.content_hash}/{_hash_text(data.tokenizer_path)}",
        )
        self.meter = Meter()

    def run(self, header: RunLog, plan: Plan | Recipe, resume: bool, interrupt: Interrupt) -> None:
        """Builds the model, restores it when resuming, and takes the steps that are left."""
        torch.manual_seed(self.options.seed)
        with self.meter.stretch(measured=True) as observer:
            applied = run.build(self.job, self.recipe, observer)
            done = self._restore(applied, header) if resume else self._begin(header)
            if isinstance(plan, Plan):
                plan.save(self.folder.plan, force=True)
            steps = range(done + 1, self.options.num_steps + 1)
            first = [self._step(applied, step, observer) for step in steps[:MEASURED_STEPS]]
        if not first:
            self.on_note(f"nothing is left to do: all {done} steps are done")
            return
        self._log_first(first)
        if self._ends_after(first[-1].step, applied, interrupt):
            return
        for step in steps[MEASURED_STEPS:]:
            measured = is_measured(step, evaluates=self.options.evaluates(step))
            with self.meter.stretch(measured=measured) as observer:
                record = self._step(applied, step, observer)
            self._log(record, self.meter.live_bytes, self.meter.peak_bytes)
            if self._ends_after(step, applied, interrupt):
                return

    def _begin(self, header: RunLog) -> int:
        self.folder.begin(header, self.tokenizer)
        return 0

    def _restore(self, applied: Applied, header: RunLog) -> int:
        """Goes back to the newest saved state, in the log too."""
        restored = saved_state.restore(
            self.folder.states,
            model=applied.model,
            optimizer=applied.optimizer,
            run=self.identity,
        )
        for note in restored.notes:
            self.on_note(note)
        before = RunLog.load(self.folder.log).steps
        kept = tuple(record for record in before if record.step <= restored.step)
        replace(header, steps=kept).save(self.folder.log, force=True)
        self.on_note(f"resumed after step {restored.step}")
        return restored.step

    def _step(self, applied: Applied, step: int, observer: Observer) -> StepRecord:
        """Takes one step, and evaluates when it is due."""
        started = time.perf_counter()
        learning_rate = self.recipe.peak_learning_rate * self.schedule.factor(step)
        for group in applied.optimizer.param_groups:
            group["lr"] = learning_rate
        applied.step.on_phase = observer.phase
        outcome = run.take_step(applied, step, partial(self.batches.batch, step - 1), observer)
        self._check_finite(outcome, step)
        seconds = time.perf_counter() - started
        eval_loss = None
        if self.options.evaluates(step):
            held_out = run.evaluate(applied, self.held_out, observer)
            eval_loss = held_out.loss_sum / held_out.num_targets
        return StepRecord(
            step=step,
            loss=outcome.loss,
            learning_rate=learning_rate,
            grad_norm=outcome.grad_norm,
            num_targets=outcome.num_targets,
            seconds=seconds,
            resident_bytes=self.meter.resident_bytes(),
            eval_loss=eval_loss,
        )

    def _check_finite(self, outcome: StepOutcome, step: int) -> None:
        norm = outcome.grad_norm
        if math.isfinite(outcome.loss) and (norm is None or math.isfinite(norm)):
            return
        raise MemfitError(
            f"the run has diverged: the loss of step {step} is {outcome.loss:g}"
            + ("" if norm is None else f" and the norm of its gradients {norm:g}")
            + "; go back to the last saved state with --resume, or begin anew, with a "
            f"--learning-rate below {self.recipe.peak_learning_rate:g}"
        )

    def _log_first(self, records: list[StepRecord]) -> None:
        """The first steps are measured together, so their memory is known when they are done."""
        timeline = self.meter.timeline
        assert timeline is not None
        if not self.folder.timeline.exists():  # of a run that goes on, the beginning is kept
            timeline.save(self.folder.timeline)
        for record in records:
            self._log(record, *step_memory(timeline, record.step))

    def _log(self, record: StepRecord, live_bytes: int | None, peak_bytes: int | None) -> None:
        record = replace(record, live_bytes=live_bytes, peak_bytes=peak_bytes)
        self.folder.append(record)
        self.on_step(record)

    def _ends_after(self, step: int, applied: Applied, interrupt: Interrupt) -> bool:
        """Saves when it is due or the person wants to leave; whether the run ends here."""
        leaves = interrupt.requested  # asked once: a request from here on waits for the next step
        if leaves or self.options.saves(step):
            saved_state.save(
                self.folder.states,
                step=step,
                model=applied.model,
                optimizer=applied.optimizer,
                run=self.identity,
                keep=self.options.keep,
            )
        if leaves and step < self.options.num_steps:
            self.on_note(f"interrupted: step {step} is saved, go on from it with --resume")
        return leaves


def _hash_text(path: Path) -> str:
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()
