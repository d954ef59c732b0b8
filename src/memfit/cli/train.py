"""``memfit train``: run it, inside a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from memfit.cli import choices
from memfit.cli.training import shown_training
from memfit.errors import BadInput
from memfit.records.files import write_text
from memfit.records.plan import Plan
from memfit.records.recipe import Recipe
from memfit.trainer.options import TrainOptions

if TYPE_CHECKING:
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
            help="Files or folders of txt, md, jsonl, parquet; `python`: what every Python carries.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/latest"),
    memory: choices.Memory = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 1000,
    tokens_per_step: Annotated[
        int | None,
        typer.Option(help="Tokens behind one step; 16,384 if nothing else says it."),
    ] = None,
    seq_len: choices.SeqLen = None,
    batch_size: choices.BatchSize = None,
    accumulate: choices.Accumulate = None,
    precision: choices.Precision = None,
    checkpointing: choices.Checkpointing = None,
    optimizer: choices.Optimizer = None,
    learning_rate: Annotated[
        float | None, typer.Option(help=choices.recipe_help("learning_rate"))
    ] = None,
    warmup_steps: Annotated[
        int | None, typer.Option(help="Steps of linear warm-up; a tenth of the run, at most 100.")
    ] = None,
    eval_every: Annotated[int, typer.Option(help="Steps between two evaluations.")] = 100,
    save_every: Annotated[int, typer.Option(help="Steps between two saved states.")] = 100,
    keep: Annotated[int, typer.Option(help="Saved states that are kept.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the weights, dropout and the data's order.")] = 0,
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
    if html is not None and html.exists() and not (force or resume):
        raise BadInput(f"{html} exists: choose another name, or overwrite it with --force")
    options = TrainOptions(
        num_steps=steps,
        warmup_steps=warmup_steps,
        eval_every=eval_every,
        save_every=save_every,
        keep=keep,
        seed=seed,
    )
    given = Plan.load(Path(target)) if Path(target).is_file() and _is_plan(target) else None
    asked = {
        "precision": precision,
        "checkpointing": checkpointing,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
    }
    changes = {name: value for name, value in asked.items() if value is not None}
    recipe = (given.recipe if given else Recipe()).but(**changes)

    from memfit.data.text import load
    from memfit.models.target import resolve
    from memfit.planner.budget import fit_to_budget
    from memfit.reports.terminal import print_plan
    from memfit.trainer.engine import train as train_job

    choices.collect_garbage_again()
    console = choices.stderr()
    job = resolve(given.target if given else target, vocab_size=vocab_size)
    if job.vocab_size is None:
        raise BadInput(f"{job.name} does not train on text: memfit train trains causal LMs")
    length = job.check_seq_len(seq_len or (given.seq_len if given else None))
    console.print(f"reading {', '.join(data)}", markup=False)
    text = load(data, vocab_size=job.vocab_size, seq_len=length, tokenizer=tokenizer)
    console.print(
        f"{text.num_documents:,} documents, {len(text.train_tokens):,} tokens to train on, "
        f"{len(text.eval_tokens):,} held out"
    )
    if given and tokens_per_step is None:
        batch_size, accumulate = batch_size or recipe.batch_size, accumulate or recipe.accumulate
    samples, micro = step_shape(length, tokens_per_step, batch_size, accumulate)
    plan, prediction = fit_to_budget(
        job,
        recipe.but(batch_size=micro or 1),
        target=given.target if given else target,
        budget_bytes=choices.size_of(memory) or (given.budget_bytes if given else None),
        samples_per_step=samples,
        seq_len=length,
        keep_batch_size=micro is not None,
        keep_checkpointing=checkpointing is not None or given is not None,
        on_progress=lambda line: console.print(f"predicting {line}", markup=False),
    )
    print_plan(console, plan)
    with shown_training(plan, options.num_steps) as (on_step, on_note):
        log = train_job(
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
    _write_records(plan, prediction, out)
    if html is not None:
        _write_page(prediction, log, out, html)
    _report(plan, prediction, log, out, json)


def step_shape(
    seq_len: int, tokens_per_step: int | None, batch_size: int | None, accumulate: int | None
) -> tuple[int, int | None]:
    """Samples of a step, and of a micro-batch where that is not to be chosen.

    Raises:
        BadInput: the numbers contradict each other.
    """
    if tokens_per_step is None:
        if batch_size is not None:
            return batch_size * (accumulate or 1), batch_size
        samples = max(1, _DEFAULT_TOKENS_PER_STEP // seq_len)
        samples = -(-samples // (accumulate or 1)) * (accumulate or 1)
    else:
        samples, rest = divmod(tokens_per_step, seq_len)
        if rest or not samples:
            raise BadInput(
                f"{tokens_per_step} tokens a step are not a whole number of sequences of {seq_len}: "
                f"write --tokens-per-step {max(1, round(tokens_per_step / seq_len)) * seq_len}"
            )
    micro = batch_size or (samples // accumulate if accumulate else None)
    if micro and (samples % micro or (accumulate and micro * accumulate != samples)):
        raise BadInput(
            f"a step of {samples} samples cannot be made of micro-batches of {micro}"
            + (f", {accumulate} times" if accumulate else "")
            + ": leave out --batch-size or --accumulate, or change --tokens-per-step"
        )
    return samples, micro


def _is_plan(target: str) -> bool:
    """Whether a file says that it is a plan; any other JSON is taken for a model's config."""
    with open(target, encoding="utf-8", errors="replace") as file:
        return '"memfit": "plan"' in file.read(200)


def _write_records(plan: Plan, prediction: Prediction, out: Path) -> None:
    plan.save(out / "plan.json", force=True)
    prediction.timeline.save(out / "predicted.timeline", force=True)


def _write_page(prediction: Prediction, log: RunLog, out: Path, html: Path) -> None:
    from memfit.records.timeline import Timeline
    from memfit.reports.html import prediction_page

    measured = Timeline.load(out / "measured.timeline")
    html.parent.mkdir(parents=True, exist_ok=True)
    write_text(html, prediction_page(prediction, measured=measured, runlog=log), force=True)
    choices.stderr().print(f"Wrote {html}", markup=False)


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
    choices.stderr().print(f"Wrote {out}", markup=False)
