"""``memfit train``: run it, inside a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from memfit.cli import choices
from memfit.cli.progress import ENCODING, LEARNING, shown_progress
from memfit.cli.training import shown_training
from memfit.errors import BadInput
from memfit.records.plan import Plan
from memfit.records.recipe import Recipe
from memfit.trainer.folder import RunFolder
from memfit.trainer.options import TrainOptions

if TYPE_CHECKING:
    from memfit.data.text import TextData
    from memfit.job import Job
    from memfit.records.prediction import Prediction
    from memfit.records.runlog import RunLog

_DEFAULT_TOKENS_PER_STEP = 16_384
"""As nanochat's run on a CPU (runs/runcpu.sh)."""


def train(
    target: Annotated[
        str,
        typer.Argument(metavar="PLAN.json|TARGET", help="A saved plan, or what predict takes."),
    ],
    data: Annotated[
        list[str],
        typer.Option(
            metavar="PATH",
            help="Files or folders of txt, md, jsonl, parquet; `python`: what Python carries.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The run's folder.")] = Path(
        "runs/latest"
    ),
    memory: choices.Memory = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 1000,
    tokens_per_step: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens behind one step; 16,384 if nothing else says it."),
    ] = None,
    seq_len: choices.SeqLen = None,
    batch_size: choices.BatchSize = None,
    accumulate: choices.Accumulate = None,
    precision: choices.Precision = None,
    checkpointing: choices.Checkpointing = None,
    loss: choices.Loss = None,
    optimizer: choices.Optimizer = None,
    optimizer_in_backward: choices.InBackward = False,
    offload: choices.Offload = None,
    sequences: choices.Sequences = None,
    truncate: Annotated[
        str, typer.Option(metavar="head|tail", help="Which end of a document too long is kept.")
    ] = "head",
    seq_schedule: choices.SeqSchedule = None,
    clip_norm: choices.ClipNorm = None,
    learning_rate: Annotated[
        float | None, typer.Option(help=choices.recipe_help("learning_rate"))
    ] = None,
    warmup_steps: Annotated[
        int | None, typer.Option(help="Steps of linear warm-up; a tenth of the run, at most 100.")
    ] = None,
    eval_every: Annotated[int, typer.Option(min=1, help="Steps between two evaluations.")] = 100,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between two saved states.")] = 100,
    keep: Annotated[int, typer.Option(min=1, help="Saved states that are kept.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the weights, dropout and the data's order.")] = 0,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Tell tensorboard, trackio or wandb of each step too."),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Try the micro-batch for real first; take a smaller if not."),
    ] = False,
    vocab_size: choices.VocabSize = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json or its folder; trained if not given.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last saved state.")
    ] = False,
    html: choices.Html = None,
    json: choices.Json = False,
    force: choices.Force = False,
) -> None:
    """Train a language model on text, inside --memory.

    Micro-batch and checkpointing are chosen by predicting them, unless they are given; the tokens
    of a step stay as asked, through accumulation.  Ctrl-C saves the state and leaves.
    """
    options = TrainOptions(
        num_steps=steps,
        warmup_steps=warmup_steps,
        eval_every=eval_every,
        save_every=save_every,
        keep=keep,
        seed=seed,
        truncate=truncate,
        log=tuple(log or ()),
    )
    if html is not None:
        choices.refuse_unwritable(html, force=force or resume)
    choices.refuse_unwritable(out / "run.jsonl", force=True)
    RunFolder(out).check(resume=resume, force=force)
    planned = _plan_in(target)
    recipe = (planned.recipe if planned else Recipe()).but(
        **choices.techniques(
            precision=precision,
            checkpointing=checkpointing,
            loss=loss,
            optimizer=optimizer,
            optimizer_in_backward=optimizer_in_backward,
            offload=offload,
            sequences=sequences,
            seq_schedule=seq_schedule,
            clip_norm=clip_norm,
            learning_rate=learning_rate,
        )
    )
    budget_bytes = choices.size_of(memory)
    if planned is not None:
        target = planned.target
        if seq_schedule is None:  # or its last length is the one
            seq_len = seq_len or planned.seq_len
        vocab_size = vocab_size or planned.vocab_size
        budget_bytes = budget_bytes or planned.budget_bytes
        if tokens_per_step is None:
            batch_size = batch_size or recipe.batch_size
            accumulate = accumulate or recipe.accumulate

    from memfit.api import train as train_job
    from memfit.data.text import load
    from memfit.models.target import resolve
    from memfit.planner.budget import fit_to_budget
    from memfit.reports.terminal import print_plan
    from memfit.trainer.resident import give_freed_tensors_back

    choices.collect_garbage_again()
    give_freed_tensors_back()  # the process is ours, and no large tensor is there yet
    console = choices.stderr()
    job = resolve(target, vocab_size=vocab_size)
    if job.vocab_size is None:
        raise BadInput(f"{job.name} does not train on text: memfit train trains causal LMs")
    job.check_sequences(recipe.sequences)
    stages = recipe.stages
    length = job.check_seq_len(stages.check_longest(seq_len) if stages else seq_len)
    samples, micro = step_shape(length, tokens_per_step, batch_size, accumulate)
    if stages is not None:
        stages.check_divides(samples * length)
    console.print(f"reading {', '.join(data)}", markup=False, soft_wrap=True)
    with shown_progress(console, ENCODING) as on_encoding:
        text = load(
            data,
            vocab_size=job.vocab_size,
            seq_len=length,
            tokenizer=tokenizer,
            on_progress=on_encoding,
        )
    console.print(_what_was_read(text), markup=False, soft_wrap=True)
    with shown_progress(console, LEARNING) as on_learning:
        plan, prediction = fit_to_budget(
            job,
            recipe.but(batch_size=micro or 1),
            target=target,
            budget_bytes=budget_bytes,
            samples_per_step=samples,
            seq_len=length,
            num_steps=steps,
            keep_batch_size=micro is not None,
            keep_checkpointing=checkpointing is not None or planned is not None,
            on_progress=lambda line: console.print(f"predicted {line}", markup=False),
            on_learning=on_learning,
        )
    if probe:
        plan, prediction = _probed(job, plan, prediction, text, steps, console)
    print_plan(console, plan)
    with shown_training(console, plan, steps) as (on_step, on_note):
        run_log = train_job(
            job,
            plan,
            text,
            out,
            options=options,
            resume=resume,
            force=force,
            on_step=on_step,
            on_note=on_note,
        )
    prediction.timeline.save(out / "predicted.timeline", force=True)
    if html is not None:
        _write_page(prediction, run_log, out, html)
    _report(plan, prediction, run_log, out, json)


