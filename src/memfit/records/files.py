"""Saving and loading records: one JSON document a file, with its kind and version in front.

A file is written to a temporary name beside its place and renamed, so a full disk or a kill
leaves the old file or the new one, never half of one.  Columns (NumPy arrays) travel inside the
JSON as base64 of zlib of their little-endian bytes: 100,000 events take about a megabyte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from memfit.errors import BadInput, DamagedFile

R = TypeVar("R")

_MAX_COLUMN_BYTES = 1 << 28
"""A column that claims to be larger than this is refused unread."""


def cache_folder() -> Path:
    """What can be computed again: ``$MEMFIT_CACHE``, else ``memfit`` in the user's cache folder."""
    own = os.environ.get("MEMFIT_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memfit"


@contextlib.contextmanager
def replacing(path: Path, *, force: bool) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well.

    Raises:
        BadInput: ``path`` exists and ``force`` is false, or its folder cannot be written.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        if path.exists() and not force:
            raise BadInput(f"{path} exists: choose another name, or overwrite it with --force")
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise BadInput(
            f"cannot write {path}: {error.strerror or error} (nothing was changed there)"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Writes ``text`` to ``path`` as a whole or not at all."""
    with replacing(path, force=force) as temporary, open(temporary, "wb") as file:
        # A name that came from a path or a config may hold a lone surrogate.
        file.write(text.encode("utf-8", errors="backslashreplace"))
        file.flush()
        os.fsync(file.fileno())


def save_document(
    path: Path, kind: str, version: int, body: Mapping[str, Any], *, force: bool = False
) -> None:
    """Writes ``{"memfit": kind, "version": version, **body}``."""
    write_text(path, json.dumps({"memfit": kind, "version": version, **body}) + "\n", force=force)


def load_document(path: Path, kind: str, version: int, build: Callable[[dict[str, Any]], R]) -> R:
    """Reads a file that :func:`save_document` wrote and builds the record.

    Raises:
        BadInput: there is no such file, or it holds another kind of record.
        DamagedFile: the file is cut short or altered, or was written by a newer memfit.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path} is not a memfit {kind}: it is not text") from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: not a whole JSON document ({error})") from error
    check_header(path, document, kind, version)
    try:
        return build(document)
    except (KeyError, TypeError, ValueError, IndexError, zlib.error) as error:
        raise DamagedFile(
            f"{path} is damaged: {type(error).__name__} while reading its {kind}: {error}"
        ) from error


def check_header(path: Path, document: Any, kind: str, version: int) -> None:
    """Refuses a document that holds another kind of record, or one this memfit is too old for."""
    if not isinstance(document, dict) or "memfit" not in document:
        raise BadInput(f"{path} is not a memfit file: it does not say which record it holds")
    if document["memfit"] != kind:
        raise BadInput(f"{path} holds {document['memfit']!r:.40}, where {kind!r} is needed")
    found = document.get("version")
    if not isinstance(found, int) or found < 1:
        raise DamagedFile(f"{path} is damaged: its version is {found!r:.40}")
    if found > version:
        raise DamagedFile(
            f"{path} was written by a newer memfit ({kind} version {found}; this one reads up to "
            f"{version}): upgrade memfit"
        )


def encode_column(column: np.ndarray) -> dict[str, Any]:
    """A one-dimensional integer column as JSON."""
    little = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
    packed = base64.b64encode(zlib.compress(little.tobytes(), level=1)).decode("ascii")
    return {"dtype": column.dtype.name, "length": len(column), "zlib": packed}


def decode_column(encoded: Mapping[str, Any], dtype: str) -> np.ndarray:
    """The column that :func:`encode_column` wrote.

    Raises:
        ValueError, KeyError, TypeError, zlib.error: it is not such a column, or not of ``dtype``.
    """
    if encoded["dtype"] != dtype:
        raise ValueError(f"a column is {encoded['dtype']!r} where {dtype} belongs")
    length, wanted = encoded["length"], np.dtype(dtype).newbyteorder("<")
    if not isinstance(length, int) or not 0 <= length * wanted.itemsize <= _MAX_COLUMN_BYTES:
        raise ValueError(f"a column claims {length!r} values")
    num_bytes = length * wanted.itemsize
    inflater = zlib.decompressobj()
    data = inflater.decompress(base64.b64decode(encoded["zlib"]), num_bytes + 1)
    if len(data) != num_bytes or not inflater.eof:  # the check sum is read at the very end
        raise ValueError(f"a column should hold {num_bytes} bytes and does not")
    return np.frombuffer(data, dtype=wanted).astype(dtype)
