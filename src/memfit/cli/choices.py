"""Options that several verbs share, and how they become records.

The help texts are the docstrings of the fields that the options fill, so that a recipe is
explained in one place.
"""

from __future__ import annotations

import ast
import gc
import inspect
import json
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from memfit.records.recipe import Recipe
from memfit.units import parse_size


@cache
def _field_docs(record: type) -> dict[str, str]:
    """Field name -> the docstring that stands under it."""
    (tree,) = ast.parse(inspect.getsource(record)).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs


def recipe_help(field: str) -> str:
    """The help text of an option that fills ``field`` of a Recipe."""
    return _field_docs(Recipe)[field]


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A preset (see --list), a Hugging Face config.json or its folder, or file.py:name.",
    ),
]
Precision = Annotated[str | None, typer.Option(help=recipe_help("precision"))]
BatchSize = Annotated[int | None, typer.Option(help=recipe_help("batch_size"))]
Accumulate = Annotated[int | None, typer.Option(help=recipe_help("accumulate"))]
Checkpointing = Annotated[str | None, typer.Option(help=recipe_help("checkpointing"))]
Optimizer = Annotated[str | None, typer.Option(help=recipe_help("optimizer"))]
SeqLen = Annotated[
    int | None, typer.Option(help="Tokens of a sample; the model's own if not given.")
]
VocabSize = Annotated[int | None, typer.Option(help="Vocabulary of the model, if not its own.")]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="What it must fit into: 24GiB, 24GB, 1.5g.")
]
Html = Annotated[Path | None, typer.Option(help="Write a page that shows it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


def recipe_of(**asked: Any) -> Recipe:
    """A recipe with the options that were given; the defaults stand for the others."""
    return Recipe(**{name: value for name, value in asked.items() if value is not None})


def size_of(text: str | None) -> int | None:
    """Bytes of a size option."""
    return None if text is None else parse_size(text)


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


def collect_garbage_again() -> None:
    """Ends what ``main.run`` began: imports are done, and what they made is not looked at again."""
    gc.freeze()
    gc.enable()


def stderr() -> Console:
    """Where progress and notes go; bars only when it is a terminal."""
    return Console(file=sys.stderr, highlight=False)
