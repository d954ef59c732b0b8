"""The command ``memfit``: one verb a module, and one way for all of them to fail."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

import typer

from memfit.cli.gpus import gpus
from memfit.cli.notes import plain_notes
from memfit.cli.predict import predict
from memfit.cli.train import train
from memfit.errors import MemfitError

app = typer.Typer(
    name="memfit",
    help="Fit the training run you want into the GPU memory you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("predict", short_help="Say what memory a training run needs.")(predict)
app.command("train", short_help="Train a language model on text, inside --memory.")(train)
app.command("gpus", short_help="List the GPUs that a run can be fitted to.")(gpus)


def run() -> None:
    """Runs the command line; a user's mistake is one message and an exit code, no traceback."""
    # Importing torch and transformers makes a million objects, none of them garbage: looking
    # through them again and again, and once more at the end, is time that a short command lacks.
    # A verb that runs for long turns the collector on again when its imports are done.
    gc.disable()
    try:
        with plain_notes():
            app(prog_name="memfit")
    except MemfitError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader of a pipe has left; Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        # The system refuses, on a path that nobody looked at beforehand.
        _fail(str(error), 2)
    except Exception as error:
        traced = getattr(error, "traced_traceback", "")
        if not traced:
            raise
        # The job's own error, in the process where it ran: its traceback, and where the run was.
        print(traced, end="", file=sys.stderr)
        _fail("the job failed while it was traced", 1)
    finally:
        gc.freeze()


def _fail(message: str, exit_code: int) -> NoReturn:
    print(f"memfit: {message}", file=sys.stderr)
    sys.exit(exit_code)
