"""A target on the command line becomes a job, or one clear sentence."""

import json
import sys
from pathlib import Path

import pytest

from memfit.errors import BadInput, UnknownName
from memfit.models.target import resolve

JOB = """
from memfit.job import Job
from neighbour import SEQ_LEN

def make_job():
    return Job(model=print, batch=print, loss=print, name="made", seq_len=SEQ_LEN)

job = Job(model=print, batch=print, loss=print, name="written", vocab_size=100)
number = 5
"""

CONFIG = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 10}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python file with jobs that imports a neighbour, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    Path("neighbour.py").write_text("SEQ_LEN = 77")
    path = tmp_path / "jobs.py"
    path.write_text(JOB)
    return path


def test_a_preset_is_a_target() -> None:
    assert resolve("nanochat-d2", vocab_size=64).vocab_size == 64


def test_a_configuration_is_a_target_by_its_file_or_its_folder(file: Path) -> None:
    folder = file.parent / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))

    targets = ["small", "small/", str(folder / "config.json")]

    assert [resolve(target, vocab_size=12).vocab_size for target in targets] == [12, 12, 12]


def test_a_preset_wins_over_a_folder_of_its_name_and_a_path_does_not(file: Path) -> None:
    folder = file.parent / "gpt2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))

    assert resolve("gpt2").vocab_size == 50_257
    assert resolve("./gpt2").vocab_size == 10


def test_a_file_gives_a_job_or_a_function_that_makes_one(file: Path) -> None:
    assert resolve("jobs.py:job").name == "written"
    assert resolve(f"{file}:make_job").seq_len == 77


def test_running_a_file_writes_nothing_beside_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file.write_text("from memfit.job import Job\nx = Job(model=print, batch=print, loss=print)")

    resolve("jobs.py:x")

    assert {path.name for path in file.parent.iterdir()} == {"jobs.py", "neighbour.py"}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("other.py:job", "there is no file other.py"),
        ("jobs.py", r"jobs\.py is a Python file: say which job in it, as jobs\.py:NAME"),
        ("jobs.py:jib", r"has nothing called 'jib' \(nearest: job; jobs: job\)"),
        ("jobs.py:", r"has nothing called '' \(jobs: job\)"),
        ("jobs.py:number", r"jobs\.py:number is not a memfit\.Job .* type int\)"),
        ("jobs.py:print", "has nothing called 'print'"),
        ("no/such/config.json", "cannot read no/such/config.json: No such file"),
        ("no/such/folder", "cannot read no/such/folder: No such file"),
    ],
)
def test_a_target_that_is_not_there_is_refused(file: Path, target: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        resolve(target)


def test_a_name_that_is_neither_offers_the_nearest_presets(file: Path) -> None:
    with pytest.raises(UnknownName, match="nearest: bert-large, bert-base"):
        resolve("bert-larg")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise KeyError('width')", r"jobs\.py, line 2, failed: KeyError: 'width'"),
        ("import neighbour\n\n1 / 0", r"line 3, failed: ZeroDivisionError: division by zero"),
        ("def job():\n    return undefined", "line 2, failed: NameError: .*'undefined'"),
        ("def job(size):\n    pass", "failed: TypeError: .*missing 1 required .*'size'"),
        ("job = (", "line 1, failed: SyntaxError: '\\(' was never closed"),
        ("raise SystemExit(3)", "line 1, failed: SystemExit: 3"),
        ("from memfit.job import Job\nJob(model=1, batch=2, loss=3)", "line 2, failed: BadInput"),
        ("import no_such_module", "line 1, failed: ModuleNotFoundError: .*no_such_module"),
    ],
)
def test_an_error_in_the_users_file_says_where_and_what(
    file: Path, text: str, message: str
) -> None:
    file.write_text(text)

    with pytest.raises(BadInput, match=message):
        resolve("jobs.py:job")


def test_a_file_without_jobs_says_only_what_it_lacks(file: Path) -> None:
    file.write_text("x = 1")

    with pytest.raises(BadInput, match=r"jobs\.py has nothing called 'job'$"):
        resolve("jobs.py:job")


def test_a_written_job_must_take_the_tokenizers_ids(file: Path) -> None:
    assert resolve("jobs.py:job", vocab_size=100).vocab_size == 100
    with pytest.raises(BadInput, match="token ids below 100, but the tokenizer has 101"):
        resolve("jobs.py:job", vocab_size=101)
