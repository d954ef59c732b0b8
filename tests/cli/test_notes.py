"""Beside its answer the command line says what memfit noticed, in its own words, and no more."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from command_line import memfit

from memfit.cli.notes import plain_notes
from memfit.errors import MemfitWarning

CHAIN = """
import torch
from torch import nn
from memfit import Job

job = Job(
    model=lambda: nn.Sequential(*[nn.Linear(8, 8), nn.Tanh()] * 4),
    batch=lambda batch_size, seq_len: torch.randn(batch_size, 8),
    loss=lambda model, batch: model(batch).square().mean(),
)
"""


def test_a_warning_of_memfits_is_one_plain_line_however_often_a_model_is_built(tmp_path: Path):
    (tmp_path / "chain.py").write_text(CHAIN)

    said = memfit("predict", f"{tmp_path / 'chain.py'}:job", "--checkpointing", "full")

    assert said.exit_code == 0
    assert said.err.startswith("note: Sequential has no repeated blocks: checkpointing takes 4 ")
    assert said.err.count("\n") == 1


def test_other_warnings_are_shown_as_python_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as others, plain_notes():
        warnings.simplefilter("always", UserWarning)
        for text, category in [("the job's", UserWarning), ("ours", MemfitWarning)] * 2:
            warnings.warn(text, category, stacklevel=1)

    assert [(str(other.message), other.filename) for other in others] == [
        ("the job's", __file__)
    ] * 2
    assert capsys.readouterr().err == "note: ours\n"


class OfTorchao:
    """Stands for a class of torchao's."""


OfTorchao.__module__ = "torchao.quantization"

SMALL_TALK = [
    ("torchao", "Failed to load %s: no such symbol", "/lib/torchao/_C_mxfp8.so"),
    ("torch.utils._pytree", "%s is an Enum subclass and is now natively supported", OfTorchao),
]
HEARD = [
    ("torchao", "Skipping import of cpp extensions %s", "due to incompatible torch version"),
    ("torch.utils._pytree", "%s is an Enum subclass and is now natively supported", logging.Filter),
    ("torch.utils._pytree", "%s is registered twice", OfTorchao),
    ("transformers", "Failed to load %s", "/lib/torchao/_C.so"),
]


@pytest.mark.parametrize(("logger", "message", "argument"), [*SMALL_TALK, *HEARD])
def test_small_talk_is_left_out_for_as_long_as_a_command_runs(logger, message, argument):
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append
    log = logging.getLogger(logger)
    log.addHandler(handler)
    try:
        with plain_notes():
            log.warning(message, argument)
        assert len(heard) == ((logger, message, argument) in HEARD)
        log.warning(message, argument)
        assert len(heard) == 1 + ((logger, message, argument) in HEARD)
    finally:
        log.removeHandler(handler)


@pytest.mark.slow
def test_importing_torchao_says_nothing_to_someone_at_the_command_line():
    pytest.importorskip("torchao")
    code = "from memfit.cli.notes import plain_notes\nwith plain_notes(): import torchao.optim"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert said.returncode == 0
    assert "Failed to load" not in said.stderr
    assert "Enum subclass" not in said.stderr
