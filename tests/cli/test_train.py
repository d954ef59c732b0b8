"""``memfit train``, typed: it chooses, it trains, it can be stopped, and it says what is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Said, memfit
from tiny_runs import DEEPER, SEQ_LEN, SLOW, TARGET, write_text_to_learn

from memfit.cli.train import step_shape
from memfit.data import text as text_module
from memfit.errors import BadInput
from memfit.records.plan import Plan
from memfit.records.recipe import Recipe
from memfit.records.runlog import RunLog
from memfit.units import parse_size


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_to_learn(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture
def train(text: Path, tmp_path: Path) -> Any:
    """Types ``memfit train`` with a few steps, text and a folder."""

    def run(target: object = TARGET, *options: object, out: object = tmp_path / "run") -> Said:
        return memfit("train", target, "--data", text, "--steps", 6, "--out", out, *options)

    return run


def losses(out: Path) -> list[tuple[int, float, float | None]]:
    return [(s.step, s.loss, s.eval_loss) for s in RunLog.load(out / "run.jsonl").steps]


def weights(out: Path) -> bytes:
    newest = max((out / "state").iterdir())
    return (newest / "model.safetensors").read_bytes()


# A run


def test_a_run_inside_a_budget_is_told_as_one_json_object(train, tmp_path):
    said = train(TARGET, "--tokens-per-step", 8 * SEQ_LEN, "--memory", "700KB", "--json")

    found = json.loads(said.out)
    out = tmp_path / "run"
    log = RunLog.load(out / "run.jsonl")
    assert said.exit_code == 0
    assert found["measured_peak_bytes"] == found["predicted_peak_bytes"] <= 700_000
    assert found["resident_peak_bytes"] > found["measured_peak_bytes"]
    assert (found["steps"], found["out"]) == (6, str(out))
    assert (found["first_loss"], found["last_loss"]) == (log.steps[0].loss, log.steps[-1].loss)
    assert found["eval_loss"] == log.steps[-1].eval_loss
    assert 1 <= found["plan"]["recipe"]["batch_size"] < 8
    assert json.loads(json.dumps(Plan.load(out / "plan.json").as_dict())) == found["plan"]
    assert {path.name for path in out.iterdir()} == {
        *("run.jsonl", "plan.json", "tokenizer.json", "state"),
        *("measured.timeline", "predicted.timeline"),
    }


@pytest.mark.parametrize(
    "options",
    [
        ["--steps", 1],
        ["--steps", 4, "--seq-schedule", "8:1,16"],
        ["--steps", 2, "--seq-schedule", "4:1,8:2,16", "--precision", "fp16"],
        # Host buffers of masks stay, of each length: they come in a step that has to be measured.
        [
            *("--steps", 7, "--seq-schedule", "4:2,8:5,16", "--sequences", "packed"),
            *("--offload", "activations"),
        ],
    ],
    ids=["one step", "a stage of one step", "stages not reached", "what a stage leaves"],
)
def test_a_short_run_or_stage_takes_what_is_predicted_to_the_byte(train, options):
    found = json.loads(train(TARGET, "--batch-size", 2, *options, "--json").out)

    assert found["predicted_peak_bytes"] == found["measured_peak_bytes"]


def test_people_are_told_what_was_chosen_and_what_it_came_to(train, text, tmp_path):
    said = train(TARGET, "--batch-size", 4)

    for part in (
        f"reading {text}\n",
        "1 document, ",
        "predicted 4 × 1 samples, checkpointing none: ",
        "the micro-batch is as asked",
        "step 1/6  loss 5.",
        "tokens/s",
        "process ",
        "step 6: held-out loss ",
        f"Wrote {tmp_path / 'run'}\n",
    ):
        assert part in said.err
    assert said.out.startswith("Trained tiny\n")
    assert "equal to the byte" in said.out


def test_a_probe_keeps_the_step_of_an_optimizer_in_backward_whole_or_says_why_not(train):
    options = (TARGET, "--batch-size", 4, "--optimizer-in-backward", "--clip-norm", "none")
    found = json.loads(train(*options, "--probe", "--json").out)
    peak = found["predicted_peak_bytes"]
    assert found["plan"]["recipe"]["batch_size"] == 4

    said = train(*options, "--probe", "--memory", peak, "--force")

    assert said.exit_code == 3
    assert "the whole step, 4 at a time, takes" in said.err
    assert "accumulation" not in said.err


def test_a_page_shows_the_prediction_and_the_measurement(train, tmp_path):
    page = tmp_path / "pages" / "run.html"

    said = train(TARGET, "--batch-size", 4, "--html", page)

    assert f"Wrote {page}\n" in said.err
    assert "equal to the byte" in page.read_text()


def test_a_plan_trains_the_same_recipe_again(train, tmp_path):
    options = ("--tokens-per-step", 8 * SEQ_LEN, "--batch-size", 2, "--checkpointing", "every:2")
    train(TARGET, *options, "--optimizer", "sgd", "--memory", "1GiB", out=tmp_path / "first")

    said = train(tmp_path / "first" / "plan.json", "--json", out=tmp_path / "second")

    first, second = (Plan.load(tmp_path / name / "plan.json") for name in ("first", "second"))
    assert said.exit_code == 0
    assert first.recipe.optimizer == "sgd"
    assert (second.target, second.recipe) == (first.target, first.recipe)
    assert (second.seq_len, second.budget_bytes) == (first.seq_len, first.budget_bytes)
    assert losses(tmp_path / "second") == losses(tmp_path / "first")
    assert weights(tmp_path / "second") == weights(tmp_path / "first")


def test_a_plan_keeps_the_vocabulary_that_was_asked_for(train, tmp_path):
    options = ("--batch-size", 2, "--vocab-size", 300)
    train("nanochat-d1", *options, "--seq-len", SEQ_LEN, out=tmp_path / "first")

    said = train(tmp_path / "first" / "plan.json", "--json", out=tmp_path / "second")

    assert said.exit_code == 0
    assert Plan.load(tmp_path / "second" / "plan.json").vocab_size == 300


def test_what_is_asked_beside_a_plan_wins(train, tmp_path):
    train(TARGET, "--batch-size", 4, "--accumulate", 2, out=tmp_path / "first")

    train(
        *(tmp_path / "first" / "plan.json", "--batch-size", 2, "--precision", "bf16"),
        *("--memory", "1GiB", "--seq-len", 8),
        out=tmp_path / "second",
    )

    plan = Plan.load(tmp_path / "second" / "plan.json")
    assert plan.recipe == Recipe(batch_size=2, accumulate=2, precision="bf16")
    assert (plan.seq_len, plan.budget_bytes) == (8, 1 << 30)


def test_a_schedule_asked_beside_a_plan_brings_its_own_length(train, tmp_path):
    train(TARGET, "--batch-size", 2, out=tmp_path / "first")
    plan = tmp_path / "first" / "plan.json"

    said = train(plan, "--seq-schedule", "4:2,8", "--json", out=tmp_path / "second")

    assert said.exit_code == 0
    assert Plan.load(tmp_path / "second" / "plan.json").seq_len == 8


# Interrupted


def test_ctrl_c_saves_and_leaves_and_the_resumed_run_is_the_straight_one(train, text, tmp_path):
    out = tmp_path / "run"
    options = ["--steps", 16, "--batch-size", 4]
    command = [sys.executable, "-m", "memfit", "train", SLOW, "--data", text, "--out", out]
    child = subprocess.Popen(
        [*map(str, [*command, *options])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_steps(out / "run.jsonl", 3, child)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    steps_done = len(RunLog.load(out / "run.jsonl").steps)

    resumed = train(TARGET, *options, "--resume")
    straight = train(TARGET, *options, out=tmp_path / "straight")

    assert child.returncode == 0
    assert 3 <= steps_done < 16
    assert f"interrupted: step {steps_done} is saved, go on from it with --resume\n" in err
    assert "Traceback" not in err
    assert (resumed.exit_code, straight.exit_code) == (0, 0)
    assert f"resumed after step {steps_done}\n" in resumed.err
    assert losses(out) == losses(tmp_path / "straight")
    assert weights(out) == weights(tmp_path / "straight")


def wait_for_steps(log: Path, number: int, child: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while child.poll() is None and time.monotonic() < end:
        if log.exists() and log.read_text().count("\n") > number:
            return
        time.sleep(0.01)
    pytest.fail(f"the run did not come to step {number}: {child.communicate()}")


# Refused


def test_a_run_that_does_not_fit_exits_with_3_and_names_a_size_that_does(train, tmp_path):
    options = ("--tokens-per-step", 4 * SEQ_LEN)
    said = train(TARGET, *options, "--memory", "100KiB", "--json")
    size = said.err.partition("give --memory ")[2].split()[0]

    assert (said.exit_code, said.out) == (3, "")
    assert "tiny does not fit 100.0 KiB: the smallest run that was found" in said.err
    assert not (tmp_path / "run").exists()

    again = train(TARGET, *options, "--memory", size, "--json")

    assert again.exit_code == 0
    assert json.loads(again.out)["measured_peak_bytes"] <= parse_size(size)


@pytest.fixture
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        pytest.fail("it should have been refused before the text is read")

    monkeypatch.setattr(text_module, "load", load)


@pytest.mark.usefixtures("_no_work")
def test_a_folder_that_holds_a_run_is_refused_before_the_work(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.jsonl").write_text("precious")

    said = train()

    assert said.exit_code == 2
    assert "holds a run already: go on with it with --resume" in said.err
    assert (tmp_path / "run" / "run.jsonl").read_text() == "precious"


@pytest.mark.usefixtures("_no_work")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--html", "file/page.html"], "file is not a folder"),
        (["--html", "file"], "file exists: choose another name, or overwrite it with --force"),
        (["--out", "file"], "file is not a folder"),
        (["--out", "file/run"], "file is not a folder"),
        (["--resume"], "there is no run in"),
        (["--warmup-steps", "7"], "7 warm-up steps do not fit a run of 6 steps"),
        (["--memory", "-1"], "'-1' is not a size"),
        (["--learning-rate", "nan"], "learning_rate is nan"),
        (["--seq-len", "9999"], "cannot take a sequence of 9999 tokens"),
        (["--tokens-per-step", "100"], "100 tokens a step are not a whole number of sequences"),
        (
            ["--seq-schedule", "12:1,16", "--batch-size", "1"],
            "not a whole number of sequences of 12",
        ),
        (
            ["--seq-schedule", "4:1,8", "--sequences", "documents"],
            "not go with sequences documents",
        ),
        (["--seq-schedule", "4:1,8", "--seq-len", "16"], "8 tokens and the sequence length is 16"),
    ],
)
def test_what_can_be_known_beforehand_is_refused_before_the_work(
    train, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()

    said = train(TARGET, *options)

    assert said.exit_code == 2
    assert message in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file or folder"), (b"", "there is no text"), (b"\xff\xfe", "not UTF-8")],
)
def test_data_that_cannot_be_read_is_refused(tmp_path, content, message):
    data = tmp_path / "data.txt"
    if content is not None:
        data.write_bytes(content)

    said = memfit("train", TARGET, "--data", data, "--out", tmp_path / "run")

    assert said.exit_code == 2
    assert message in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "run").exists()


def test_another_model_does_not_go_on_with_the_run(train, tmp_path):
    train(TARGET, "--batch-size", 4)
    before = losses(tmp_path / "run"), weights(tmp_path / "run")

    said = train(DEEPER, "--batch-size", 4, "--resume")

    assert said.exit_code == 2
    assert "cannot go on from" in said.err
    assert "Traceback" not in said.err
    assert (losses(tmp_path / "run"), weights(tmp_path / "run")) == before


def test_a_config_is_a_model_and_one_that_does_not_write_text_is_refused(train, tmp_path):
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))

    said = train(tmp_path / "config.json")

    assert said.exit_code == 2
    assert "does not train on text: memfit train trains causal LMs" in said.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"memfit": "plan", "version": 1, "plan": {"target"', "damaged"),
        ('{"memfit": "plan", "version": 99}', "newer memfit"),
        ('{"memfit": "recipe", "version": 1}', "where 'plan' is needed"),
        ('{\n "version": 1,\n "memfit":  "plan", "plan": {}}', "is damaged: KeyError"),
    ],
)
def test_a_plan_that_is_none_is_refused(train, tmp_path, content, message):
    (tmp_path / "plan.json").write_text(content)

    said = train(tmp_path / "plan.json")

    assert said.exit_code == 2
    assert message in said.err


# The shape of a step


@pytest.mark.parametrize(
    ("tokens_per_step", "batch_size", "accumulate", "shape"),
    [
        (None, None, None, (16, None)),  # 16,384 tokens
        (None, 3, None, (3, 3)),
        (None, 3, 4, (12, 3)),
        (None, None, 4, (16, 4)),
        (None, None, 3, (18, 6)),  # rounded up to whole micro-batches
        (8192, None, None, (8, None)),
        (8192, 2, None, (8, 2)),
        (8192, None, 2, (8, 4)),
        (8192, 4, 2, (8, 4)),
    ],
)
def test_a_step_has_the_samples_and_the_micro_batch_that_are_asked(
    tokens_per_step, batch_size, accumulate, shape
):
    assert step_shape(1024, tokens_per_step, batch_size, accumulate) == shape


def test_a_sequence_longer_than_the_default_step_is_a_step():
    assert step_shape(1 << 20, None, None, None) == (1, None)


@pytest.mark.parametrize(
    ("tokens_per_step", "batch_size", "accumulate", "instead"),
    [
        (1000, None, None, 1024),
        (100, None, None, 1024),
        (5000, None, None, 5120),
        (8192, 3, None, 9216),
        (8192, None, 3, 9216),
        (8192, 2, 2, 4096),
        (8192, 16, None, 16384),
    ],
)
def test_numbers_that_contradict_each_other_are_refused_with_some_that_do_not(
    tokens_per_step, batch_size, accumulate, instead
):
    with pytest.raises(BadInput, match=f"write --tokens-per-step {instead}$"):
        step_shape(1024, tokens_per_step, batch_size, accumulate)

    samples, _ = step_shape(1024, instead, batch_size, accumulate)
    assert samples * 1024 == instead
