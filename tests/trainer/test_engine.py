"""A whole run, small: it learns, it needs what was predicted, and it survives what may happen."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tiny_runs import SEQ_LEN, VOCAB_SIZE, deeper_gpt, tiny_gpt, write_text_to_learn

from memfit.data.batches import Batches
from memfit.data.text import TextData, load
from memfit.errors import BadInput, MemfitError
from memfit.models.objectives import image_batch
from memfit.planner.budget import fit_to_budget
from memfit.records.plan import Plan
from memfit.records.recipe import Recipe
from memfit.records.runlog import RunLog, StepRecord
from memfit.records.timeline import Timeline
from memfit.techniques.apply import apply
from memfit.trainer import engine, saved_state
from memfit.trainer.engine import train
from memfit.trainer.options import TrainOptions

RECIPE = Recipe(batch_size=4, accumulate=2, learning_rate=0.01)
OPTIONS = TrainOptions(num_steps=8, eval_every=3, save_every=3)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_to_learn(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def text(text_file: Path) -> TextData:
    return load([text_file], vocab_size=VOCAB_SIZE, seq_len=SEQ_LEN)


@pytest.fixture(scope="module")
def straight(text: TextData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of all steps that nothing befell."""
    out = tmp_path_factory.mktemp("straight") / "run"
    train(tiny_gpt(), RECIPE, text, out, options=OPTIONS)
    return out


def results(out: Path) -> dict[str, Any]:
    """What a run came to: weights, optimizer and log, without times and measurements."""
    state = saved_state.newest_first(out / "state")[0]
    found: dict[str, Any] = {"step": state.name}
    for name in ("model", "optimizer"):
        with safe_open(state / f"{name}.safetensors", "np") as file:
            found |= {key: file.get_tensor(key).tobytes() for key in file.offset_keys()}
    log = RunLog.load(out / "run.jsonl")
    changing = {"seconds": 0.0, "live_bytes": None, "peak_bytes": None, "resident_bytes": None}
    return found | {"log": [replace(record, **changing) for record in log.steps]}


def interrupt_after(step: int) -> Callable[[StepRecord], None]:
    """Sends this process a Ctrl-C when the step is logged."""

    def on_step(record: StepRecord) -> None:
        if record.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return on_step


# Bit for bit


@pytest.mark.parametrize("step", [2, 3, 4, 7])
def test_a_run_that_was_interrupted_and_resumed_is_the_straight_run(text, straight, tmp_path, step):
    notes: list[str] = []
    settings = {"options": OPTIONS, "on_note": notes.append}
    cut = train(tiny_gpt(), RECIPE, text, tmp_path, on_step=interrupt_after(step), **settings)

    whole = train(tiny_gpt(), RECIPE, text, tmp_path, resume=True, **settings)

    assert len(cut.steps) == step
    assert [record.step for record in whole.steps] == list(range(1, 9))
    assert notes == [
        f"interrupted: step {step} is saved, go on from it with --resume",
        f"resumed after step {step}",
    ]
    assert results(tmp_path) == results(straight)


class Killed(BaseException):
    """The end of a run that had no time to save anything."""


def kill_after(step: int) -> Callable[[StepRecord], None]:
    def on_step(record: StepRecord) -> None:
        if record.step == step:
            raise Killed

    return on_step


def test_steps_after_the_last_saved_state_are_taken_again(text, straight, tmp_path):
    with pytest.raises(Killed):
        train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS, on_step=kill_after(6))
    assert len(RunLog.load(tmp_path / "run.jsonl").steps) == 6  # the state is that of step 3

    settings = {"options": OPTIONS, "resume": True}
    log = train(tiny_gpt(), RECIPE, text, tmp_path, on_step=interrupt_after(4), **settings)
    assert len(log.steps) == 5  # the first two steps of a session are logged together
    train(tiny_gpt(), RECIPE, text, tmp_path, **settings)

    assert results(tmp_path) == results(straight)


def test_checkpointing_may_change_on_resuming_without_a_trace(text, straight, tmp_path):
    notes: list[str] = []
    train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS, on_step=interrupt_after(4))

    leaner = RECIPE.but(checkpointing="full")
    settings = {"options": OPTIONS, "on_note": notes.append}
    train(tiny_gpt(), leaner, text, tmp_path, resume=True, **settings)

    assert notes == ["resumed after step 4"]
    assert results(tmp_path) == results(straight)


