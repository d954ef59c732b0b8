"""A step is the loop that one would write by hand, and says what it did."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memfit.errors import BadInput
from memfit.job import Job
from memfit.planner.predict import predict
from memfit.records.recipe import Recipe
from memfit.techniques import run
from memfit.techniques.apply import apply
from memfit.techniques.step import EvalOutcome, StepOutcome


class Net(nn.Module):
    """A matrix, vectors, dropout, and a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)
        self.frozen = nn.Parameter(torch.ones(8, 8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(self.hidden(x).tanh(), 0.5, self.training)
        return self.head(self.norm(hidden) @ self.frozen)


def batch_of(num_samples: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (num_samples,), generator=generator)
    return {"x": torch.randn(num_samples, 4, generator=generator), "y": labels}


def mean_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def summed_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), len(batch["y"])


def job_with(loss: Any = mean_loss, model: Any = Net) -> Job:
    return Job(model=model, batch=lambda size, seq_len: batch_of(size), loss=loss)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


class Output(OrderedDict[str, Any]):
    """A loss beside other results, as a ``ModelOutput`` of transformers."""


class Encoding(UserDict[str, Any]):
    """A batch that is a mapping and no dict, as a ``BatchEncoding`` of transformers."""

    source = "a tokenizer"


# The step


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_step_is_the_plain_pytorch_loop_to_the_last_bit(optimizer, precision, clip_norm):
    recipe = Recipe(
        batch_size=8,
        optimizer=optimizer,
        precision=precision,
        clip_norm=clip_norm,
        weight_decay=0.1,
    )
    model, _, step = apply(job_with(), recipe)
    torch.manual_seed(1)
    losses = [step(batch_of(8, seed)).loss for seed in range(3)]

    plain = Net()
    matrices = [plain.hidden.weight, plain.head.weight]
    vectors = [plain.hidden.bias, *plain.norm.parameters(), plain.head.bias]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if optimizer == "adamw":
        by_hand = torch.optim.AdamW(
            groups, lr=recipe.peak_learning_rate, betas=(0.9, 0.95), fused=True
        )
    else:
        by_hand = torch.optim.SGD(groups, lr=recipe.peak_learning_rate, momentum=0.9, fused=True)
    torch.manual_seed(1)
    expected = []
    for seed in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = mean_loss(plain, batch_of(8, seed))
        loss.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(matrices + vectors, clip_norm)
        by_hand.step()
        by_hand.zero_grad()
        expected.append(loss.item())

    assert losses == expected
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=0)


def test_only_matrices_decay_and_only_what_is_trained_is_optimized():
    model, optimizer, _ = apply(job_with(), Recipe(weight_decay=0.3))

    matrices, vectors = optimizer.param_groups

    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    assert list(map(id, matrices["params"])) == [id(model.hidden.weight), id(model.head.weight)]
    assert {p.dim() for p in vectors["params"]} == {1}
    assert len(vectors["params"]) == 4


def test_bf16_pure_has_parameters_inputs_and_optimizer_state_in_bf16():
    seen = []

    def loss(model, batch):
        seen.append((batch["x"].dtype, batch["y"].dtype))
        return mean_loss(model, batch)

    model, optimizer, step = apply(job_with(loss), Recipe(precision="bf16-pure", batch_size=4))
    step(batch_of(4))
    assert seen == [(torch.bfloat16, torch.int64)]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    states = [s for state in optimizer.state.values() for n, s in state.items() if n != "step"]
    assert {state.dtype for state in states} == {torch.bfloat16}
    assert torch.get_default_dtype() is torch.float32


def test_a_learning_rate_set_from_outside_is_the_next_steps():
    model, optimizer, step = apply(job_with(), Recipe(batch_size=2))
    before = weights(model)

    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(batch_of(2))

    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("loss", [mean_loss, summed_loss])
