"""Another trainer's step is traced where it trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from memfit.integrations import forecast
from memfit.integrations.twin import twins
from memfit.observer import Observer


def test_on_a_gpu_the_optimizers_own_form_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "_name", lambda device: "rtx-4090")
    model = nn.Linear(512, 512, bias=False)

    def peak(**form: bool) -> int:
        optimizer = torch.optim.AdamW(model.parameters(), **form)

        def run(observer: Observer) -> None:
            twin, optimizer_twin = twins(model, optimizer, "cuda")
            observer.model(twin)
            for number in (1, 2):
                observer.step(number)
                twin(torch.zeros(1, 512, device="cuda")).sum().backward()
                optimizer_twin.step()
                optimizer_twin.zero_grad()

        return forecast._peak_bytes(run, torch.device("cuda"))

    more = peak() - peak(fused=True)
    assert more == pytest.approx(512 * 512 * 4, rel=0.01)  # there PyTorch takes foreach


def test_a_trainer_with_two_optimizers_is_told_why_not() -> None:
    model = nn.Linear(2, 2)
    optimizers = [torch.optim.SGD([p]) for p in model.parameters()]
    comparison = forecast.Comparison(None)

    def take_step(model: nn.Module, optimizer: Any, batches: Iterator[Any]) -> None:
        raise AssertionError

    forecast.forecast(comparison, model, optimizers, torch.zeros(1, 2), 1, take_step)

    assert comparison.predicted is None
    assert comparison.why_not == "it has 2 optimizers, and only one can be predicted"
