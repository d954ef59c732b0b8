"""A corpus as one flat array of token ids, encoded once and kept in the cache as ``.npy``.

Each document is followed by the end of text.  One short document in a hundred, chosen by a hash
of its content, is moved to the end of the array: whoever holds out the tail gets documents
from everywhere, the same ones in every run, and not the last file alone.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from memfit.data.cache import cache_path
from memfit.data.corpus import Corpus, Piece
from memfit.data.tokenizer import end_of_text_id, vocab_size_of
from memfit.records.files import replacing

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Progress = Callable[[int, int], None]
"""``(done_bytes, total_bytes)`` of the text."""

_FORMAT = 1
"""Part of the cache key: to be raised when the same text would give another array."""

_ENCODED_AT_ONCE = 4 << 20
"""Characters handed to the tokenizer's threads in one call."""


def encoded_tokens(
    corpus: Corpus, tokenizer: Tokenizer, on_progress: Progress | None = None
) -> np.ndarray:
    """(N,) uint16 or uint32, memory-mapped: from the cache, or encoded now.

    Raises:
        BadInput: the cache cannot be written, or the tokenizer has no end of text.
    """
    made_from = (_FORMAT, corpus.content_hash, tokenizer.to_str())
    path = cache_path("tokens", made_from, ".npy")
    try:
        return _open(path)
    except (OSError, ValueError, EOFError):  # missing, or cut short
        with replacing(path, force=True) as temporary:
            _write(temporary, corpus, tokenizer, on_progress)
        return _open(path)


def _open(path: Path) -> np.ndarray:
    tokens: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return tokens


def _write(path: Path, corpus: Corpus, tokenizer: Tokenizer, on_progress: Progress | None) -> None:
    dtype = np.dtype("<u2" if vocab_size_of(tokenizer) <= 1 << 16 else "<u4")
    with open(path, "wb") as file:
        _write_header(file, dtype, 0)
        start = file.tell()
        moved: list[np.ndarray] = []
        done = 0
        for piece, ids in _encode(corpus.pieces(), tokenizer):
            tokens = np.array(ids, dtype=dtype)
            if _is_moved(piece):
                moved.append(tokens)
            else:
                file.write(tokens.tobytes())
            done += len(piece.text.encode())
            if on_progress:
                on_progress(done, corpus.num_bytes)
        for tokens in moved:
            file.write(tokens.tobytes())
        num_tokens = (file.tell() - start) // dtype.itemsize
        file.seek(0)
        _write_header(file, dtype, num_tokens)
        assert file.tell() == start, "NumPy pads a header so that its length can be rewritten"
        file.flush()
        os.fsync(file.fileno())


def _write_header(file: IO[bytes], dtype: np.dtype[Any], num_tokens: int) -> None:
    header = {"descr": dtype.str, "fortran_order": False, "shape": (num_tokens,)}
    np.lib.format.write_array_header_1_0(file, header)


def _encode(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Iterator[tuple[Piece, list[int]]]:
    end = end_of_text_id(tokenizer)
    for group in _grouped(pieces):
        encodings = tokenizer.encode_batch_fast([p.text for p in group], add_special_tokens=False)
        for piece, encoding in zip(group, encodings, strict=True):
            yield piece, encoding.ids + [end] * piece.ends_document


def _grouped(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.text)
        if size >= _ENCODED_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _is_moved(piece: Piece) -> bool:
    whole = piece.starts_document and piece.ends_document
    return whole and zlib.crc32(piece.text.encode()) % 100 == 0
