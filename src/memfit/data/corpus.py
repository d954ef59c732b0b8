"""Corpus: the documents of files and folders, streamed, and the hash of their content.

A folder is walked in sorted order, without hidden files, for the suffixes in ``READERS``; a file
named directly may have any other suffix and is then read as text.  The word ``python`` (when
no such path exists) stands for the text that every Python installation carries: its
documentation topics and the sources of its standard library, over 10 MB without the tests.

Documents come in pieces of at most 2 * ``PIECE_CHARS`` characters, so that a single text file of
many GB is read in little memory and encoded on all cores.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

from memfit.data.readers import (
    READERS,
    Conversation,
    holds_chat,
    read_chat,
    read_conversations,
    read_text,
)
from memfit.errors import BadInput

PIECE_CHARS = 1 << 18

_LAST_LINE_START = re.compile(r".*\n(?=\S)", re.DOTALL)
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}


class Piece(NamedTuple):
    """Some text of a document, and whether the document starts and ends with it."""

    text: str
    starts_document: bool
    ends_document: bool


class Source(NamedTuple):
    """A name for messages, and what opens its documents, as often as they are needed."""

    name: str
    documents: Callable[[], Iterator[TextIO]]

    conversations: Callable[[], Iterator[Conversation]] | None = None
    """The same, as messages, where the file holds chat."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents that can be read again and again."""

    sources: tuple[Source, ...]
    num_documents: int
    num_bytes: int
    """Of the text as UTF-8."""

    content_hash: str
    """SHA-256 of the documents and of where they end; file names do not matter."""

    @property
    def is_chat(self) -> bool:
        """Whether the documents are conversations."""
        return self.sources[0].conversations is not None

    def conversations(self) -> Iterator[Conversation]:
        """All documents, in order, where they are conversations."""
        for source in self.sources:
            assert source.conversations is not None
            yield from source.conversations()

    def pieces(self) -> Iterator[Piece]:
        """All documents, in order.

        Raises:
            BadInput: the text is no longer the one that was hashed.
        """
        content = _Content()
        for piece in _read(self.sources):
            content.add(piece)
            yield piece
        if content.hash() != self.content_hash:
            raise BadInput("the text changed while it was read: run again when it is at rest")


def open_corpus(paths: Sequence[str | Path]) -> Corpus:
    """Finds the documents behind ``paths`` and reads them once, to hash them.

    Raises:
        BadInput: a path does not exist or cannot be read, or there is no text.
        DamagedFile: a line of jsonl, or a parquet file, cannot be parsed.
        MissingExtra: a parquet file was found and pyarrow is not installed.
    """
    sources = tuple(source for path in paths for source in _find(path))
    _refuse_a_mixture(sources)
    content = _Content()
    for piece in _read(sources):
        content.add(piece)
    if content.num_documents == 0:
        names = ", ".join(str(path) for path in paths)
        raise BadInput(f"there is no text in {names}: all {len(sources)} files are empty")
    return Corpus(
        sources=sources,
        num_documents=content.num_documents,
        num_bytes=content.num_bytes,
        content_hash=content.hash(),
    )


def _refuse_a_mixture(sources: Sequence[Source]) -> None:
    chat = [source.name for source in sources if source.conversations is not None]
    text = [source.name for source in sources if source.conversations is None]
    if chat and text:
        raise BadInput(
            f"{chat[0]} holds chat and {text[0]} text: train on one of them, or write the "
            'conversations as text into a field "text"'
        )


class _Content:
    """Counts and hashes pieces as they pass.  How documents are cut does not change the hash."""

    def __init__(self) -> None:
        self.num_documents = self.num_bytes = 0
        self._sha256 = hashlib.sha256()

    def add(self, piece: Piece) -> None:
        encoded = piece.text.encode()
        self.num_bytes += len(encoded)
        self._sha256.update(encoded)
        if piece.ends_document:
            self.num_documents += 1
            self._sha256.update(b"\xff")  # a byte that UTF-8 never has

    def hash(self) -> str:
        return self._sha256.hexdigest()


def _find(path: str | Path) -> Iterable[Source]:
    try:
        return _find_readable(Path(path))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from error


def _find_readable(path: Path) -> Iterable[Source]:
    if path.is_dir():
        found = [file for file in _walk(path) if file.suffix.lower() in READERS]
        if not found:
            kinds = ", ".join(suffix[1:] for suffix in READERS)
            raise BadInput(f"the folder {path} holds no file that memfit reads ({kinds})")
        return [_file(file) for file in found]
    if path.is_file():
        return [_file(path)]
    if str(path) == "python" and not path.exists():
        return _python()
    raise BadInput(
        f"no such file or folder: {path} (write python for the text that Python itself carries)"
    )


def _file(path: Path) -> Source:
    if holds_chat(path):
        return Source(str(path), partial(read_chat, path), partial(read_conversations, path))
    return Source(str(path), partial(READERS.get(path.suffix.lower(), read_text), path))


def _python() -> Iterable[Source]:
    yield Source("Python's documentation topics", _topics)
    for path in _walk(Path(sysconfig.get_path("stdlib")), without=_NOT_LIBRARY):
        if path.suffix == ".py":
            yield _file(path)


def _topics() -> Iterator[TextIO]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield io.StringIO(topics[name])


def _walk(folder: Path, without: Iterable[str] = ()) -> list[Path]:
    """The files under ``folder``, sorted, without hidden ones and the folders of these names."""

    def refuse(error: OSError) -> NoReturn:
        raise BadInput(f"cannot read {error.filename}: {error.strerror}") from error

    found: list[Path] = []
    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in without]
        found += [Path(parent, name) for name in files if not name.startswith(".")]
    return sorted(found)


def _read(sources: Iterable[Source]) -> Iterator[Piece]:
    for source in sources:
        try:
            for document in source.documents():
                yield from _cut(document)
        except UnicodeDecodeError as error:
            raise BadInput(
                f"{source.name} is not UTF-8 text (byte 0x{error.object[error.start]:02x}): save "
                "it as UTF-8, or leave it out"
            ) from error
        except OSError as error:
            raise BadInput(f"cannot read {source.name}: {error.strerror or error}") from error


def _cut(document: TextIO) -> Iterator[Piece]:
    """Cuts at the start of a line, where our tokenizer never has a token across the cut."""
    text = document.read(PIECE_CHARS)
    starts = True
    while more := document.read(PIECE_CHARS):
        last_line = _LAST_LINE_START.match(text)
        end = last_line.end() if last_line else len(text)
        yield Piece(text[:end], starts, False)
        text = text[end:] + more
        starts = False
    if text:
        yield Piece(text, starts, True)
