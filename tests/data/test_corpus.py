import json
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.data import corpus as corpus_module
from memfit.data.corpus import Corpus, open_corpus
from memfit.errors import BadInput, DamagedFile, MissingExtra

TEXT = st.text(max_size=30)  # hypothesis leaves out lone surrogates, as UTF-8 does


def documents(corpus: Corpus) -> list[str]:
    texts, parts = [], []
    for piece in corpus.pieces():
        assert piece.starts_document == (not parts)
        parts.append(piece.text)
        if piece.ends_document:
            texts.append("".join(parts))
            parts = []
    assert not parts
    return texts


def of(texts: list[str]) -> Corpus:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "documents.jsonl")
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return open_corpus([path])


@settings(max_examples=50)
@given(texts=st.lists(TEXT.filter(len), min_size=1), other=st.lists(TEXT.filter(len), min_size=1))
def test_the_hash_is_that_of_the_documents_and_where_they_end(texts, other):
    assert (of(texts).content_hash == of(other).content_hash) == (texts == other)


def test_joining_two_documents_changes_the_hash():
    assert of(["ab", "c"]).content_hash != of(["a", "bc"]).content_hash
    assert of(["ab", "c"]).content_hash != of(["abc"]).content_hash


@settings(max_examples=50)
@given(text=st.text(alphabet="ab \t\n", min_size=1, max_size=200), size=st.integers(1, 20))
def test_pieces_put_together_are_the_document_and_do_not_change_its_hash(text, size):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "document.txt")
        path.write_text(text)
        whole = open_corpus([path])
        with mock.patch.object(corpus_module, "PIECE_CHARS", size):
            assert documents(whole) == [text]
            assert max(len(piece.text) for piece in whole.pieces()) <= 2 * size
            assert open_corpus([path]).content_hash == whole.content_hash


def test_every_format_gives_the_same_documents(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffOne.\r\nTwo.".encode())
    (tmp_path / "b.md").write_text("# Three")
    (tmp_path / "c.jsonl").write_text('{"text": "four", "id": 1}\n\n{"text": "f\\u00fcnf"}')
    table = pyarrow.table({"id": [1, 2, 3], "text": ["six", None, "seven"]})
    pyarrow.parquet.write_table(table, tmp_path / "d.PARQUET")

    found = open_corpus([tmp_path])

    assert documents(found) == ["One.\nTwo.", "# Three", "four", "fünf", "six", "seven"]
    assert (found.num_documents, found.num_bytes) == (6, 33)


def test_a_folder_is_walked_in_sorted_order_without_hidden_and_unknown_files(tmp_path):
    names = ["b/2.txt", "a/x/1.txt", "b/10.txt", ".git/no.txt", "a/.no.txt", "a/no.py", "c.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    assert documents(open_corpus([tmp_path])) == ["a/x/1.txt", "b/10.txt", "b/2.txt", "c.txt"]


def test_a_file_named_directly_is_read_as_text_whatever_its_suffix(tmp_path):
    (tmp_path / "notes.rst").write_text("Title")

    assert documents(open_corpus([tmp_path / "notes.rst"])) == ["Title"]


def test_empty_documents_are_left_out(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.jsonl").write_text('{"text": ""}\n{"text": "b"}\n')

    assert documents(open_corpus([tmp_path])) == ["b"]


def test_python_stands_for_over_ten_megabytes_that_are_the_same_each_time():
    once, again = open_corpus(["python"]), open_corpus(["python"])

    assert once.content_hash == again.content_hash
    assert once.num_bytes > 10_000_000 and once.num_documents > 500


def test_a_file_called_python_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("python").write_text("a snake")

    assert documents(open_corpus(["python"])) == ["a snake"]


def test_finding_and_encoding_text_imports_neither_torch_nor_pyarrow():
    code = (
        "import sys, memfit.data.text as t; t.open_corpus(['python']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'pyarrow', 'tokenizers')))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": ', r"a\.jsonl, line 2 is not JSON"),
        ("a.jsonl", b"[" * 100_000, r"line 1 is not JSON"),
        ("a.jsonl", b'\n"x"', r"line 2 is not an object: write"),
        ("a.jsonl", b'{"content": "x", "id": 1}', r'no string field "text", only content, id'),
        ("a.jsonl", b'{"text": null}', r'no string field "text", only text'),
        ("a.jsonl", b'{"text": "x"}\n{"messages": []}', r'line 2 holds chat "messages" where text'),
        ("a.jsonl", b'{"messages": []}', r'line 1 has an empty list of "messages"'),
        ("a.jsonl", b'{"text": "\xff"}', r"line 1 is not UTF-8"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"line 1 is not text: it holds half"),
        ("a.txt", b"abc\xff", r"a\.txt is not UTF-8 text \(byte 0xff\)"),
        ("a.parquet", b"PAR1 is not enough", r"a\.parquet cannot be read as parquet"),
        ("a.txt", b"", r"there is no text in .*: all 1 files are empty"),
        ("a.zip", b"", r"holds no file that memfit reads \(txt, md, jsonl, parquet\)"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(BadInput, match=message):
        open_corpus([tmp_path])


def test_a_parquet_file_cut_short_is_damaged(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a" * 1000] * 100}), path)
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(DamagedFile, match="cannot be read as parquet"):
        open_corpus([path])


def test_a_parquet_file_without_strings_in_text_is_refused(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"body": ["a"]}), tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"text": [1]}), tmp_path / "b.parquet")

    with pytest.raises(BadInput, match=r'"text", only body'):
        open_corpus([tmp_path / "a.parquet"])
    with pytest.raises(BadInput, match=r'no string field "text"'):
        open_corpus([tmp_path / "b.parquet"])


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingExtra, match=r"pip install 'memfit\[parquet\]'"):
        open_corpus([tmp_path])


@pytest.mark.parametrize("path", ["missing.txt", "x" * 5000, "/dev/null"])
def test_a_path_that_is_no_file_is_refused(path):
    with pytest.raises(BadInput, match=r"no such file or folder|cannot read"):
        open_corpus([path])


def test_text_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    found = open_corpus([path])
    path.write_text("after!")

    with pytest.raises(BadInput, match="changed while it was read"):
        documents(found)
