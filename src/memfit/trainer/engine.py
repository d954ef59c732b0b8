"""Trains: a job, a plan and text become a folder with weights and a log.

The pieces that touch memory (construction, step, evaluation) are those of ``techniques.run``,
which prediction runs too.  What is here is the rest of a run: data, schedule, log, saved states.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from memfit.data.feed import is_cut, open_feed
from memfit.data.text import TextData, load
from memfit.errors import BadInput, MemfitError
from memfit.job import Job
from memfit.observer import Observer
from memfit.records.plan import Plan
from memfit.records.recipe import Recipe
from memfit.records.runlog import Note, RunLog, StepRecord
from memfit.techniques import run
from memfit.techniques.apply import Applied
from memfit.techniques.step import StepOutcome
from memfit.trainer import cache, saved_state
from memfit.trainer.folder import RunFolder
from memfit.trainer.interrupt import Interrupt
from memfit.trainer.leaks import LeakWatch
from memfit.trainer.loggers import open_loggers
from memfit.trainer.meter import MEASURED_STEPS, Meter, is_measured, step_memory
from memfit.trainer.options import TrainOptions
from memfit.trainer.schedule import set_rates
from memfit.trainer.state_file import RunIdentity


def train(
    job: Job,
    plan: Plan | Recipe,
    data: TextData | str | Path | Sequence[str | Path],
    out: Path | str,
    *,
    options: TrainOptions | None = None,
    seq_len: int | None = None,
    device: str = "cpu",
    resume: bool = False,
    force: bool = False,
    on_step: Callable[[StepRecord], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    advise: Callable[[], str] | None = None,
) -> RunLog:
    """Trains a language model on text.

    Args:
        job: a job whose batch is token ids (B, T+1) and that says its ``vocab_size``.
        plan: a plan, or a bare recipe.
        data: loaded text, or the paths to load it from.
        out: the run's folder.
        options: steps, evaluation, saving, seed.
        seq_len: tokens of a sample; the plan's or the job's when left out.
        device: where it trains: ``cpu`` or ``cuda``.
        resume: go on from the newest saved state in ``out``.
        force: begin anew in a folder that holds a run.
        on_step: called after each step, in order.
        on_note: called with sentences for the person: what was resumed, what was interrupted,
            where memory ran out and what was done.
        advise: says what to write instead when even one sample does not fit.

    Returns:
        The run's log, of former sessions too; shorter than asked when it was interrupted.

    Raises:
        BadInput: the job does not train on text, the text is too short, the folder holds a run,
            something cannot be written, or the state to resume is another run's.
        OutOfMemory: even one sample at a time does not fit.
        MemfitError: the run has diverged: its loss or its gradients are no longer numbers.
    """
    recipe = plan.recipe if isinstance(plan, Plan) else plan
    if seq_len is None and isinstance(plan, Plan):
        seq_len = plan.seq_len
    if job.vocab_size is None:
        raise BadInput(f"{job.name} does not train on text: its job names no vocab_size")
    job.check_sequences(recipe.sequences)
    length = job.check_seq_len(recipe.stages.check_longest(seq_len) if recipe.stages else seq_len)
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
        device=device,
        options=options or TrainOptions(),
        folder=folder,
        on_step=on_step or (lambda record: None),
        on_note=on_note or (lambda note: None),
        advise=advise,
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
        device: str,
        options: TrainOptions,
        folder: RunFolder,
        on_step: Callable[[StepRecord], None],
        on_note: Callable[[str], None],
        advise: Callable[[], str] | None,
    ) -> None:
        self.job, self.recipe, self.options, self.folder = job, recipe, options, folder
        self.on_step, self.on_note, self.advise = on_step, on_note, advise
        self.tokenizer = data.tokenizer_path
        self.schedule = options.schedule()
        self.seq_len = seq_len
        self.feed = open_feed(
            data,
            recipe=recipe,
            seq_len=seq_len,
            seed=options.seed,
            sequences=recipe.sequences,
            truncate=options.truncate,
        )
        self.identity = RunIdentity(
            job_name=job.name,
            recipe=recipe,
            seq_len=seq_len,
            seed=options.seed,
            data_hash=f"{data.content_hash}/{_hash_text(data.tokenizer_path)}",
            truncate=options.truncate if is_cut(data, recipe.sequences) else None,
            schedule=self.schedule,
        )
        self.device = torch.device(device)
        self.meter = Meter(self.device)
        self.cache = cache.CacheWatch()
        self.loggers = open_loggers(options.log, folder.path)

    def run(self, header: RunLog, plan: Plan | Recipe, resume: bool, interrupt: Interrupt) -> None:
        """Builds the model, restores it when resuming, and takes the steps that are left."""
        torch.manual_seed(self.options.seed)
        with self.meter.stretch(measured=True) as observer:
            applied = run.build(self.job, self.recipe, observer, device=str(self.device))
            if self.advise is not None:
                applied.step.advise = self.advise
            done = self._restore(applied, header) if resume else self._begin(header)
            if isinstance(plan, Plan):
                plan.save(self.folder.plan, force=True)
            for logger in self.loggers:
                logger.start(header)
            steps = range(done + 1, self.options.num_steps + 1)
            first = [self._step(applied, step, observer) for step in steps[:MEASURED_STEPS]]
        try:
            if not first:
                self.on_note(f"nothing is left to do: all {done} steps are done")
                return
            self._log_first(first)
            if not self._ends_after(first[-1].step, applied, interrupt):
                self._go_on(applied, steps[MEASURED_STEPS:], interrupt)
        finally:
            for logger in self.loggers:
                logger.close()

    def _go_on(self, applied: Applied, steps: Sequence[int], interrupt: Interrupt) -> None:
        """Takes the steps after the first ones, and watches their memory."""
        leaks, looks_closer = LeakWatch(applied.model), False
        for step in steps:
            evaluates = self.options.evaluates(step)
            measured = is_measured(step, self.recipe.stages, evaluates=evaluates)
            looking = leaks.looking() if looks_closer else nullcontext()
            with self.meter.stretch(measured=measured) as observer, looking:
                record = self._step(applied, step, observer)
            self._log(record, self.meter.live_bytes, self.meter.peak_bytes)
            self._tend_cache(applied, step)
            looks_closer = leaks.after_step(step, self.meter.live_bytes)
            if finding := leaks.finding():
                self._note(step, "leak", finding)
            if self._ends_after(step, applied, interrupt):
                return

    def _tend_cache(self, applied: Applied, step: int) -> None:
        """Empties the cache, or halves the micro-batch, where the numbers ask for it."""
        if self.device.type != "cuda":
            return
        numbers = cache.read_cuda(self.device)
        verdict = self.cache.after_step(numbers)
        if verdict == "nothing":
            return
        torch.cuda.empty_cache()
        is_halved = verdict == "thrash" and applied.step.shrink()
        advice = None if is_halved else applied.step.advise()
        kind = "out-of-memory" if is_halved else "cache"
        self._note(step, kind, cache.explain(verdict, numbers, advice))

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
        applied.step.load_state(restored.extra)
        before = RunLog.load(self.folder.log)
        kept = tuple(record for record in before.steps if record.step <= restored.step)
        notes = tuple(note for note in before.notes if note.step <= restored.step)
        replace(header, steps=kept, notes=notes).save(self.folder.log, force=True)
        self.on_note(f"resumed after step {restored.step}")
        return restored.step

    def _step(self, applied: Applied, step: int, observer: Observer) -> StepRecord:
        """Takes one step, and evaluates when it is due."""
        started = time.perf_counter()
        set_rates(applied.optimizer, self.schedule, step)
        applied.step.on_phase = observer.phase
        outcome = run.take_step(
            applied,
            step,
            partial(self.feed.batch, step - 1),
            observer,
            self.feed.batch_size(step - 1, self.recipe.batch_size),
        )
        self._check_finite(outcome, step)
        seconds = time.perf_counter() - started
        notes, eval_loss = outcome.notes, None
        if self.options.evaluates(step):
            held_out = run.evaluate(applied, self.feed.held_out, observer)
            eval_loss = held_out.loss_sum / held_out.num_targets
            notes += held_out.notes
        for note in notes:
            self._note(step, "out-of-memory", note)
        return StepRecord(
            step=step,
            loss=outcome.loss,
            learning_rate=self.recipe.peak_learning_rate * self.schedule.factor(step),
            grad_norm=outcome.grad_norm,
            num_targets=outcome.num_targets,
            seconds=seconds,
            resident_bytes=self.meter.resident_bytes(),
            eval_loss=eval_loss,
            batch_size=outcome.batch_size,
            seq_len=self.recipe.stages.at(step) if self.recipe.stages else self.seq_len,
            num_ooms=len(notes),
            skipped=outcome.skipped,
            loss_scale=outcome.loss_scale,
        )

    def _note(self, step: int, kind: str, text: str) -> None:
        """Writes a note into the log, and tells the person."""
        note = Note(step=step, kind=kind, text=text)
        self.folder.append(note)
        for logger in self.loggers:
            logger.note(note)
        self.on_note(f"step {step}: {text}")

    def _check_finite(self, outcome: StepOutcome, step: int) -> None:
        norm, scale = outcome.grad_norm, outcome.loss_scale
        # A step is left out where the scale was too large; below 1 it cannot be that.
        is_left_out = outcome.skipped and (scale is None or scale >= 1)
        is_finite = not outcome.skipped and (norm is None or math.isfinite(norm))
        if math.isfinite(outcome.loss) and (is_finite or is_left_out):
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
        if timeline is None:  # on a GPU they were only counted
            for record in records:
                self._log(record, self.meter.live_bytes, self.meter.peak_bytes)
            return
        if not self.folder.timeline.exists():  # of a run that goes on, the beginning is kept
            timeline.save(self.folder.timeline)
        for record in records:
            self._log(record, *step_memory(timeline, record.step))

    def _log(self, record: StepRecord, live_bytes: int | None, peak_bytes: int | None) -> None:
        record = replace(record, live_bytes=live_bytes, peak_bytes=peak_bytes)
        self.folder.append(record)
        for logger in self.loggers:
            logger.step(record)
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
                extra=applied.step.state(),
            )
        if leaves and step < self.options.num_steps:
            self.on_note(f"interrupted: step {step} is saved, go on from it with --resume")
        return leaves


def _hash_text(path: Path) -> str:
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()
