"""The callback inside Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

lightning = pytest.importorskip("lightning")

from memfit.integrations.lightning import MemfitCallback  # noqa: E402  # only where it is

pytestmark = pytest.mark.filterwarnings("default")  # those of other people's trainers


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, width: int = 64, *, saves: bool = True) -> None:
        super().__init__()
        if saves:
            self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = self.net(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def fit(folder: Path, module: Any, callback: MemfitCallback | None) -> Any:
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
        callbacks=[callback] if callback else [],
    )
    trainer.fit(module, DataLoader(torch.randn(64, 64), batch_size=16))
    return trainer


def test_the_step_is_predicted_from_the_module_and_both_are_logged_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = MemfitCallback()

    trainer = fit(tmp_path, Module(), callback)

    found = callback.comparison
    assert found.predicted is not None, found.why_not
    assert found.memory.peak_bytes is not None
    # Lightning lets go of gradients only before the next backward pass, so that activations come
    # on top of them: for so small a model a seventh more.
    assert found.predicted <= found.memory.peak_bytes <= 1.15 * found.predicted
    assert trainer.logged_metrics["memfit/measured_peak_bytes"] == found.memory.peak_bytes
    assert "memfit/predicted_peak_bytes" in trainer.logged_metrics
    assert "memfit: the most memory that a step takes\n  predicted " in capsys.readouterr().out


def test_a_module_that_does_not_say_how_to_build_it_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, Module(saves=False), MemfitCallback())

    assert "nothing: nothing says how to build Module anew: call save_hyperparameters()" in (
        capsys.readouterr().out
    )


def test_a_given_prediction_is_taken(tmp_path: Path) -> None:
    callback = MemfitCallback(123456)

    trainer = fit(tmp_path, Module(), callback)

    assert trainer.logged_metrics["memfit/predicted_peak_bytes"] == 123456


def test_the_callback_changes_no_weight(tmp_path: Path) -> None:
    weights = []
    for callback in (None, MemfitCallback()):
        torch.manual_seed(1)
        module = Module()
        fit(tmp_path, module, callback)
        weights.append([p.detach().clone() for p in module.parameters()])

    for one, other in zip(*weights, strict=True):
        assert torch.equal(one, other)
