"""The callback inside ``transformers.Trainer``."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

pytest.importorskip("accelerate")

from transformers import Trainer, TrainingArguments
from transformers.utils import ModelOutput

from memfit.integrations.huggingface import MemfitCallback

CONFIG = GPT2Config(
    n_layer=2, n_embd=64, n_head=2, vocab_size=512, n_positions=64, bos_token_id=0, eos_token_id=0
)
KEYS = {
    "memfit/measured_peak_bytes",
    "memfit/predicted_peak_bytes",
    "memfit/measured_over_predicted",
}
LOGGED_BYTES = 16
"""The Trainer's sum of losses and its like, which are no part of a step."""

pytestmark = pytest.mark.filterwarnings("default")  # those of other people's trainers


def dataset(rows: int = 64) -> list[dict[str, Any]]:
    ids = torch.randint(0, 512, (rows, 32), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer(folder: Path, model: nn.Module | None = None, **arguments: Any) -> Trainer:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "logging_steps": 2,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return Trainer(
        model=model or GPT2LMHeadModel(CONFIG),
        args=TrainingArguments(**(settings | arguments)),
        train_dataset=dataset(),
    )


def test_the_step_is_predicted_from_the_trainer_and_both_are_logged_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trainer(tmp_path)
    callback = MemfitCallback.attach(run)

    run.train()

    logged = [entry for entry in run.state.log_history if "loss" in entry]
    assert logged and all(entry.keys() >= KEYS for entry in logged)
    found = callback.comparison
    assert found.predicted is not None and found.memory.peak_bytes is not None
    assert found.memory.peak_bytes == pytest.approx(found.predicted, abs=LOGGED_BYTES)
    assert "memfit: the most memory that a step takes\n  predicted " in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        {"bf16": True},
        {"gradient_checkpointing": True},
        {"gradient_accumulation_steps": 2},
        {"optim": "adamw_torch"},  # in a loop, which takes more than the fused one
        {"optim": "adafactor"},
        {"optim": "rmsprop", "max_grad_norm": 0.0},
    ],
    ids=lambda arguments: next(iter(arguments.items())),
)
def test_the_trainers_own_step_is_predicted_to_the_bytes_of_what_it_logs(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    run = trainer(tmp_path, **arguments)
    callback = MemfitCallback.attach(run)

    run.train()

    found = callback.comparison
    assert found.predicted is not None, found.why_not
    assert found.memory.peak_bytes == pytest.approx(found.predicted, abs=LOGGED_BYTES)


def test_reporters_see_what_was_logged(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    run = trainer(tmp_path)
    MemfitCallback.attach(run, 2**20)

    class Reporter(type(run.callback_handler.callbacks[-1])):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            seen.append(dict(logs))

    run.callback_handler.callbacks.append(Reporter())
    run.train()

    assert seen[0].keys() >= KEYS
    assert seen[0]["memfit/predicted_peak_bytes"] == 2**20


def test_the_callback_changes_no_weight(tmp_path: Path) -> None:
    weights = []
    for attaches in (False, True):
        run = trainer(tmp_path)
        if attaches:
            MemfitCallback.attach(run)
        run.train()
        weights.append([p.detach().clone() for p in run.model.parameters()])

    for one, other in zip(*weights, strict=True):
        assert torch.equal(one, other)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(512, 8)

    def forward(self, input_ids: Any = None, labels: Any = None) -> ModelOutput:
        return ModelOutput(loss=self.embedding(input_ids).square().mean())


def test_a_model_of_ones_own_is_predicted(tmp_path: Path) -> None:
    run = trainer(tmp_path, Own())
    callback = MemfitCallback.attach(run)

    run.train()

    found = callback.comparison
    assert found.predicted is not None, found.why_not
    assert found.memory.peak_bytes == pytest.approx(found.predicted, abs=LOGGED_BYTES)


def test_a_model_that_cannot_be_copied_is_measured_and_the_reason_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Own()
    model.lock = threading.Lock()  # type: ignore[assignment]
    run = trainer(tmp_path, model)
    MemfitCallback.attach(run)

    run.train()

    out = capsys.readouterr().out
    assert "predicted  nothing: Own cannot be copied: cannot pickle" in out
    assert "measured " in out
