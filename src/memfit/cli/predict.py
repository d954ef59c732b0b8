"""``memfit predict``: will it fit?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from memfit.cli import choices
from memfit.cli.progress import LEARNING, shown_progress
from memfit.errors import BadInput
from memfit.records.recipe import Recipe


def predict(
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help=choices.TARGET_HELP)
    ] = None,
    batch_size: choices.BatchSize = None,
    seq_len: choices.SeqLen = None,
    memory: choices.Memory = None,
    device: Annotated[str, typer.Option(help="Where it runs: cpu.")] = "cpu",
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="A card of `memfit gpus` (to come).")
    ] = None,
    precision: choices.Precision = None,
    accumulate: choices.Accumulate = None,
    checkpointing: choices.Checkpointing = None,
    optimizer: choices.Optimizer = None,
    vocab_size: choices.VocabSize = None,
    html: choices.Html = None,
    json: choices.Json = False,
    force: choices.Force = False,
    list_presets: Annotated[bool, typer.Option("--list", help="List the presets.")] = False,
) -> None:
    """Say what memory a training run needs, without running it.

    The model's construction, two steps and an evaluation are run without data.  The exit code is
    0 when they fit into --memory (all of the device when it is left out), and 3 when they do not.
    """
    if list_presets:
        _list_presets(json)
        return
    if target is None:
        raise BadInput("say what to predict: a preset (see --list), a config.json or file.py:name")
    if html is not None:
        choices.refuse_unwritable(html, force=force)
    recipe = Recipe(
        **choices.given(
            precision=precision,
            batch_size=batch_size,
            accumulate=accumulate,
            checkpointing=checkpointing,
            optimizer=optimizer,
        )
    )
    budget_bytes = choices.size_of(memory)

    from memfit.models.target import resolve
    from memfit.planner.predict import predict as predict_job

    job = resolve(target, vocab_size=vocab_size)
    with shown_progress(choices.stderr(), LEARNING) as on_learning:
        prediction = predict_job(
            job,
            recipe,
            device=gpu or device,
            seq_len=seq_len,
            budget_bytes=budget_bytes,
            on_progress=on_learning,
        )
    if json:
        choices.print_json(prediction.as_dict())
    else:
        from memfit.reports.terminal import print_prediction

        print_prediction(Console(highlight=False), prediction)
    if html is not None:
        from memfit.reports.html import prediction_page

        choices.write_page(html, prediction_page(prediction))
    if not prediction.fits:
        raise typer.Exit(3)


def _list_presets(json: bool) -> None:
    from memfit.models.presets import PRESETS

    if json:
        choices.print_json({name: preset.description for name, preset in PRESETS.items()})
        return
    width = max(map(len, PRESETS))
    for name, preset in PRESETS.items():
        print(f"{name:{width}}  {preset.description}")
