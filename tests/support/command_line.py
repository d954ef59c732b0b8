"""The command line in this process: importing torch anew for each command takes seconds."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
from typing import NamedTuple
from unittest import mock

from memfit.cli import main


class Said(NamedTuple):
    """What a command left behind."""

    exit_code: int
    out: str
    err: str


def memfit(*arguments: object) -> Said:
    """Runs ``memfit ARGUMENTS``, neither of whose streams is a terminal."""
    out, err, exit_code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["memfit", *map(str, arguments)]),
    ):
        try:
            main.run()
        except SystemExit as exit_:
            exit_code = int(exit_.code or 0)
        finally:  # it turns the collector off, for a process that is about to end
            gc.unfreeze()
            gc.enable()
    return Said(exit_code, out.getvalue(), err.getvalue())
