"""One function a file format: each yields the documents of a file as open text streams.

A text file is one document; every line of a jsonl file and every row of a parquet file is one,
in its ``text`` field or column.  Both may also hold chat, a conversation a line or row:
``{"messages": [{"role": "user", "content": "..."}, ...]}``.  Leans on pyarrow for parquet only,
imported when it is used.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from memfit.errors import BadInput, DamagedFile, MissingExtra

_ROWS_AT_ONCE = 256

ROLES = ("system", "user", "assistant", "tool")
"""Who can speak in a conversation."""


class Conversation(NamedTuple):
    """Messages in order, and the file and line, or row, that they are from."""

    where: str
    messages: list[dict[str, Any]]
    """Each has a ``role`` of ``ROLES`` and a ``content``, a string, and what else stood there."""


def read_text(path: Path) -> Iterator[TextIO]:
    """The file itself, without a byte order mark and with ``\\n`` at line ends."""
    with open(path, encoding="utf-8-sig") as stream:
        yield stream


def read_jsonl(path: Path) -> Iterator[TextIO]:
    """The ``text`` of each line; empty lines are passed over.

    Raises:
        BadInput: a line has no text.
        DamagedFile: a line is not JSON.
    """
    for where, document in _objects(path):
        yield io.StringIO(_text_of(document, where))


def holds_chat(path: Path) -> bool:
    """Whether the first line of a jsonl file, or a parquet file, has messages, and no text.

    Raises:
        MissingExtra: it is a parquet file and pyarrow is not installed.
    """
    try:
        if _is_parquet(path):
            with _opened(path) as file:
                names = set(file.schema_arrow.names)
        elif path.suffix.lower() == ".jsonl":
            names = set(next(_objects(path))[1])
        else:
            return False
    except (StopIteration, BadInput):
        return False
    return "messages" in names and "text" not in names


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversation of each line of a jsonl file, or row of a parquet file; empty ones, and rows
    without a value, are passed over.

    Raises:
        BadInput: a line or row has no messages, or one of them is not as it should be.
        DamagedFile: a line is not JSON, or the file is not parquet or is cut short.
        MissingExtra: it is a parquet file and pyarrow is not installed.
    """
    for where, document in _rows(path) if _is_parquet(path) else _objects(path):
        messages = document.get("messages")
        if not isinstance(messages, list) or not messages:
            raise _no_messages(where, document)
        for number, message in enumerate(messages, start=1):
            _check_message(message, f"{where}, message {number}")
        yield Conversation(where, messages)


def read_chat(path: Path) -> Iterator[TextIO]:
    """Each conversation as text, for a tokenizer to learn from.

    Raises:
        BadInput, DamagedFile, MissingExtra: as :func:`read_conversations`.
    """
    for _, messages in read_conversations(path):
        yield io.StringIO("".join(f"<|{m['role']}|>\n{m['content']}\n" for m in messages))


def _no_messages(where: str, document: dict[str, Any]) -> BadInput:
    wanted = '{"messages": [{"role": "user", "content": "..."}, ...]}'
    messages = document.get("messages")
    if isinstance(messages, list):
        return BadInput(f'{where} has an empty list of "messages": leave it out, or write {wanted}')
    if "messages" in document:
        return BadInput(
            f'{where} has "messages" of type {type(messages).__name__}, not a list: write {wanted}'
        )
    found = ", ".join(sorted(document)) or "nothing"
    return BadInput(
        f'{where} has no list of "messages", only {found}: write {wanted}, and text into a file of '
        "its own"
    )


def _check_message(message: object, where: str) -> None:
    if not isinstance(message, dict):
        raise BadInput(f'{where} is not an object: write {{"role": ..., "content": ...}}')
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise BadInput(f"{where} has the role {role!r}: write one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise BadInput(
            f"{where} has content of type {type(content).__name__}: write a string, an empty one "
            "where nothing is said"
        )
    _check_is_text(content, where)


def _objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """``(file and line, object)`` of each line that is not empty."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, _object_of(line, where)


def _object_of(line: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is not UTF-8: save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{where} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadInput(f'{where} is not an object: write {{"text": "..."}}')
    return document


def _text_of(document: dict[str, Any], where: str) -> str:
    text = document.get("text")
    if not isinstance(text, str):
        raise _no_text(where, document)
    _check_is_text(text, where)
    return text


def _check_is_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{where} is not text: it holds half of a surrogate pair") from error


def read_parquet(path: Path) -> Iterator[TextIO]:
    """The column ``text``, row by row; rows without a value are passed over.

    Raises:
        BadInput: there is no such column, or it does not hold strings.
        DamagedFile: the file is not parquet, or is cut short.
        MissingExtra: pyarrow is not installed.
    """
    with _opened(path) as file:
        names = file.schema_arrow.names
        if "text" not in names:
            raise _no_text(str(path), names)
        for text in _values(file, "text"):
            if text is None:
                continue
            if not isinstance(text, str):
                raise _no_text(str(path), names)
            yield io.StringIO(text)


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """``(file and row, messages)`` of each row that has some, as a line of jsonl would give them.

    A column of structs has every field in every row, with null where there is none: those are left
    out, as a chat template asks whether a message has a field.
    """
    with _opened(path) as file:
        for number, messages in enumerate(_values(file, "messages"), start=1):
            if messages is not None:
                yield f"{path}, row {number}", {"messages": _without_nulls(messages)}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A pyarrow.parquet.ParquetFile.

    Raises:
        DamagedFile: it is not parquet, or is cut short.
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet", f"reading {path}") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except pyarrow.ArrowInvalid as error:
        raise DamagedFile(f"{path} cannot be read as parquet: {error}") from error


def _values(file: Any, column: str) -> Iterator[Any]:
    """The column's values, row by row, some rows in memory at a time."""
    for rows in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column]):
        yield from rows.column(0).to_pylist()


def _no_text(where: str, found: Iterable[str]) -> BadInput:
    names = sorted(found)
    if "messages" in names:
        return BadInput(
            f'{where} holds chat "messages" where text is expected: put conversations into '
            "files of their own, and train on them alone"
        )
    return BadInput(
        f'{where} has no string field "text", only {", ".join(names) or "nothing"}: rename the '
        'field that holds the text to "text"'
    )


READERS: dict[str, Callable[[Path], Iterator[TextIO]]] = {
    ".txt": read_text,
    ".md": read_text,
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
}
"""By suffix, in small letters."""
