"""The folders of saved states: ``step-00000100`` and so on in one folder, each whole or not there.

A folder is filled under another name, ``.step-00000100.1f2e3d4c.tmp``, and renamed when all of it
is on the disk.  What a run that was killed leaves has such a name and is no state.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_STEP_FOLDER = re.compile(r"step-(\d{8,})")


def step_folder(folder: Path, step: int) -> Path:
    """Where the state after ``step`` belongs."""
    return folder / f"step-{step:08d}"


def newest_first(folder: Path) -> list[Path]:
    """The states in ``folder``, from the last step back."""
    if not folder.is_dir():
        return []
    steps = {
        int(match[1]): path
        for path in folder.iterdir()
        if (match := _STEP_FOLDER.fullmatch(path.name))
    }
    return [steps[step] for step in sorted(steps, reverse=True)]


@contextlib.contextmanager
def filling(place: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``place`` when the block ends well; else it is removed.

    Raises:
        OSError: something cannot be written; what was at ``place`` before is still there.
    """
    folder = place.parent
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = _temporary(place)
    try:
        temporary.mkdir()
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            _flush(path)
        _rename_over(temporary, place)
        _flush(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def keep_last(keep: int, last: Path) -> None:
    """Removes the states beside ``last`` but for it and the ``keep - 1`` before it."""
    states = newest_first(last.parent)
    position = states.index(last)
    for path in states[:position] + states[position + keep :]:
        aside = _temporary(path)
        # First of all it must cease to be a state: the removal may be cut off.
        with contextlib.suppress(OSError):
            os.rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _rename_over(temporary: Path, place: Path) -> None:
    """Renames a folder.  No system replaces a full one: what is there steps aside."""
    aside = _temporary(place)
    with contextlib.suppress(FileNotFoundError):
        os.rename(place, aside)
    try:
        os.rename(temporary, place)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.rename(aside, place)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _temporary(place: Path) -> Path:
    return place.parent / f".{place.name}.{secrets.token_hex(4)}.tmp"


def _flush(path: Path) -> None:
    """Waits until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
