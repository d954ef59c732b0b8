"""A RunLog is appended line by line, and must be readable whenever the run was killed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memfit.errors import DamagedFile
from memfit.records.runlog import Note, RunLog, StepRecord, step_line


def step(number: int, **changes: Any) -> StepRecord:
    fields = {
        "step": number,
        "loss": 10.0 - number,
        "learning_rate": 6e-4,
        "grad_norm": 1.0,
        "num_targets": 512,
        "seconds": 0.25,
    }
    return StepRecord(**(fields | changes))


LOG = RunLog(
    job="gpt2",
    recipe={"batch_size": 4},
    predicted_peak_bytes=2**30,
    facts={"torch": "2.13.0"},
    steps=(step(1), step(2, peak_bytes=2**29), step(3, peak_bytes=2**28, eval_loss=3.5)),
)


def test_a_log_killed_at_any_byte_gives_the_steps_written_before(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    LOG.save(path)
    whole = path.read_bytes()
    header = len(LOG.header_line())

    for cut in range(header, len(whole) + 1):
        path.write_bytes(whole[:cut])
        loaded = RunLog.load(path)
        # A line is whole once its brace is there, with or without the line's end.
        num_steps = whole[header:cut].count(b"}")
        assert loaded == RunLog(**{**vars(LOG), "steps": LOG.steps[:num_steps]})


def test_header_and_step_lines_appended_one_by_one_are_the_saved_file(tmp_path: Path) -> None:
    LOG.save(tmp_path / "saved")

    appended = LOG.header_line() + "".join(step_line(record) for record in LOG.steps)

    assert (tmp_path / "saved").read_text() == appended


def test_a_step_that_a_resumed_run_wrote_again_counts_once_and_last(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    again = step(2, loss=4.5)
    path.write_text(LOG.header_line() + "".join(map(step_line, (*LOG.steps, again, step(4)))))

    assert RunLog.load(path).steps == (LOG.steps[0], again, LOG.steps[2], step(4))


def test_tail_of_zeros_that_a_power_cut_leaves_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    LOG.save(path)
    path.write_bytes(path.read_bytes() + b"\0" * 100)

    assert RunLog.load(path) == LOG


@pytest.mark.parametrize(
    "damage",
    ["{", '{"step": 2}', '{"step": "2"}', "[2]", "", "\udcff", "[" * 100_000, '{"step": 0}'],
    ids=["cut", "fields", "type", "list", "blank", "bytes", "deep", "zero"],
)
def test_a_damaged_line_that_is_not_the_last_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "run.jsonl"
    lines = [LOG.header_line(), step_line(step(1)), damage + "\n", step_line(step(3))]
    path.write_bytes("".join(lines).encode(errors="surrogateescape"))

    with pytest.raises(DamagedFile, match=r"run\.jsonl is damaged in line 3: "):
        RunLog.load(path)


def test_the_peak_of_a_run_is_the_highest_of_its_measured_steps() -> None:
    assert LOG.peak_bytes == 2**29
    assert RunLog(job="gpt2", steps=(step(1),)).peak_bytes is None


def test_a_line_end_within_a_name_does_not_split_the_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    odd = RunLog(job="a\nb\u2028c\x0cd", steps=(step(1),))

    odd.save(path)

    assert RunLog.load(path) == odd


def test_a_loss_that_is_no_number_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    RunLog(job="diverged", steps=(step(1, loss=float("nan")),)).save(path)

    (loaded,) = RunLog.load(path).steps

    assert loaded.loss != loaded.loss


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_what_json_has_no_number_for_is_null_and_comes_back_as_unknown(
    tmp_path: Path, number: float
) -> None:
    """The norm of fp16 gradients that overflowed is one, in a step that is skipped."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    path = tmp_path / "run.jsonl"
    skipped = step(2, loss=number, grad_norm=number, eval_loss=number, skipped=True, loss_scale=0.5)
    RunLog(job="gpt2", steps=(step(1), skipped)).save(path)

    line = json.loads(path.read_text().splitlines()[-1], parse_constant=refuse)
    _, loaded = RunLog.load(path).steps

    assert (line["loss"], line["grad_norm"], line["eval_loss"]) == (None, None, None)
    assert loaded.loss != loaded.loss
    assert replace(loaded, loss=0.0) == step(
        2, loss=0.0, grad_norm=None, eval_loss=None, skipped=True, loss_scale=0.5
    )


def test_a_log_in_which_infinity_was_written_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    former = step_line(step(1)).replace('"grad_norm": 1.0', '"grad_norm": Infinity')
    path.write_text(RunLog(job="gpt2").header_line() + former)

    (loaded,) = RunLog.load(path).steps

    assert loaded.grad_norm == float("inf")


def test_steps_are_counted_from_1() -> None:
    with pytest.raises(ValueError, match="steps are counted from 1, not 0"):
        step(0)


def test_every_line_is_one_json_object(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    LOG.save(path)

    first, *rest = [json.loads(line) for line in path.read_text().splitlines()]

    assert (first["memfit"], first["version"], first["job"]) == ("runlog", 1, "gpt2")
    assert [line["step"] for line in rest] == [1, 2, 3]


def test_notes_are_kept_beside_the_steps_in_the_order_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    notes = (
        Note(step=2, kind="out-of-memory", text="memory ran out with 4 samples at a time"),
        Note(step=2, kind="cache", text="2.0 GiB were given back"),
        Note(step=3, kind="leak", text="1.0 MiB more each step"),
    )
    log = RunLog(job="gpt2", steps=LOG.steps, notes=notes)

    log.save(path)

    assert RunLog.load(path) == log
    lines = path.read_text().splitlines()
    assert [("text" in line, json.loads(line)["step"]) for line in lines[1:]] == [
        (False, 1),
        (True, 2),
        (True, 2),
        (False, 2),
        (True, 3),
        (False, 3),
    ]


def test_a_log_without_the_newer_fields_is_read_with_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    old = (
        '{"step": 1, "loss": 9.0, "learning_rate": 0.1, "grad_norm": null, "num_targets": 8, '
        '"seconds": 0.5, "live_bytes": 4, "peak_bytes": 5, "resident_bytes": 6, "eval_loss": null}'
    )
    path.write_text(RunLog(job="gpt2").header_line() + old + "\n")

    (loaded,) = RunLog.load(path).steps

    assert (loaded.batch_size, loaded.seq_len, loaded.loss_scale) == (None, None, None)
    assert (loaded.num_ooms, loaded.skipped) == (0, False)


def test_a_run_counts_the_ooms_of_its_steps() -> None:
    assert (
        RunLog(job="gpt2", steps=(step(1, num_ooms=2), step(2), step(3, num_ooms=1))).num_ooms == 3
    )


def test_a_note_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="a note is one of out-of-memory, leak, "):
        Note(step=1, kind="oops", text="")
