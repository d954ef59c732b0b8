"""Where what was computed from the user's text is kept, so that it is computed once.

Everything there is named by a hash of what it was made from: it is never stale, and can be deleted
at any time.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from memfit.errors import BadInput
from memfit.records.files import cache_folder


def cache_path(kind: str, made_from: tuple[str | int, ...], suffix: str) -> Path:
    """The place of one cached file, in the folder ``kind``, which is made when missing.

    Raises:
        BadInput: the folder cannot be made.
    """
    folder = cache_folder() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot make the cache folder {folder}: {error.strerror or error}: name a folder "
            "that can be written in the environment variable MEMFIT_CACHE"
        ) from error
    key = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
    return folder / f"{key[:32]}{suffix}"