def test_a_run_that_goes_on_for_longer_or_with_other_ends_says_so(text, tmp_path):
    notes: list[str] = []
    recipe = RECIPE.but(sequences="documents")
    train(tiny_gpt(), recipe, text, tmp_path, options=OPTIONS, on_step=interrupt_after(4))

    other = replace(OPTIONS, num_steps=12, truncate="tail")
    settings = {"options": other, "on_note": notes.append}
    train(tiny_gpt(), recipe, text, tmp_path, resume=True, **settings)

    said, resumed = notes
    assert resumed == "resumed after step 4"
    assert said == (
        "from here on the results are not those of one run: truncate was head and is tail, "
        "num_steps was 8 and is 12, warmup_steps was 1 and is 2"
    )


def test_a_run_may_go_on_with_other_micro_batches(text, straight, tmp_path):
    train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS, on_step=interrupt_after(4))

    smaller = RECIPE.but(batch_size=1, accumulate=8)
    log = train(tiny_gpt(), smaller, text, tmp_path, options=OPTIONS, resume=True)

    expected = [record.loss for record in RunLog.load(straight / "run.jsonl").steps]
    assert [record.loss for record in log.steps] == pytest.approx(expected, rel=1e-4)


# What it comes to


def test_the_loss_falls(text, tmp_path):
    options = TrainOptions(num_steps=60, eval_every=20)

    log = train(tiny_gpt(), RECIPE, text, tmp_path, options=options)

    evaluations = [record.eval_loss for record in log.steps if record.eval_loss is not None]
    assert log.steps[0].loss == pytest.approx(np.log(VOCAB_SIZE), abs=0.1)
    assert log.steps[-1].loss < log.steps[0].loss - 1.5
    assert evaluations[0] > evaluations[1] > evaluations[2]
    assert evaluations[2] == pytest.approx(log.steps[-1].loss, abs=0.5)


def test_the_log_is_whole(straight):
    log = RunLog.load(straight / "run.jsonl")

    assert (log.job, log.recipe, log.budget_bytes) == ("tiny", RECIPE.as_dict(), None)
    assert [record.step for record in log.steps] == list(range(1, 9))
    assert {record.num_targets for record in log.steps} == {8 * SEQ_LEN}
    assert [record.step for record in log.steps if record.eval_loss is not None] == [3, 6, 8]
    assert log.steps[0].learning_rate == RECIPE.peak_learning_rate  # one step of warm-up
    assert log.steps[-1].learning_rate == pytest.approx(RECIPE.peak_learning_rate / 10)
    assert all(record.seconds > 0 and record.grad_norm > 0 for record in log.steps)
    assert all(record.resident_bytes > 10 * log.peak_bytes for record in log.steps)


def test_the_folder_holds_the_last_states_and_what_belongs_to_them(straight, text):
    assert sorted(path.name for path in (straight / "state").iterdir()) == [
        "step-00000006",
        "step-00000008",
    ]
    tokenizer = (straight / "tokenizer.json").read_text()
    assert tokenizer == text.tokenizer_path.read_text()


def test_the_first_step_is_that_of_a_fresh_model_over_the_first_batch(text, straight):
    torch.manual_seed(OPTIONS.seed)
    _, _, step = apply(tiny_gpt(), RECIPE)
    batches = Batches(text.train_tokens, samples_per_step=8, seq_len=SEQ_LEN, seed=OPTIONS.seed)

    outcome = step(batches.batch(0))

    first = RunLog.load(straight / "run.jsonl").steps[0]
    assert (first.loss, first.grad_norm) == (outcome.loss, outcome.grad_norm)


def test_the_held_out_rows_are_the_same_64_for_every_micro_batch(text, tmp_path):
    losses = []
    for batch_size, num_rows in ((1, 100), (3, 100), (12, 100), (12, 64)):
        recipe = RECIPE.but(batch_size=batch_size, accumulate=12 // batch_size)
        held_out = replace(text, eval_tokens=text.train_tokens[: num_rows * SEQ_LEN + 1])
        settings = {"options": TrainOptions(num_steps=1), "force": True}
        log = train(tiny_gpt(), recipe, held_out, tmp_path, **settings)
        losses.append(log.steps[0].eval_loss)

    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)


# Measured beside predicted


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_measured_peak_is_the_predicted_one_to_the_byte(text, tmp_path, checkpointing):
    plan, prediction = fit_to_budget(
        tiny_gpt(),
        RECIPE.but(checkpointing=checkpointing),
        target="tiny",
        budget_bytes=700_000,
        samples_per_step=8,
        keep_checkpointing=True,
    )
    assert 1 <= plan.recipe.batch_size < 8

    log = train(tiny_gpt(), plan, text, tmp_path, options=replace(OPTIONS, num_steps=12))

    assert log.peak_bytes == log.predicted_peak_bytes == prediction.peak.allocated_bytes
    assert log.peak_bytes <= log.budget_bytes == plan.budget_bytes
    assert Plan.load(tmp_path / "plan.json") == plan
    measured = Timeline.load(tmp_path / "measured.timeline")
    same = slice(0, int(np.flatnonzero(measured.steps == 2)[0]))  # evaluations come later here
    assert np.array_equal(measured.deltas()[same], prediction.timeline.deltas()[same])


