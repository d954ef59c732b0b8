"""All verbs fail in one way: a message on stderr, an exit code, and never a traceback."""

from __future__ import annotations

import pytest
from command_line import memfit
from tiny_runs import TARGET

from memfit.cli import predict
from memfit.cli.choices import recipe_help
from memfit.errors import BadInput, DoesNotFit


def test_without_arguments_it_shows_what_there_is():
    said = memfit()

    for verb in ("predict", "train", "gpus"):
        assert verb in said.out + said.err
    assert "Fit the training run you want" in said.out + said.err


@pytest.mark.parametrize("verb", ["predict", "train", "gpus"])
def test_every_verb_explains_itself(verb):
    said = memfit(verb, "--help")

    assert said.exit_code == 0
    assert said.out.startswith(f"Usage: memfit {verb} [OPTIONS]")
    assert said.err == ""


@pytest.mark.parametrize("verb", ["predict", "train"])
@pytest.mark.parametrize(
    "field", ["precision", "batch_size", "accumulate", "checkpointing", "optimizer"]
)
def test_an_option_of_the_recipe_is_explained_by_the_recipes_own_words(verb, field):
    words = " ".join(memfit(verb, "--help").out.split())

    assert f"--{field.replace('_', '-')}" in words
    assert recipe_help(field) in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "gpt2", "--bogus"], "No such option: --bogus"),
        (["bogus"], "No such command 'bogus'"),
        (["predict", "gpt2", "--batch-size", "many"], "Invalid value for '--batch-size'"),
        (["predict", "gpt2", "--batch-size", "0"], "Invalid value for '--batch-size'"),
        (["train", "gpt2", "--data", "x", "--steps", "-1"], "Invalid value for '--steps'"),
        (["train", "gpt2"], "Missing option '--data'"),
        (["predict"], "say what to predict"),
        (["predict", "gpt2", "--memory", "much"], "'much' is not a size: write for example 24GiB"),
        (
            ["predict", "gpt2", "--precision", "fp8"],
            "precision is 'fp8': choose one of fp32, bf16, fp16, bf16-pure",
        ),
        (
            ["predict", "gpt2", "--checkpointing", "every:0"],
            "write none, full, every:N with N >= 1",
        ),
        (["predict", "gtp2"], "no preset is called 'gtp2' (nearest: gpt2"),
        (["predict", "missing/config.json"], "missing/config.json"),
        (["predict", "missing.py:job"], "there is no file missing.py"),
        (["predict", TARGET, "--gpu", "rtx-4091"], "no GPU is called 'rtx-4091' (nearest: rtx-40"),
        (["predict", TARGET, "--seq-len", "9999"], "cannot take a sequence of 9999 tokens"),
        (["predict", "x" * 5000], "File name too long"),
        (["gpus", "rtx-4091"], "no GPU is called"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(arguments, message):
    said = memfit(*arguments)

    assert said.exit_code == 2
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (BadInput("what, why, instead"), 2, "memfit: what, why, instead\n"),
        (DoesNotFit("too much", 1), 3, "memfit: too much\n"),
        (OSError(28, "No space left on device"), 2, "memfit: [Errno 28] No space left on device\n"),
    ],
)
def test_an_error_is_its_message_and_its_exit_code(monkeypatch, error, exit_code, message):
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(predict, "_list_presets", fail)

    assert memfit("predict", "--list") == (exit_code, "", message)


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    def fail(_: object) -> None:
        raise AssertionError("ours")

    monkeypatch.setattr(predict, "_list_presets", fail)

    with pytest.raises(AssertionError, match="ours"):
        memfit("predict", "--list")
