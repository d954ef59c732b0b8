"""What the user names on the command line, as a job.

A target is read in this order, and the first that applies decides:

1. ``file.py:name``: a Job in a Python file, or a function without arguments that returns one.
   The file is run, as ``python file.py`` would, except that it is not ``__main__``.
2. a preset, also where a file or folder has the same name: write ``./gpt2`` for the folder.
3. a Hugging Face ``config.json``, or the folder that holds one.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from memfit.errors import BadInput
from memfit.job import Job
from memfit.models.presets import is_preset, preset

_IN_A_FILE = re.compile(r"(?P<path>.+\.py):(?P<name>[^:/\\]*)")


def resolve(target: str, *, vocab_size: int | None = None) -> Job:
    """The job that ``target`` names.

    Args:
        target: a preset, a ``config.json`` or its folder, or ``file.py:name``.
        vocab_size: the tokenizer's, which a preset or a configuration takes for the model's.  A
            job in a Python file is taken as it is, if its vocabulary is large enough.

    Raises:
        BadInput: there is no such job, or the file that should make it fails.
    """
    if match := _IN_A_FILE.fullmatch(target):
        job = _from_file(Path(match["path"]), match["name"])
        _check_vocab_size(job, target, vocab_size)
        return job
    if is_preset(target):
        return preset(target, vocab_size=vocab_size)
    path = Path(target)
    if path.suffix == ".py":
        raise BadInput(f"{target} is a Python file: say which job in it, as {target}:NAME")
    if path.exists() or path.suffix == ".json" or path.name != target:
        from memfit.models.huggingface import job_from_config

        return job_from_config(path, vocab_size=vocab_size)
    return preset(target)  # raises, with the nearest names


def _from_file(path: Path, name: str) -> Job:
    module = _run(path)
    found = getattr(module, name, None) if name.isidentifier() else None
    if found is None:
        raise BadInput(_no_such_name(module, path, name))
    if not isinstance(found, Job) and callable(found):
        with _failures_of(path):
            found = found()
    if not isinstance(found, Job):
        raise BadInput(
            f"{path}:{name} is not a memfit.Job (it gives a value of type "
            f"{type(found).__name__}): write a Job, or a function without arguments that returns "
            "one"
        )
    return found


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadInput(f"there is no file {path}")
    module = ModuleType(f"memfit_target_{path.stem}")
    module.__file__ = str(path.absolute())
    # Known by name, and importable from its folder, for what the file itself imports or pickles.
    sys.modules[module.__name__] = module
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with _failures_of(path):
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    return module


@contextmanager
def _failures_of(path: Path) -> Iterator[None]:
    """Says where in the user's file an error came from, instead of a traceback through memfit."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"{path}{_line(error, path)} failed: {type(error).__name__}: {error}"
        ) from error


def _line(error: BaseException, path: Path) -> str:
    """Where in ``path`` it went wrong, the deepest place; nothing when it was elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    lines = [line for file, line in places if os.path.abspath(file) == os.path.abspath(path)]
    return f", line {lines[-1]}," if lines else ""


def _no_such_name(module: ModuleType, path: Path, name: str) -> str:
    own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    nearest = difflib.get_close_matches(name, own, n=3)
    jobs = [key for key, value in own.items() if isinstance(value, Job)]
    hints = {"nearest": nearest, "jobs": jobs}
    said = "; ".join(f"{what}: {', '.join(names)}" for what, names in hints.items() if names)
    return f"{path} has nothing called {name!r}" + (f" ({said})" if said else "")


def _check_vocab_size(job: Job, target: str, vocab_size: int | None) -> None:
    if vocab_size is not None and job.vocab_size is not None and job.vocab_size < vocab_size:
        raise BadInput(
            f"{target} takes token ids below {job.vocab_size}, but the tokenizer has {vocab_size}: "
            f"build the model with a vocabulary of at least that many"
        )