def test_the_first_steps_and_every_tenth_and_those_that_evaluate_are_measured(text, tmp_path):
    options = TrainOptions(num_steps=12, eval_every=7)

    log = train(tiny_gpt(), RECIPE, text, tmp_path, options=options)

    measured = [record for record in log.steps if record.peak_bytes is not None]
    assert [record.step for record in measured] == [1, 2, 7, 10, 12]
    assert len({record.live_bytes for record in measured[1:]}) == 1  # nothing is left over
    assert all(record.live_bytes < record.peak_bytes for record in measured)
    assert [r.step for r in log.steps if r.live_bytes is not None] == [1, 2, 7, 10, 12]


def test_a_resumed_run_keeps_the_recording_of_its_beginning(text, tmp_path):
    train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS, on_step=interrupt_after(4))
    recorded = (tmp_path / "measured.timeline").read_bytes()

    log = train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS, resume=True)

    assert (tmp_path / "measured.timeline").read_bytes() == recorded
    assert log.steps[4].peak_bytes is not None  # the first steps of each session are measured


# What may happen


def test_a_run_that_is_done_has_nothing_left_to_do(text, straight, tmp_path):
    notes: list[str] = []
    before = results(straight)

    train(
        *(tiny_gpt(), RECIPE, text, straight),
        options=OPTIONS,
        resume=True,
        on_note=notes.append,
    )

    assert notes == ["resumed after step 8", "nothing is left to do: all 8 steps are done"]
    assert results(straight) == before


def test_an_interruption_in_the_last_step_is_just_the_end(text, tmp_path):
    notes: list[str] = []
    settings = {"options": OPTIONS, "on_note": notes.append}

    log = train(tiny_gpt(), RECIPE, text, tmp_path, on_step=interrupt_after(8), **settings)

    assert len(log.steps) == 8
    assert notes == []


def test_a_ctrl_c_right_after_a_step_was_not_saved_saves_the_next_one(text, tmp_path, monkeypatch):
    # The request comes when it was just decided that the step is not to be saved.
    saves = TrainOptions.saves

    def saves_and_interrupts(self: TrainOptions, step: int) -> bool:
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return saves(self, step)

    monkeypatch.setattr(TrainOptions, "saves", saves_and_interrupts)

    log = train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS)

    assert len(log.steps) == 5
    assert (tmp_path / "state" / "step-00000005").is_dir()


def test_a_damaged_newest_state_gives_way_to_the_one_before_and_is_named(text, straight, tmp_path):
    notes: list[str] = []
    train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS)
    weights = tmp_path / "state" / "step-00000008" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    settings = {"options": OPTIONS, "on_note": notes.append}
    train(tiny_gpt(), RECIPE, text, tmp_path, resume=True, **settings)

    assert "step-00000008 cannot be used" in notes[0]
    assert notes[1:] == ["going on from step 6 instead", "resumed after step 6"]
    assert results(tmp_path) == results(straight)


def test_another_model_cannot_go_on_and_nothing_is_lost(text, straight):
    before = results(straight)

    with pytest.raises(BadInput, match=r"cannot go on from .*: of the model's tensors 6 differ"):
        train(deeper_gpt(), RECIPE, text, straight, options=OPTIONS, resume=True)

    assert results(straight) == before


def test_other_text_cannot_go_on_and_the_tokenizer_stays(straight, tmp_path):
    (tmp_path / "other.txt").write_text("never seen before " * 400)
    tokenizer = (straight / "tokenizer.json").read_bytes()

    with pytest.raises(BadInput, match="the hash of data and tokenizer"):
        train(*(tiny_gpt(), RECIPE, tmp_path / "other.txt", straight), options=OPTIONS, resume=True)

    assert (straight / "tokenizer.json").read_bytes() == tokenizer


def test_another_tokenizer_for_the_same_text_cannot_go_on(text_file, text, straight, tmp_path):
    other = tmp_path / "tokenizer.json"
    other.write_text(text.tokenizer_path.read_text() + " ")
    retokenized = load([text_file], vocab_size=VOCAB_SIZE, seq_len=SEQ_LEN, tokenizer=other)

    with pytest.raises(BadInput, match="the hash of data and tokenizer"):
        train(tiny_gpt(), RECIPE, retokenized, straight, options=OPTIONS, resume=True)


