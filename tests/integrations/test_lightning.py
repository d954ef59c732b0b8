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

LOGGED_BYTES = 32
"""What Lightning keeps of one value that the module logs, and the callback does not predict."""

pytestmark = pytest.mark.filterwarnings("default")  # those of other people's trainers


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, optimizer: Any = torch.optim.AdamW, *, logs: bool = False) -> None:
        super().__init__()
        self.optimizer, self.logs = optimizer, logs
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = self.net(batch).square().mean()
        if self.logs:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())


def fit(
    folder: Path,
    module: Any,
    callback: MemfitCallback | None,
    *,
    steps: int = 4,
    batch_size: int = 16,
    **settings: Any,
) -> Any:
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
        callbacks=[callback] if callback else [],
        **settings,
    )
    trainer.fit(module, DataLoader(torch.randn(4 * batch_size, 64), batch_size=batch_size))
    return trainer


def test_the_step_is_predicted_from_the_module_and_both_are_logged_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = MemfitCallback()

    trainer = fit(tmp_path, Module(logs=True), callback)

    found = callback.comparison
    assert found.predicted is not None, found.why_not
    assert found.memory.peak_bytes is not None
    assert found.memory.peak_bytes == pytest.approx(found.predicted, abs=LOGGED_BYTES)
    assert trainer.logged_metrics["memfit/measured_peak_bytes"] == found.memory.peak_bytes
    assert "memfit/predicted_peak_bytes" in trainer.logged_metrics
    assert "memfit: the most memory that a step takes\n  predicted " in capsys.readouterr().out


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch_size": 1024},  # the gradients of the step before lie under the activations
        {"precision": "bf16-mixed", "batch_size": 1024},
        {"precision": "bf16-true"},
        {"gradient_clip_val": 1.0},
        {"accumulate_grad_batches": 2, "batch_size": 1024},
    ],
    ids=str,
)
def test_lightnings_own_step_is_predicted_to_the_byte(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    callback = MemfitCallback()

    fit(tmp_path, Module(), callback, **settings)

    found = callback.comparison
    assert found.predicted is not None, found.why_not
    assert found.memory.peak_bytes == pytest.approx(found.predicted, abs=4)  # the loss it returned


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adamax])
def test_the_optimizer_is_the_modules_own(tmp_path: Path, optimizer: Any) -> None:
    callback = MemfitCallback()

    fit(tmp_path, Module(optimizer), callback)

    found = callback.comparison
    assert found.predicted is not None, found.why_not
    assert found.memory.peak_bytes == pytest.approx(found.predicted, abs=4)


def test_a_step_that_is_measured_after_others_that_are_not_counts_no_gradient_twice(
    tmp_path: Path,
) -> None:
    callback = MemfitCallback()

    fit(tmp_path, Module(), callback, steps=10, batch_size=1024)

    found = callback.comparison
    assert found.memory.peak_bytes == pytest.approx(found.predicted, abs=4)


def test_a_module_that_optimizes_by_itself_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Manual(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    class Quiet(MemfitCallback):
        """Stops after a step: what is never updated takes no step that is counted."""

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            super().on_train_batch_end(trainer, *args)
            trainer.should_stop = True

    fit(tmp_path, Manual(), Quiet())

    assert "nothing: Manual optimizes by itself" in capsys.readouterr().out


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
