"""One function a file format: each yields the documents of a file as open text streams.

A text file is one document; every line of a jsonl file and every row of a parquet file is one,
in its ``text`` field or column.  Leans on pyarrow for parquet only, imported when it is used.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

from memfit.errors import BadInput, DamagedFile, MissingExtra

_ROWS_AT_ONCE = 256


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
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield io.StringIO(_text_of_line(line, f"{path}, line {number}"))


def _text_of_line(line: bytes, where: str) -> str:
    try:
        document = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(f"{where} is not UTF-8: save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{where} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadInput(f'{where} is not an object: write {{"text": "..."}}')
    text = document.get("text")
    if not isinstance(text, str):
        raise _no_text(where, document)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{where} is not text: it holds half of a surrogate pair") from error
    return text


def read_parquet(path: Path) -> Iterator[TextIO]:
    """The column ``text``, row by row; rows without a value are passed over.

    Raises:
        BadInput: there is no such column, or it does not hold strings.
        DamagedFile: the file is not parquet, or is cut short.
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet", f"reading {path}") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if "text" not in file.schema_arrow.names:
                raise _no_text(str(path), file.schema_arrow.names)
            for rows in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=["text"]):
                for text in rows.column(0).to_pylist():
                    if text is None:
                        continue
                    if not isinstance(text, str):
                        raise _no_text(str(path), file.schema_arrow.names)
                    yield io.StringIO(text)
    except pyarrow.ArrowInvalid as error:
        raise DamagedFile(f"{path} cannot be read as parquet: {error}") from error


def _no_text(where: str, found: Iterable[str]) -> BadInput:
    names = sorted(found)
    if "messages" in names:
        return BadInput(
            f'{where} holds chat "messages", which memfit cannot train on yet: write each '
            'conversation as one string into a field "text"'
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
