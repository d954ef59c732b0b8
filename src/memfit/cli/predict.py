"""``memfit predict``: will it fit?"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from memfit.cli import choices
from memfit.cli.progress import LEARNING, shown_progress
from memfit.errors import BadInput
from memfit.records.recipe import Recipe

if TYPE_CHECKING:
    from memfit.records.prediction import Prediction


def predict(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help=f"{choices.TARGET_HELP}  With --gpu, a script too."),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="After --: a script's own arguments."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A card of `memfit gpus`; cuda: this machine's."),
    ] = None,
    batch_size: choices.BatchSize = None,
    seq_len: choices.Lengths = None,
    memory: choices.Memory = None,
    device: Annotated[str, typer.Option(help="Where it runs, if not on a --gpu.")] = "cpu",
    torch: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="The PyTorch whose GPU allocator and kernels count; the installed one if not "
            "given.",
        ),
    ] = None,
    alloc_conf: Annotated[
        str | None,
        typer.Option(
            metavar="CONF",
            help="The GPU allocator's settings, as in PYTORCH_ALLOC_CONF, which counts if not "
            "given.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Optimizer steps after which a script is stopped; 3."),
    ] = None,
    precision: choices.Precision = None,
    accumulate: choices.Accumulate = None,
    checkpointing: choices.Checkpointing = None,
    loss: choices.Loss = None,
    optimizer: choices.Optimizer = None,
    optimizer_in_backward: choices.InBackward = False,
    offload: choices.Offload = None,
    sequences: choices.Sequences = None,
    seq_schedule: choices.SeqSchedule = None,
    clip_norm: choices.ClipNorm = None,
    vocab_size: choices.VocabSize = None,
    html: choices.Html = None,
    json: choices.Json = False,
    force: choices.Force = False,
    list_presets: Annotated[bool, typer.Option("--list", help="List the presets.")] = False,
) -> None:
    """Say what memory a training run needs, without running it.

    The model's construction, some steps and an evaluation are run without data.  The exit code is
    0 when they fit into --memory (all of the device when it is left out), also when it is tight,
    and 3 when they do not.

    With --gpu the run is that of a GPU, which need not be there, and the target may be a training
    script: `memfit predict train.py --gpu rtx-4090 -- --batch 32`.
    """
    if list_presets:
        _list_presets(json)
        return
    if target is None:
        raise BadInput("say what to predict: a preset (see --list), a config.json or file.py:name")
    if html is not None:
        choices.refuse_unwritable(html, force=force)
    options = choices.techniques(
        batch_size=batch_size,
        precision=precision,
        accumulate=accumulate,
        checkpointing=checkpointing,
        loss=loss,
        optimizer=optimizer,
        optimizer_in_backward=optimizer_in_backward,
        offload=offload,
        sequences=sequences,
        seq_schedule=seq_schedule,
        clip_norm=clip_norm,
    )
    rules: dict[str, Any] = {
        "device": device if gpu is None else gpu,
        "budget_bytes": choices.size_of(memory),
        "torch_version": torch,
        "alloc_conf": alloc_conf,
    }
    lengths = choices.lengths_of(seq_len)
    _say_what_runs(target, rules["device"])
    if Path(target).suffix == ".py":
        asked = choices.given(**options, seq_len=lengths, vocab_size=vocab_size)
        prediction = _script(target, arguments or [], steps, asked, rules)
    else:
        _refuse_what_is_for_scripts(target, arguments, steps)
        prediction = _job(target, Recipe(**options), lengths, vocab_size, rules)
    _show(prediction, html, json)


def _job(
    target: str,
    recipe: Recipe,
    lengths: int | tuple[int, int] | None,
    vocab_size: int | None,
    rules: dict[str, Any],
) -> Prediction:
    from memfit.models.target import resolve
    from memfit.planner.predict import predict as predict_job

    with redirect_stdout(sys.stderr):  # what the job prints is not the command's answer
        job = resolve(target, vocab_size=vocab_size)
        if rules["device"].lower() != "cpu":
            # It forks: a bar's thread may hold a lock at that moment, which nobody gives back.
            return predict_job(job, recipe, seq_len=lengths, **rules)
        with shown_progress(choices.stderr(), LEARNING) as on_learning:
            return predict_job(job, recipe, seq_len=lengths, on_progress=on_learning, **rules)


def _script(
    target: str,
    arguments: list[str],
    steps: int | None,
    asked: dict[str, Any],
    rules: dict[str, Any],
) -> Prediction:
    """Runs a script as it is.

    Raises:
        BadInput: it does not say on which GPU, or asks for what memfit does to jobs only.
    """
    if asked:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in asked)
        raise BadInput(
            f"{target} is a script and runs as it is, so {options} cannot be applied to it: give "
            f"it arguments of its own, as in memfit predict {target} --gpu rtx-4090 -- --batch 8; "
            f"or name a job in it, {target}:NAME"
        )
    if rules["device"].lower() == "cpu":
        raise BadInput(
            f"{target} is a script, and scripts are run on a virtual GPU: say which, as in memfit "
            f"predict {target} --gpu rtx-4090 (`memfit gpus` lists them); or name a job in it, "
            f"{target}:NAME"
        )
    from memfit.planner.gpu import NUM_STEPS, predict_script

    return predict_script(Path(target), arguments, num_steps=steps or NUM_STEPS, **rules)


def _refuse_what_is_for_scripts(
    target: str, arguments: list[str] | None, steps: int | None
) -> None:
    if arguments:
        raise BadInput(
            f"{target} takes no arguments of its own, and was given {' '.join(arguments)}: only a "
            "script, train.py, does; for a job in a file, write file.py:name"
        )
    if steps is not None:
        raise BadInput(
            f"--steps says when a script is stopped; the steps of {target} are repeated until "
            "nothing changes any more: leave it out"
        )


def _say_what_runs(target: str, device: str) -> None:
    """A line for whoever waits: no bar, since the work is done in another process."""
    console = choices.stderr()
    if console.is_terminal and device.lower() != "cpu":
        console.print(f"running {target} on a virtual {device}", style="dim", markup=False)


def _show(prediction: Prediction, html: Path | None, json: bool) -> None:
    if json:
        choices.print_json(prediction.as_dict())
    else:
        from memfit.reports.terminal import print_prediction

        print_prediction(Console(highlight=False), prediction)
    if html is not None:
        from memfit.reports.html import prediction_page

        choices.write_page(html, prediction_page(prediction))
    if prediction.fits == "no":
        raise typer.Exit(3)


def _list_presets(json: bool) -> None:
    from memfit.models.presets import PRESETS

    if json:
        choices.print_json({name: preset.description for name, preset in PRESETS.items()})
        return
    width = max(map(len, PRESETS))
    for name, preset in PRESETS.items():
        print(f"{name:{width}}  {preset.description}")
