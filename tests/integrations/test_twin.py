"""A model's twin has its shapes and settings, and nothing of its data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from memfit.integrations.twin import CannotTell, twins


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))
        self.angles = torch.ones(5)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.frozen(self.embedding(ids)))
        return logits


def test_a_twin_has_the_shapes_dtypes_and_ties_of_the_model_and_tensors_of_its_own() -> None:
    model = Model().to(torch.bfloat16)

    twin, _ = twins(model, torch.optim.SGD(model.parameters()), "cpu")

    assert isinstance(twin, Model)
    assert twin.head.weight is twin.embedding.weight
    pairs = [*zip(model.named_parameters(), twin.named_parameters(), strict=True)]
    for (name, mine), (name_of_twin, other) in pairs:
        assert name == name_of_twin
        assert (mine.shape, mine.dtype, mine.requires_grad) == (
            other.shape,
            other.dtype,
            other.requires_grad,
        )
        assert mine.data_ptr() != other.data_ptr()
    assert twin.mask.shape == (3,) and twin.mask.dtype == torch.bool
    assert twin.angles.data_ptr() != model.angles.data_ptr()


def test_its_optimizer_has_the_settings_and_none_of_the_state() -> None:
    model = Model()
    first = torch.optim.AdamW(
        [
            {"params": [model.embedding.weight], "lr": 0.5},
            {"params": model.frozen.parameters(), "weight_decay": 0.25},
        ],
        fused=True,
    )
    torch.optim.lr_scheduler.LambdaLR(first, lambda step: 1.0)  # puts a step on the instance
    model(torch.tensor([1])).sum().backward()
    first.step()
    before = model.embedding.weight.detach().clone()

    twin, second = twins(model, first, "cpu")
    twin(torch.tensor([1])).sum().backward()
    second.step()

    assert type(second) is torch.optim.AdamW
    assert [group["lr"] for group in second.param_groups] == [0.5, 1e-3]
    assert second.param_groups[1]["weight_decay"] == 0.25 and second.param_groups[0]["fused"]
    assert list(second.state) == [twin.embedding.weight]
    assert list(first.state) == [model.embedding.weight]
    assert torch.equal(model.embedding.weight, before)


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(CannotTell, match="parameters that its model has not"):
        twins(nn.Linear(2, 2), torch.optim.SGD(nn.Linear(2, 2).parameters()), "cpu")


def test_a_tensor_of_a_class_of_its_own_is_refused() -> None:
    class Special(Tensor):
        pass

    model = nn.Linear(2, 2)
    model.register_buffer("special", torch.ones(2).as_subclass(Special))

    with pytest.raises(CannotTell, match="a kind of their own, Special"):
        twins(model, torch.optim.SGD(model.parameters()), "cpu")


def test_a_data_set_that_the_model_holds_is_not_copied() -> None:
    model = nn.Linear(2, 2)
    model.data = TensorDataset(torch.ones(3))  # type: ignore[assignment]

    twin, _ = twins(model, torch.optim.SGD(model.parameters()), "cpu")

    assert twin.data is model.data