def test_the_outcome_is_the_mean_loss_the_targets_and_the_norm_before_clipping(loss):
    model, _, step = apply(job_with(loss), Recipe(batch_size=2, clip_norm=1e-3))
    torch.manual_seed(1)
    outcome = step(batch_of(2))

    plain = Net()
    torch.manual_seed(1)
    expected = mean_loss(plain, batch_of(2))
    expected.backward()
    norms = [p.grad.norm() for p in plain.parameters() if p.grad is not None]

    assert outcome == StepOutcome(
        loss=pytest.approx(expected.item(), rel=1e-6),
        num_targets=2,
        grad_norm=pytest.approx(torch.stack(norms).norm().item(), rel=1e-5),
        batch_size=2,
    )
    assert outcome.grad_norm > 1e-3
    assert all(parameter.grad is None for parameter in model.parameters())


def test_without_clipping_there_is_no_norm():
    _, _, step = apply(job_with(), Recipe(batch_size=2, clip_norm=None))

    assert step(batch_of(2)).grad_norm is None


# Evaluation


@pytest.mark.parametrize("loss", [mean_loss, summed_loss])
def test_an_evaluation_is_the_sum_of_losses_whatever_the_micro_batch(loss):
    whole, _, _ = apply(job_with(), Recipe())
    expected = 7 * mean_loss(whole.eval(), batch_of(7)).item()

    for batch_size in (1, 3, 7):
        _, _, step = apply(job_with(loss), Recipe(batch_size=batch_size))

        assert step.evaluate(batch_of(7)) == EvalOutcome(pytest.approx(expected, rel=1e-5), 7)


def test_an_evaluation_leaves_no_trace():
    model, optimizer, step = apply(job_with(), Recipe(batch_size=2))
    before, rng = weights(model), torch.get_rng_state()

    step.evaluate(batch_of(4))

    assert all(module.training for module in model.modules())
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), rng)  # dropout is off
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_evaluation_that_fails_leaves_the_model_training():
    model, _, step = apply(job_with(), Recipe())

    with pytest.raises(KeyError):
        step.evaluate({"x": torch.zeros(1, 4)})

    assert model.training


# What an observer hears


def test_phases_come_in_the_order_of_the_work():
    heard: list[str] = []
    _, _, step = apply(job_with(), Recipe(batch_size=2), on_phase=heard.append)

    step(batch_of(3))
    step.evaluate(batch_of(3))

    assert heard == ["forward", "backward", "forward", "backward", "optimizer", "eval"]


class Listener:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def phase(self, name: str) -> None:
        self.heard.append(name)

    def step(self, number: int) -> None:
        self.heard.append(number)

    def model(self, model: nn.Module) -> None:
        self.heard.append("model")

    def inputs(self, batch: Any) -> None:
        self.heard.append("inputs")


def test_a_batch_is_made_in_the_step_and_the_phase_that_need_it():
    listener = Listener()
    applied = run.build(job_with(), Recipe(batch_size=2), listener)

    def make_batch() -> dict[str, Tensor]:
        listener.heard.append("made")
        return batch_of(2)

    run.take_step(applied, 1, make_batch, listener)
    run.evaluate(applied, [make_batch], listener)

    assert listener.heard == [
        *["init", "model"],
        *[1, "forward", "made", "inputs", "forward", "backward", "optimizer"],
        *["eval", "made", "inputs", "eval"],
    ]


def test_an_evaluation_over_several_batches_is_their_sum():
    applied = run.build(job_with(summed_loss), Recipe(batch_size=2), Listener())
    whole = applied.step.evaluate(batch_of(5))

    rows = [slice(0, 2), slice(2, 4), slice(4, 5)]
    parts = [
        lambda part=part: {name: tensor[part] for name, tensor in batch_of(5).items()}
        for part in rows
    ]

    assert run.evaluate(applied, parts, Listener()) == EvalOutcome(
        pytest.approx(whole.loss_sum, rel=1e-6), 5
    )


# What a job may give


