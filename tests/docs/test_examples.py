"""Every example on the pages runs, in the order it is read, and what is shown was really said.

A ``console`` block is a session: ``$`` starts a command, below it stands what the command says.  A
``python`` block is run in one namespace a page, or is written to a file when its first line is
``# file: NAME``; a ``text`` block after it shows what it prints.  ``<!-- not run: why -->`` above a
block leaves it out; its commands must still be ones that memfit understands.

Shown numbers depend on the machine and the day, so it is the words that are compared.
"""

import contextlib
import gc
import io
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import typer

from memfit.cli import main

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs" / "cli.md"
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")} - {GENERATED})

_BLOCK = re.compile(r"(?:<!-- not run: (.+?) -->\n\n?)?^```(\w+)\n(.*?)^```$", re.M | re.S)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.M)
_WORD = re.compile(r"[A-Za-z_][\w:]+")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    why_not_run: str | None

    def commands(self) -> list[tuple[str, str]]:
        """(command, what is shown of its output) of a console session."""
        found = _COMMAND.findall(self.text)
        return [(command.replace("\\\n", ""), shown) for command, shown in found]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[2], match[3], text.count("\n", 0, match.start(3)) + 1, match[1])
        for match in _BLOCK.finditer(text)
    ]


def is_run(block: Block) -> bool:
    return block.language in ("console", "python") and block.why_not_run is None


class Reader:
    """Somebody who types what a page says, in a folder of their own."""

    def __init__(self) -> None:
        self.said = ""
        self.exit_code = 0
        self.names: dict[str, Any] = {"__name__": "page"}

    def follow(self, page: Path) -> None:
        for block in blocks_of(page):
            place = f"{page.name}:{block.line}"
            if block.language == "console" and is_run(block):
                for command, shown in block.commands():
                    self.type(command)
                    self.compare(shown, f"{place}: {command}")
                assert self.exit_code == 0, f"{place}: exit code {self.exit_code}\n{self.said}"
            elif block.language == "python" and is_run(block):
                self.run_python(block, place)
            elif block.language == "text":
                self.compare(block.text, place)

    def type(self, command: str) -> None:
        if command.startswith("memfit "):
            assert self.exit_code == 0, f"before {command}: {self.exit_code}\n{self.said}"
            self.exit_code, self.said = memfit(shlex.split(command)[1:])
        else:
            command = command.replace("$?", str(self.exit_code))
            done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
            self.exit_code, self.said = done.returncode, done.stdout + done.stderr

    def run_python(self, block: Block, place: str) -> None:
        file = re.match(r"# file: (\S+)\n", block.text)
        if file is not None:
            Path(file[1]).write_text(block.text, encoding="utf-8")
            return
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("\n" * (block.line - 1) + block.text, place, "exec"), self.names)
        self.said = out.getvalue()

    def compare(self, shown: str, place: str) -> None:
        said = set(_WORD.findall(self.said))
        missing = [word for word in _WORD.findall(shown) if word not in said]
        assert not missing, f"{place}: {missing} is not in what was said:\n{self.said}"


def memfit(arguments: list[str]) -> tuple[int, str]:
    """Runs the command line in this process: most of a process's time is importing torch."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(sys, "argv", ["memfit", *arguments])
        with contextlib.redirect_stderr(out):
            try:
                main.run()
                code: Any = 0
            except SystemExit as exit_:
                code = exit_.code
    gc.unfreeze()
    gc.enable()
    return int(code or 0), out.getvalue()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(map(is_run, blocks_of(page)))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_example_of_a_page_runs_and_says_what_is_shown(
    page: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMFIT_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    if page == ROOT / "README.md":
        (tmp_path / "my-texts").mkdir()
        (tmp_path / "my-texts" / "notes.txt").write_text("\n\n".join(topics.values()))

    Reader().follow(page)


def test_the_readme_and_the_tutorial_have_examples_that_run() -> None:
    num_run = {page: sum(map(is_run, blocks_of(page))) for page in PAGES}

    assert num_run[ROOT / "README.md"] >= 3
    assert num_run[ROOT / "docs" / "tutorial.md"] >= 10


@pytest.mark.parametrize(
    "command",
    [
        command
        for page in PAGES
        for block in blocks_of(page)
        if block.why_not_run
        for command, _ in block.commands()
        if command.startswith("memfit ")
    ],
)
def test_a_command_that_is_not_run_is_one_that_memfit_understands(command: str) -> None:
    group = typer.main.get_command(main.app)
    verb, *arguments = shlex.split(command)[1:]

    found = group.commands[verb].make_context(verb, arguments)

    assert found.params


@pytest.mark.parametrize(
    ("shown", "is_true"),
    [
        ("Fits: 10.0 MiB of 20 GiB\n  Loss  3 %\n", True),
        ("Fits: 99.9 MiB\n...\n", True),
        ("Does not fit\n", False),
    ],
)
def test_what_is_shown_is_compared_by_its_words(shown: str, is_true: bool) -> None:
    reader = Reader()
    reader.said = "Fits: 11.5 MiB of 23.54 GiB, 23.40 GiB to spare\n  Loss  1.0 MiB  9 %\n"

    if is_true:
        reader.compare(shown, "page")
    else:
        with pytest.raises(AssertionError, match="Does"):
            reader.compare(shown, "page")


def test_a_session_is_cut_at_its_prompts(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    session = "```console\n$ one \\\n    two\nsaid\nmore\n$ three\n```\n"
    page.write_text(f"<!-- not run: takes minutes -->\n{session}```python\nx = 1\n```\n")

    typed, code = blocks_of(page)

    assert typed.commands() == [("one     two", "said\nmore\n"), ("three", "")]
    assert (typed.why_not_run, typed.line) == ("takes minutes", 3)
    assert (code.why_not_run, code.text, code.line) == (None, "x = 1\n", 10)
