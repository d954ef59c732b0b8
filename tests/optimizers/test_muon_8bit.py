"""Muon with 8 bits of momentum is Muon but for what it remembers."""

import copy

import pytest
import torch
from torch import nn

from benchmarks.muon_8bit import furthest, train
from memfit.models.gpt import GPTConfig
from memfit.optimizers import muon_8bit
from memfit.optimizers.muon_8bit import Muon8bit
from memfit.optimizers.quantised import Quantised

SHAPES = [(4, 4), (12, 40), (40, 12), (24, 64)]


def matrices() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def step(optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(100 + number)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def kept_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantisation that keeps fp32 in the place of the codes."""

    def empty(shape: torch.Size, device: torch.device) -> Quantised:
        return Quantised(torch.empty(shape, device=device), torch.empty(0, device=device))

    def quantise_(x: torch.Tensor, out: Quantised) -> None:
        out.codes.copy_(x)

    monkeypatch.setattr(muon_8bit, "empty", empty)
    monkeypatch.setattr(muon_8bit, "quantise_", quantise_)
    monkeypatch.setattr(muon_8bit, "dequantise", lambda quantised: quantised.codes.clone())


@pytest.mark.parametrize("nesterov", [True, False])
def test_with_exact_momentum_it_is_torchs_muon_bit_for_bit(monkeypatch, nesterov):
    kept_exactly(monkeypatch)
    plain, narrow = matrices(), matrices()
    settings = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "nesterov": nesterov}
    optimizers = torch.optim.Muon(plain, **settings), Muon8bit(narrow, **settings)

    for number in range(5):
        for optimizer in optimizers:
            step(optimizer, number)

    assert all(torch.equal(a, b) for a, b in zip(plain, narrow, strict=True))


def test_the_first_step_is_muons_bit_for_bit_as_nothing_is_remembered_yet():
    plain, narrow = matrices(), matrices()
    step(torch.optim.Muon(plain, lr=0.02), 0)
    step(Muon8bit(narrow, lr=0.02), 0)

    assert all(torch.equal(a, b) for a, b in zip(plain, narrow, strict=True))


def test_the_state_is_1_byte_a_number_and_4_for_128_of_them():
    parameters = matrices()
    optimizer = Muon8bit(parameters)
    step(optimizer, 0)

    for parameter in parameters:
        found = {name: (t.dtype, t.nbytes) for name, t in optimizer.state[parameter].items()}
        num_blocks = -(-parameter.numel() // 128)
        assert found == {
            "momentum_codes": (torch.int8, parameter.numel()),
            "momentum_scales": (torch.float32, 4 * num_blocks),
        }
    large = nn.Parameter(torch.zeros(96, 384))
    optimizer = Muon8bit([large])
    step(optimizer, 0)
    num_bytes = sum(t.nbytes for t in optimizer.state[large].values())
    assert num_bytes / large.numel() == 1.03125


def test_a_saved_state_goes_on_bit_for_bit_and_shares_nothing():
    here, there = matrices(), matrices()
    optimizer, resumed = Muon8bit(here), Muon8bit(there)
    step(optimizer, 0)
    with torch.no_grad():
        for target, source in zip(there, here, strict=True):
            target.copy_(source)
    resumed.load_state_dict(optimizer.state_dict())

    for number in (1, 2):
        step(optimizer, number)
        step(resumed, number)

    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    codes = [o.state[p[0]]["momentum_codes"] for o, p in ((optimizer, here), (resumed, there))]
    assert codes[1].dtype == torch.int8
    assert codes[0].data_ptr() != codes[1].data_ptr()


def test_a_step_that_fails_leaves_the_momentum_of_before(monkeypatch):
    parameters = matrices()
    optimizer = Muon8bit(parameters)
    step(optimizer, 0)
    before = copy.deepcopy([dict(optimizer.state[p]) for p in parameters])
    monkeypatch.setattr(
        torch.optim._muon, "_zeropower_via_newtonschulz", lambda *_: 1 / 0, raising=True
    )

    with pytest.raises(ZeroDivisionError):
        step(optimizer, 1)

    for parameter, state in zip(parameters, before, strict=True):
        assert optimizer.state[parameter].keys() == state.keys()
        assert all(torch.equal(optimizer.state[parameter][name], state[name]) for name in state)
    assert optimizer.param_groups[0]["params"] == parameters


def test_hooks_are_called_once_a_step():
    optimizer = Muon8bit(matrices())
    torch.optim.Muon(matrices())  # so that PyTorch has wrapped the step of the base
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    step(optimizer, 0)

    assert calls == ["before", "after"]


TINY = GPTConfig(num_layers=2, dim=32, num_heads=2, num_kv_heads=2, vocab_size=256, seq_len=32)


def test_the_loss_on_real_text_follows_muons_within_1_percent():
    plain, narrow = (train(40, eight_bit=eight_bit, config=TINY) for eight_bit in (False, True))

    assert plain.losses != narrow.losses  # the momentum was rounded
    assert plain.losses[-1] < plain.losses[0] - 1  # and something was learnt
    assert furthest(plain.losses, narrow.losses) < 0.01


@pytest.mark.slow
def test_over_500_steps_too():
    plain, narrow = (train(500, eight_bit=eight_bit, config=TINY) for eight_bit in (False, True))

    assert furthest(plain.losses, narrow.losses) < 0.01
    assert narrow.state_bytes <= 1.04
    assert plain.state_bytes == 4
