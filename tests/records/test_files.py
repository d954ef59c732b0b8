"""A file is written as a whole or not at all, and never over another one unasked."""

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from memfit.errors import BadInput
from memfit.records import files
from memfit.records.files import decode_column, encode_column, replacing, write_text


def raising(code: int) -> Any:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("old", [None, "old"], ids=["new file", "over an old file"])
@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("open", errno.EROFS),  # a read-only folder
        ("os.fsync", errno.ENOSPC),  # a full disk, found out late
        ("os.replace", errno.EACCES),
    ],
)
def test_a_write_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, old: str | None
) -> None:
    path = tmp_path / "plan.json"
    if old is not None:
        path.write_text(old)
    before = {p.name: p.read_text() for p in tmp_path.iterdir()}
    owner, _, name = call.rpartition(".")
    monkeypatch.setattr(os if owner else files, name, raising(code), raising=bool(owner))

    with pytest.raises(BadInput) as refused:
        write_text(path, "new", force=True)

    monkeypatch.undo()
    assert str(refused.value) == (
        f"cannot write {path}: {os.strerror(code)} (nothing was changed there)"
    )
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == before


def test_a_disk_that_fills_up_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits are a POSIX matter")
    path = tmp_path / "plan.json"
    path.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(BadInput, match=r"cannot write .*: File too large"):
            write_text(path, "x" * 100_000, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("plan.json", "old")]


def test_an_interrupt_leaves_no_trace(tmp_path: Path) -> None:
    def write_half() -> None:
        with replacing(tmp_path / "x", force=False) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()

    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_overwritten_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_text(path, "first")

    with pytest.raises(
        BadInput, match=r"exists: choose another name, or overwrite it with --force"
    ):
        write_text(path, "second")
    assert path.read_text() == "first"

    write_text(path, "second", force=True)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("plan.json", "second")]


@pytest.mark.parametrize("place", ["missing/plan.json", "file/plan.json", "folder", "."])
def test_a_place_that_cannot_hold_the_file_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()

    with pytest.raises(BadInput, match=f"cannot write {place}: "):
        write_text(Path(place), "text", force=True)

    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]


def test_text_that_is_no_unicode_is_still_written(tmp_path: Path) -> None:
    write_text(tmp_path / "page", "caf\udce9")

    assert (tmp_path / "page").read_text() == r"caf\udce9"


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
@given(data=st.data())
def test_a_column_comes_back_value_for_value(dtype: str, data: st.DataObject) -> None:
    column = data.draw(hnp.arrays(dtype, st.integers(0, 50)))

    decoded = decode_column(encode_column(column), dtype)

    assert decoded.dtype == np.dtype(dtype)
    assert np.array_equal(decoded, column)


@pytest.mark.parametrize("length", [-1, 3, 5, 1 << 62, 4.0, "4", None])
def test_a_column_of_another_length_is_refused(length: Any) -> None:
    encoded = encode_column(np.arange(4)) | {"length": length}

    with pytest.raises(ValueError, match="a column"):
        decode_column(encoded, "int64")


def test_a_column_that_would_unpack_to_more_than_it_says_is_not_unpacked() -> None:
    bomb = encode_column(np.zeros(10_000_000, dtype=np.uint8)) | {"length": 10}

    with pytest.raises(ValueError, match="should hold 10 bytes and does not"):
        decode_column(bomb, "uint8")


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="a column is 'int64' where int32 belongs"):
        decode_column(encode_column(np.arange(4)), "int32")