@pytest.mark.parametrize("kind", [dict, Output, UserDict, MappingProxyType])
def test_the_loss_of_a_mapping_is_the_mean(kind):
    def in_mapping(model: nn.Module, batch: dict[str, Tensor]) -> Any:
        logits = model(batch["x"])
        return kind({"logits": logits, "loss": F.cross_entropy(logits, batch["y"])})

    recipe = Recipe(batch_size=2)
    found, expected = (apply(job_with(loss), recipe) for loss in (in_mapping, mean_loss))
    torch.manual_seed(0)
    outcome = found.step(batch_of(5))
    torch.manual_seed(0)

    assert outcome == expected.step(batch_of(5))
    assert found.step.evaluate(batch_of(5)) == expected.step.evaluate(batch_of(5))
    torch.testing.assert_close(weights(found.model), weights(expected.model), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [Encoding, MappingProxyType])
@pytest.mark.parametrize("within", [lambda batch: batch, lambda batch: {"inner": [batch]}])
def test_any_mapping_is_a_batch_and_stays_one(kind, within):
    seen: list[Any] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inner = batch["inner"][0] if "inner" in batch else batch
        seen.append(inner)
        return mean_loss(model, inner)

    batch = batch_of(5)
    applied = apply(job_with(loss), Recipe(batch_size=2))
    torch.manual_seed(0)
    outcome = applied.step(within(kind(batch)))
    expected = apply(job_with(), Recipe(batch_size=2))
    torch.manual_seed(0)

    assert outcome == expected.step(batch)
    assert [len(part["y"]) for part in seen] == [2, 2, 1]
    assert len(batch["y"]) == 5
    if kind is Encoding:
        assert all(part.source == "a tokenizer" for part in seen)


def test_the_tensors_of_any_mapping_are_predicted_as_inputs():
    def predicted(kind: Any) -> dict[str, int]:
        job = Job(model=Net, batch=lambda size, _: kind(batch_of(size)), loss=mean_loss)
        return predict(job, Recipe(batch_size=64)).breakdown

    assert predicted(Encoding) == predicted(dict)


# Bad input


def test_a_batch_without_any_target_is_refused():
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        return model(batch["x"]).sum() * 0, 0

    model, _, step = apply(job_with(loss), Recipe(batch_size=1))
    before = weights(model)

    with pytest.raises(BadInput, match="no target"):
        step(batch_of(2))
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("evaluates", [False, True])
def test_tensors_that_disagree_in_their_number_of_samples_are_refused(evaluates):
    _, _, step = apply(job_with(), Recipe())

    with pytest.raises(BadInput, match=r"the sizes found are \[2, 3\]"):
        (step.evaluate if evaluates else step)({"x": torch.zeros(2, 4), "y": torch.zeros(3)})


def test_a_loss_for_each_sample_is_refused():
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    _, _, step = apply(job_with(loss), Recipe(batch_size=2))

    with pytest.raises(BadInput, match=r"the loss is a tensor of shape \[2\]: return the mean"):
        step(batch_of(2))


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda loss: None, "the loss function returned None: return the mean over the batch"),
        (lambda loss: loss.item(), r"the number \d.*, through which nothing can be learnt"),
        (lambda loss: {"logits": loss}, 'a dict without a "loss": it has logits'),
        (lambda loss: {}, 'a dict without a "loss": it has nothing'),
        (lambda loss: {"loss": loss.item()}, "returned the number"),
        (lambda loss: (loss, loss, loss), "returned a tuple of 3"),
        (lambda loss: (loss.item(), 2), "returned a tuple of 2"),
        (lambda loss: (loss, torch.zeros(2, 3)), r"a loss and a tensor of shape \[2, 3\], which"),
        (lambda loss: (loss, "two"), "a loss and a str, which is no number of targets"),
    ],
)
def test_a_loss_that_is_none_is_refused_with_what_to_return(evaluates, returned, message):
    _, _, step = apply(job_with(lambda *asked: returned(mean_loss(*asked))), Recipe(batch_size=2))

    with pytest.raises(BadInput, match=message):
        (step.evaluate if evaluates else step)(batch_of(2))


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(BadInput, match="Linear has no parameter to train"):
        apply(job_with(model=lambda: nn.Linear(2, 2).requires_grad_(False)), Recipe())
