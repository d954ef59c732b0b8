"""Options that several verbs share, and how they become records.

The help texts are the docstrings of the fields that the options fill, so that a recipe is
explained in one place.
"""

from __future__ import annotations

import ast
import gc
import inspect
import json
import os
import re
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from memfit.errors import BadInput
from memfit.records.files import write_text
from memfit.records.recipe import Recipe
from memfit.units import parse_size


@cache
def _field_docs(record: type) -> dict[str, str]:
    """Field name -> the docstring that stands under it."""
    (tree,) = ast.parse(inspect.getsource(record)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def recipe_help(field: str) -> str:
    """The help text of an option that fills ``field`` of a Recipe."""
    return _field_docs(Recipe)[field]


_LENGTHS = re.compile(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?")

TARGET_HELP = "A preset (see --list), a Hugging Face config.json or its folder, or file.py:name."

Precision = Annotated[str | None, typer.Option(help=recipe_help("precision"))]
BatchSize = Annotated[int | None, typer.Option(min=1, help=recipe_help("batch_size"))]
Accumulate = Annotated[int | None, typer.Option(min=1, help=recipe_help("accumulate"))]
Checkpointing = Annotated[str | None, typer.Option(help=recipe_help("checkpointing"))]
Optimizer = Annotated[str | None, typer.Option(help=recipe_help("optimizer"))]
Loss = Annotated[str | None, typer.Option(help=recipe_help("loss"))]
InBackward = Annotated[
    bool, typer.Option("--optimizer-in-backward", help=recipe_help("optimizer_in_backward"))
]
Offload = Annotated[str | None, typer.Option(help=recipe_help("offload"))]
Sequences = Annotated[str | None, typer.Option(help=recipe_help("sequences"))]
SeqSchedule = Annotated[
    str | None, typer.Option(metavar="T:STEP,...,T", help=recipe_help("seq_schedule"))
]
ClipNorm = Annotated[str | None, typer.Option(metavar="NORM|none", help=recipe_help("clip_norm"))]
SeqLen = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a sample; the model's own if not given.")
]
Lengths = Annotated[
    str | None,
    typer.Option(
        "--seq-len",
        metavar="T|T..T",
        help="Tokens of a sample; the model's own if not given.  64..128: lengths that vary.",
    ),
]
VocabSize = Annotated[
    int | None, typer.Option(min=1, help="Vocabulary of the model, if not its own.")
]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="What it must fit into: 24GiB, 24GB, 1.5g.")
]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that shows it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


def given(**asked: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in asked.items() if value is not None}


def techniques(
    *, clip_norm: str | None, optimizer_in_backward: bool, **asked: Any
) -> dict[str, Any]:
    """The fields of a recipe that were given.

    Raises:
        BadInput: the norm is neither a number nor none.
    """
    fields = given(**asked)
    if optimizer_in_backward:
        fields["optimizer_in_backward"] = True
    if clip_norm is not None:
        fields["clip_norm"] = None if clip_norm.lower() == "none" else _number(clip_norm)
    return fields


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise BadInput(
            f"--clip-norm is {text!r}: write a number, as in 1.0, or none to leave gradients alone"
        ) from error


def size_of(text: str | None) -> int | None:
    """Bytes of a size option."""
    return None if text is None else parse_size(text)


def lengths_of(text: str | None) -> int | tuple[int, int] | None:
    """The length, or the shortest and the longest, of ``1024`` or ``64..128``.

    Raises:
        BadInput: it is neither.
    """
    if text is None:
        return None
    match = _LENGTHS.fullmatch(text)
    if match is None:
        raise BadInput(
            f"--seq-len is {text!r}: write a number of tokens, as in 1024, or the shortest and the "
            "longest of batches that vary, as in 64..128"
        )
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


def print_json(document: Any) -> None:
    """The one JSON object of ``--json``.  Numbers that JSON has no word for become null."""
    print(json.dumps(_finite(document), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value


def refuse_unwritable(path: Path, *, force: bool) -> None:
    """Says before the work, and not after it, that a file cannot be written.

    Raises:
        BadInput: it exists and may not be overwritten, or its folder cannot be written.
    """
    if path.exists() and not force:
        raise BadInput(f"{path} exists: choose another name, or overwrite it with --force")
    if path.is_dir():
        raise BadInput(f"cannot write {path}: it is a folder; name a file in it")
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not there.is_dir():
        raise BadInput(f"cannot write {path}: {there} is not a folder")
    if not os.access(there, os.W_OK):
        raise BadInput(f"cannot write {path}: the folder {there} is read-only for you")


def write_page(path: Path, page: str) -> None:
    """Writes a page that ``refuse_unwritable`` has let pass, its folder too, and says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page, force=True)
    stderr().print(f"Wrote {path}", markup=False, soft_wrap=True)


def collect_garbage_again() -> None:
    """Ends what ``main.run`` began: imports are done, and what they made is not looked at again."""
    gc.freeze()
    gc.enable()


def stderr() -> Console:
    """Where progress and notes go; bars only when it is a terminal."""
    return Console(file=sys.stderr, highlight=False)