def test_a_folder_that_holds_a_run_is_refused(text, straight):
    before = results(straight)

    with pytest.raises(BadInput, match=r"holds a run already: .* --resume, .* --out, .* --force"):
        train(tiny_gpt(), RECIPE, text, straight, options=OPTIONS)

    assert results(straight) == before


def test_with_force_a_run_begins_anew(text, straight, tmp_path):
    train(tiny_gpt(), RECIPE, text, tmp_path, options=replace(OPTIONS, num_steps=20, seed=1))

    train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS, force=True)

    assert results(tmp_path) == results(straight)


def test_with_force_no_state_of_the_former_run_is_left(text, tmp_path):
    train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS)
    settings = {"options": OPTIONS, "on_step": kill_after(1)}
    with pytest.raises(Killed):
        train(tiny_gpt(), RECIPE, text, tmp_path, force=True, **settings)

    with pytest.raises(BadInput, match="there is no saved state"):
        train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS, resume=True)


def test_a_run_that_cannot_begin_leaves_the_former_one_alone(text, straight):
    before, recipe = results(straight), RECIPE.but(checkpointing="blocks:9:0")

    with pytest.raises(BadInput, match=r"asks for 9 \+ 0 blocks"):
        train(tiny_gpt(), recipe, text, straight, force=True)

    assert results(straight) == before


def test_there_must_be_a_run_to_resume(text, tmp_path):
    with pytest.raises(BadInput, match=r"no run in .* to resume: leave out --resume"):
        train(tiny_gpt(), RECIPE, text, tmp_path, resume=True)


def test_a_full_disk_leaves_the_states_before_as_they_were(text, tmp_path, monkeypatch):
    def fill_up(path: Path, tensors: Any) -> None:
        if len(RunLog.load(tmp_path / "run.jsonl").steps) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, tensors)

    write = saved_state.write_tensors
    monkeypatch.setattr(saved_state, "write_tensors", fill_up)

    with pytest.raises(BadInput, match=r"cannot save step 6 in .*: No space left on device"):
        train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS)

    assert [path.name for path in (tmp_path / "state").iterdir()] == ["step-00000003"]
    monkeypatch.undo()
    log = train(tiny_gpt(), RECIPE, text, tmp_path, options=OPTIONS, resume=True)
    assert len(log.steps) == 8


def test_a_disk_that_is_full_for_the_log_is_said(text, tmp_path, monkeypatch):
    def fill_up(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("builtins.open", fill_up)
    folder = engine.RunFolder(tmp_path)
    folder.log.touch()

    with pytest.raises(BadInput, match=r"run.jsonl: No space left on device; make room"):
        folder.append(
            StepRecord(step=1, loss=1, learning_rate=1, grad_norm=1, num_targets=1, seconds=1)
        )


@pytest.mark.parametrize("clip_norm", [1.0, None])
def test_a_run_that_diverges_stops_before_it_saves_what_it_has_become(text, tmp_path, clip_norm):
    recipe = RECIPE.but(learning_rate=1e30, clip_norm=clip_norm)
    options = TrainOptions(num_steps=9, warmup_steps=0, save_every=1)

    with pytest.raises(
        MemfitError, match=r"diverged: the loss of step \d is .*--learning-rate below"
    ):
        train(tiny_gpt(), recipe, text, tmp_path, options=options)


def test_fp16_whose_gradients_never_become_finite_has_diverged(text, tmp_path):
    def finite_loss_endless_gradient(model: Any, batch: Any) -> Any:
        total, num_targets = tiny_gpt().loss(model, batch)
        # Its value is 0, its gradient infinite.
        return total + (total - total.detach()).abs().sqrt(), num_targets

    job = replace(tiny_gpt(), loss=finite_loss_endless_gradient)
    options = TrainOptions(num_steps=60, warmup_steps=0, save_every=60)

    with pytest.raises(MemfitError, match=r"diverged: the loss of step 1[78] is"):
        train(job, RECIPE.but(precision="fp16"), text, tmp_path, options=options)


def test_a_job_without_a_vocabulary_is_refused(text, tmp_path):
    job = replace(
        tiny_gpt(), vocab_size=None, batch=lambda size, _: image_batch((3, 8, 8), 2, size, 1)
    )

    with pytest.raises(BadInput, match="tiny does not train on text"):
        train(job, RECIPE, text, tmp_path)


def test_a_sequence_longer_than_the_data_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "text.txt").write_text("too short")

    with pytest.raises(BadInput, match="write --seq-len"):
        train(tiny_gpt(), RECIPE, tmp_path / "text.txt", tmp_path / "run", seq_len=SEQ_LEN)

    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_is_refused(text, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(BadInput, match=r"cannot write to .*file/run: Not a directory"):
        train(tiny_gpt(), RECIPE, text, tmp_path / "file" / "run", options=OPTIONS)
