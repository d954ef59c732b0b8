"""A state's folder is there as a whole or not at all, whatever happens while it is written."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from memfit.trainer.state_folders import filling, keep_last, newest_first, step_folder


class Killed(BaseException):
    """Stands for SIGKILL."""


def write(folder: Path, step: int, text: str = "whole") -> Path:
    place = step_folder(folder, step)
    with filling(place) as temporary:
        for name in "abc":
            (temporary / name).write_text(f"{text} {step}")
    return place


def contents(folder: Path) -> dict[str, list[str]]:
    """The texts in each folder, hidden ones too."""
    return {
        path.name: [file.read_text() for file in sorted(path.iterdir())]
        for path in sorted(folder.iterdir())
    }


def states(folder: Path) -> dict[str, list[str]]:
    """The texts in each folder that passes for a state."""
    return {name: texts for name, texts in contents(folder).items() if not name.startswith(".")}


def whole(*steps: int, text: str = "whole") -> dict[str, list[str]]:
    return {f"step-{step:08d}": [f"{text} {step}"] * 3 for step in steps}


def fail_from(monkeypatch: pytest.MonkeyPatch, call: int, error: BaseException, last: int) -> None:
    """Uses ``call`` to ``last`` of what changes the disk raise ``error`` instead."""
    used = 0

    def failing(function):
        def call_or_fail(*arguments, **settings):
            nonlocal used
            used += 1
            if call <= used <= last:
                raise error
            return function(*arguments, **settings)

        return call_or_fail

    for owner, name in ((os, "rename"), (os, "fsync"), (shutil, "rmtree")):
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))


# The calls: four files and folders are flushed, what is in the place steps aside, the new state
# is renamed, the old one removed, the folder flushed, the temporary folder removed.


@pytest.mark.parametrize(
    ("call", "left"),
    [*((call, whole(1)) for call in range(1, 7)), (7, whole(1, 2)), (9, whole(1, 2))],
)
def test_a_kill_at_any_moment_leaves_the_old_states_or_all_of_the_new_one(
    tmp_path, monkeypatch, call, left
):
    write(tmp_path, 1)
    with monkeypatch.context() as patch:
        fail_from(patch, call, Killed(), last=99)
        with pytest.raises(Killed):
            write(tmp_path, 2)

    assert states(tmp_path) == left

    write(tmp_path, 3)  # and takes away what the killed run left
    assert contents(tmp_path) == {**left, **whole(3)}


@pytest.mark.parametrize("call", range(1, 7))
def test_a_disk_that_is_full_leaves_everything_as_it_was(tmp_path, monkeypatch, call):
    write(tmp_path, 1)
    write(tmp_path, 2, "old")
    before = contents(tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        fail_from(patch, call, full, last=call)
        with pytest.raises(OSError, match="No space left") as refused:
            write(tmp_path, 2, "new")

    assert refused.value is full
    assert contents(tmp_path) == before


def test_a_state_that_is_saved_again_takes_the_place_of_the_old_one(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2, "old")
    write(tmp_path, 2, "new")

    assert contents(tmp_path) == whole(1) | whole(2, text="new")


def test_an_error_while_it_is_filled_leaves_no_trace(tmp_path):
    def fill_half() -> None:
        with filling(step_folder(tmp_path, 1)) as temporary:
            (temporary / "a").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_half()

    assert contents(tmp_path) == {}


def test_states_are_found_from_the_last_step_back_and_nothing_else_is(tmp_path):
    for step in (20, 3, 123_456_789):
        write(tmp_path, step)
    for name in ("step-12", "step-00000012.old", "best", ".step-00000030.12345678.tmp"):
        (tmp_path / name).mkdir()

    assert [path.name for path in newest_first(tmp_path)] == [
        "step-123456789",
        "step-00000020",
        "step-00000003",
    ]
    assert newest_first(tmp_path / "not there") == []


def test_the_last_ones_are_kept_and_those_of_a_history_that_was_left_are_not(tmp_path):
    for step in (1, 2, 3, 4, 9):
        write(tmp_path, step)

    keep_last(3, step_folder(tmp_path, 4))

    assert contents(tmp_path) == whole(2, 3, 4)


def test_a_removal_that_is_cut_off_leaves_no_half_state(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        write(tmp_path, step)

    def remove_half(folder: Path, **_: object) -> None:
        (folder / "a").unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", remove_half)
        with pytest.raises(Killed):
            keep_last(1, step_folder(tmp_path, 3))

    assert states(tmp_path) == whole(1, 3)
