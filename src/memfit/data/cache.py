"""Where what was computed from the user's text is kept, so that it is computed once.

``$MEMFIT_CACHE``, else ``$XDG_CACHE_HOME/memfit``, else ``~/.cache/memfit``.  Everything there is
named by a hash of what it was made from: it is never stale, and can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from memfit.errors import BadInput


def cache_path(kind: str, made_from: tuple[str | int, ...], suffix: str) -> Path:
    """The place of one cached file, in the folder ``kind``, which is made when missing.

    Raises:
        BadInput: the folder cannot be made.
    """
    folder = _root() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot make the cache folder {folder}: {error.strerror or error}: name a folder "
            "that can be written in the environment variable MEMFIT_CACHE"
        ) from error
    key = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
    return folder / f"{key[:32]}{suffix}"


def _root() -> Path:
    own = os.environ.get("MEMFIT_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memfit"
