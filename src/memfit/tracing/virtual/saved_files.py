"""Files that a traced script saves: they are kept aside, so that no real ones are overwritten.

A checkpoint of a trace holds no values, and must not take the place of one that does, nor be found
by the next real run.  So what is saved under a path lands in a folder of the trace's own, and
whoever asks for the path in this process finds it there.  So does what Python writes over a file
that is there already, by ``open`` or by moving another file to its place.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any


class SavedFiles:
    """Paths that were saved, and where their contents are."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._folder = ""
        self._places: dict[str, str] = {}
        self._num_made = 0

    def make(self, path: Any) -> str:
        """Where to write what is saved as ``path``."""
        self._folder = self._folder or tempfile.mkdtemp(prefix="memfit-trace-")
        self._num_made += 1
        place = os.path.join(self._folder, f"{self._num_made}.saved")
        self._places[_key(path)] = place
        return place

    def find(self, path: Any) -> Any:
        """Where ``path`` was saved; ``path`` itself when it was not."""
        if not self._places or not isinstance(path, (str, bytes, os.PathLike)):
            return path
        return self._places.get(_key(path), path)

    def install(self) -> None:
        """Lets this process find, move and remove what it saved."""
        stat = os.stat

        def look(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
            return stat(self.find(path) if self._places else path, *args, **kwargs)

        os.stat = look
        files: Any = builtins
        files.open = io.open = self._opening(io.open)
        for name in ("replace", "rename"):
            setattr(os, name, self._moving(getattr(os, name)))
        for name in ("remove", "unlink"):
            setattr(os, name, self._removing(getattr(os, name)))

    def close(self) -> None:
        """Throws the files away; a process that was forked from this one does not."""
        if self._folder and os.getpid() == self._owner:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _opening(self, open_file: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            place = self.find(file)
            if place is file and "w" in mode and _is_file(file):
                place = self.make(file)
            return open_file(place, mode, *args, **kwargs)

        return opened

    def _moving(self, move: Callable[..., None]) -> Callable[..., None]:
        def moved(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            place = self.find(source)
            if place is not source:
                self._places[_key(target)] = self._places.pop(_key(source))
            elif _is_file(source) and _is_file(target):
                shutil.move(source, self.make(target))
            else:
                move(source, target, *args, **kwargs)

        return moved

    def _removing(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, *args: Any, **kwargs: Any) -> None:
            place = self.find(path)
            remove(place, *args, **kwargs)
            if place is not path:
                del self._places[_key(path)]

        return removed


def _is_file(path: Any) -> bool:
    return isinstance(path, (str, bytes, os.PathLike)) and os.path.isfile(path)


def _key(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))
