"""AdamW in 4 bits: torchao's numbers, in pieces as at once, in memory that pieces bound."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from memfit.observer import Observer
from memfit.optimizers import adamw_4bit
from memfit.optimizers.adamw_4bit import BLOCK_SIZE, AdamW4bit, RoundedAdamW4bit
from memfit.profiler.capture import Capture
from memfit.records.timeline import Timeline
from memfit.tracing.step import trace

pytest.importorskip("torchao")

NUM_STEPS = 5
SHAPE = (60, 128)
"""60 blocks: several pieces of 7 blocks, of which the last has 4."""

PIECE = 7 * BLOCK_SIZE


def gradients(shape: tuple[int, ...] = SHAPE) -> list[Tensor]:
    """Rows of very different magnitudes, and one of zeros."""
    generator = torch.Generator().manual_seed(1)
    rows = 10.0 ** torch.linspace(-6, 2, shape[0]).unsqueeze(1)
    rows[0] = 0
    return [torch.randn(shape, generator=generator) * rows for _ in range(NUM_STEPS)]


def parameter(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).to(dtype))


def stepped(kind: type[AdamW4bit], dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(2)
    x = parameter(dtype)
    optimizer = kind([x], lr=0.01, weight_decay=0.1)
    for gradient in gradients():
        x.grad = gradient.to(dtype)
        optimizer.step()
    return x.detach(), optimizer.state[x]


@pytest.mark.parametrize(
    ("kind", "dtype"), [(AdamW4bit, torch.float32), (RoundedAdamW4bit, torch.bfloat16)]
)
def test_in_pieces_it_is_the_same_to_the_bit(monkeypatch, kind, dtype):
    at_once, state = stepped(kind, dtype)
    monkeypatch.setattr(adamw_4bit, "_PIECE", PIECE)
    in_pieces, other = stepped(kind, dtype)

    assert torch.equal(in_pieces, at_once)
    assert other.keys() == state.keys()
    assert all(torch.equal(other[name], state[name]) for name in state)
    assert other["step"] == NUM_STEPS


def test_it_is_torchaos_own_step(monkeypatch):
    """torchao compiles its step; here the same function runs as it is written."""
    from torchao.optim import AdamW4bit as Torchaos

    monkeypatch.setattr(adamw_4bit, "_PIECE", PIECE)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    mine, its = parameter(), parameter()
    small, its_small = (nn.Parameter(torch.ones(3, 5)) for _ in range(2))
    settings = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    optimizer = AdamW4bit([mine, small], **settings)
    reference = Torchaos([its, its_small], **settings)

    for gradient in gradients():
        mine.grad = its.grad = gradient
        small.grad = its_small.grad = gradient[:3, :5].clone()
        optimizer.step()
        reference.step()

        # Both compute in fp32, in other orders: a last bit or two of what is rounded.
        torch.testing.assert_close(mine, its, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(small, its_small, rtol=1e-6, atol=1e-6)
        for name in ("exp_avg", "exp_avg_sq"):
            found, expected = optimizer.state[mine], reference.state[its][name]
            torch.testing.assert_close(found[f"{name}_scale"], expected.scale, rtol=1e-6, atol=0)
            # A number half-way between two codes may get either of them.
            assert (found[f"{name}_codes"] != expected.codes).double().mean() <= 1e-3
            torch.testing.assert_close(
                optimizer.state[small][name], reference.state[its_small][name]
            )


def two_steps(num_pieces: int) -> Callable[[Observer], None]:
    def steps(observer: Observer) -> None:
        x = nn.Parameter(torch.ones(num_pieces * PIECE))
        optimizer = AdamW4bit([x])
        for _ in range(2):
            x.grad = torch.ones(num_pieces * PIECE)
            optimizer.step()

    return steps


def measured(steps: Callable[[Observer], None]) -> Timeline:
    capture = Capture()
    with capture:
        steps(capture)
    return capture.timeline


def test_the_pieces_are_predicted_to_the_byte(monkeypatch):
    monkeypatch.setattr(adamw_4bit, "_PIECE", PIECE)
    steps = two_steps(6)
    steps(Capture())

    predicted, real = trace(steps), measured(steps)

    assert predicted.deltas().tolist() == real.deltas().tolist()


def test_beside_its_state_an_update_takes_what_a_piece_takes(monkeypatch):
    monkeypatch.setattr(adamw_4bit, "_PIECE", PIECE)

    def beside(num_pieces: int) -> int:
        per_block = BLOCK_SIZE * (4 + 4 + 1) + 2 * 4  # parameter, gradient, codes and scales
        stays = num_pieces * PIECE // BLOCK_SIZE * per_block
        return int(measured(two_steps(num_pieces)).curve().max()) - stays

    assert beside(12) == beside(6)
    assert beside(6) < 60 * PIECE


def test_a_copy_of_it_goes_on_alike():
    """Its tables are no state: a copy, as a saved run makes one, has its own."""
    x = parameter()
    optimizer = AdamW4bit([x])
    first, *others = gradients()
    x.grad = first
    optimizer.step()
    y, other = copy.deepcopy((x, optimizer))
    assert other.param_groups[0]["params"][0] is y

    for gradient in others:
        x.grad = y.grad = gradient
        optimizer.step()
        other.step()
    assert torch.equal(x, y)
