"""What the callbacks say of predicted and measured memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from memfit.errors import BadInput
from memfit.integrations.comparison import Comparison, StepMemory, predicted_bytes


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(4, 256)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_steps_peak_is_what_is_held_and_what_it_takes_on_top() -> None:
    model = nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    memory = StepMemory()
    weights, batch, out, loss = 256 * 256 * 4, 4 * 256 * 4, 4 * 256 * 4, 4

    memory.begin(model, [optimizer], 0)
    step(model, optimizer)

    measured = memory.end()
    assert measured is not None
    # The gradient is made while the batch and the loss are there, the output no longer.
    assert 2 * weights + batch <= measured <= 2 * weights + batch + 2 * out + 4 * loss
    assert memory.peak_bytes == measured


def test_a_batch_that_was_made_before_the_step_counts_once() -> None:
    model, batch = nn.Linear(2, 2), torch.ones(100)
    memory = StepMemory()

    memory.begin(model, [], 0)
    memory.batch({"ids": batch, "labels": batch})

    assert memory.end() == 4 * (4 + 2 + 100)


def test_optimizer_state_of_former_steps_counts() -> None:
    model = nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    memory = StepMemory()
    peaks = []
    for number in range(2):
        memory.begin(model, [optimizer], number)
        step(model, optimizer)
        peaks.append(memory.end())

    assert peaks[0] is not None and peaks[0] >= 4 * 256 * 256 * 4
    assert peaks[1] is not None and peaks[1] >= peaks[0] - 4096


def test_on_the_cpu_the_first_steps_and_one_in_ten_are_measured() -> None:
    model = nn.Linear(2, 2)
    memory = StepMemory()
    measured = []
    for number in range(21):
        memory.begin(model, [], number)
        if memory.end() is not None:
            measured.append(number + 1)

    assert measured == [1, 2, 3, 10, 20]


def test_predicted_bytes_are_read_from_what_predict_writes(tmp_path: Path) -> None:
    path = tmp_path / "prediction.json"
    path.write_text(json.dumps({"peak": {"allocated_bytes": 77}}))

    assert predicted_bytes(path) == predicted_bytes(str(path)) == predicted_bytes(77) == 77


@pytest.mark.parametrize("text", ["{}", "no", "[]"])
def test_a_file_without_a_prediction_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prediction.json"
    path.write_text(text)

    with pytest.raises(BadInput, match="holds no prediction: write one with 'memfit predict"):
        predicted_bytes(path)
    with pytest.raises(BadInput, match="cannot read"):
        predicted_bytes(tmp_path / "none.json")


def test_the_table_says_how_far_apart_they_are() -> None:
    comparison = Comparison(2**20)
    assert comparison.metrics() == {}
    comparison.memory.peak_bytes = 2**20 + 2**18

    assert comparison.table() == (
        "memfit: the most memory that a step takes\n"
        "  predicted     1.0 MiB\n"
        "  measured      1.2 MiB  (25.0% above)"
    )
    assert comparison.metrics() == {
        "memfit/measured_peak_bytes": 1310720,
        "memfit/predicted_peak_bytes": 1048576,
        "memfit/measured_over_predicted": 1.25,
    }


def test_what_is_too_little_for_a_share_is_said_in_bytes() -> None:
    comparison = Comparison(2**20)
    comparison.memory.peak_bytes = 2**20 - 24

    assert comparison.table().endswith("(24 B below)")