def _probed(
    job: Job, plan: Plan, prediction: Prediction, text: TextData, num_steps: int, console: Console
) -> tuple[Plan, Prediction]:
    """The plan with the largest micro-batch that is left when it is tried on the device."""
    from memfit.api import find_batch_size
    from memfit.data.feed import open_feed
    from memfit.planner.predict import predict
    from memfit.techniques.accumulation import slice_samples

    recipe, seq_len = plan.recipe, plan.seq_len or 1
    feed = open_feed(text, recipe=recipe, seq_len=seq_len, seed=0, sequences=recipe.sequences)
    longest = feed.longest()
    console.print(f"trying {recipe.batch_size} samples at a time", markup=False)
    found = find_batch_size(
        job,
        recipe,
        longest_batch=lambda count: slice_samples(longest, 0, count),
        samples_per_step=recipe.samples_per_step,
        budget_bytes=plan.budget_bytes,
        seq_len=seq_len,
    )
    samples = recipe.samples_per_step
    size = max(n for n in range(1, found.batch_size + 1) if samples % n == 0)
    console.print(f"{size} samples at a time were tried, and fit", markup=False)
    if size == recipe.batch_size:
        return plan, prediction
    recipe = recipe.but(batch_size=size, accumulate=samples // size)
    prediction = predict(
        job, recipe, seq_len=seq_len, budget_bytes=plan.budget_bytes, num_steps=num_steps
    )
    plan = replace(
        plan,
        recipe=recipe,
        predicted_peak_bytes=prediction.peak.device_bytes,
        reason=f"{plan.reason}; {size} at a time is the largest micro-batch that fits when tried",
    )
    return plan, prediction


def step_shape(
    seq_len: int, tokens_per_step: int | None, batch_size: int | None, accumulate: int | None
) -> tuple[int, int | None]:
    """Samples of a step, and of a micro-batch where that is not to be chosen.

    Raises:
        BadInput: the numbers contradict each other.
    """
    parts = (batch_size or 1) * (accumulate or 1)
    if tokens_per_step is not None:
        samples = max(1, round(tokens_per_step / seq_len))
        if samples * seq_len != tokens_per_step:
            raise BadInput(
                f"{tokens_per_step} tokens a step are not a whole number of sequences of "
                f"{seq_len}: write --tokens-per-step {samples * seq_len}"
            )
    elif batch_size is not None:
        samples = parts
    else:
        samples = -(-max(1, _DEFAULT_TOKENS_PER_STEP // seq_len) // parts) * parts
    wanted = parts if batch_size and accumulate else max(1, round(samples / parts)) * parts
    if samples != wanted:
        asked = {"--batch-size": batch_size, "--accumulate": accumulate}
        options = " ".join(f"{name} {number}" for name, number in asked.items() if number)
        raise BadInput(
            f"{tokens_per_step} tokens a step are {samples} sequences of {seq_len}, which "
            f"{options} does not give: leave it out, or write --tokens-per-step {wanted * seq_len}"
        )
    return samples, batch_size or (samples // accumulate if accumulate else None)


def _plan_in(target: str) -> Plan | None:
    """The plan, where the target is a record of memfit; other JSON is a model's config."""
    path = Path(target)
    if path.suffix != ".json" or not path.is_file():
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        is_record = '"memfit":' in file.read(200)
    return Plan.load(path) if is_record else None


def _what_was_read(text: TextData) -> str:
    documents = "1 document" if text.num_documents == 1 else f"{text.num_documents:,} documents"
    return (
        f"{documents}, {len(text.train_tokens):,} tokens to train on, "
        f"{len(text.eval_tokens):,} held out"
    )


def _write_page(prediction: Prediction, log: RunLog, out: Path, html: Path) -> None:
    from memfit.records.timeline import Timeline
    from memfit.reports.html import prediction_page

    measured = Timeline.load(RunFolder(out).timeline)
    choices.write_page(html, prediction_page(prediction, measured=measured, runlog=log))


def _report(plan: Plan, prediction: Prediction, log: RunLog, out: Path, json: bool) -> None:
    from memfit.reports.terminal import print_run

    if not json:
        print_run(Console(highlight=False), log)
    else:
        first, last = log.steps[0], log.steps[-1]
        evals = [step.eval_loss for step in log.steps if step.eval_loss is not None]
        choices.print_json(
            {
                "plan": plan.as_dict(),
                "out": str(out),
                "steps": last.step,
                "first_loss": first.loss,
                "last_loss": last.loss,
                "eval_loss": evals[-1] if evals else None,
                "predicted_peak_bytes": prediction.peak.allocated_bytes,
                "measured_peak_bytes": log.peak_bytes,
                "resident_peak_bytes": max(step.resident_bytes or 0 for step in log.steps),
            }
        )
    choices.stderr().print(f"Wrote {out}", markup=False, soft_wrap=True)
