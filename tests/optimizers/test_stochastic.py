"""Rounding by chance is right on average, and keeps updates that rounding to nearest loses."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from memfit.optimizers.muon_8bit import RoundedMuon8bit
from memfit.optimizers.stochastic import (
    RoundedAdafactor,
    RoundedAdamW,
    RoundedMuon,
    RoundedSGD,
    round_stochastically,
)
from memfit.optimizers.together import Together

bits = st.integers(-(2**31), 2**31 - 1)
"""Every fp32 number, infinities, NaN and denormals among them."""


def number_of(pattern: int) -> torch.Tensor:
    wrapped = (pattern + 2**31) % 2**32 - 2**31
    return torch.tensor([wrapped], dtype=torch.int32).view(torch.float32)


@given(bits, st.integers(0, 2**31))
def test_a_number_becomes_one_of_its_two_neighbours_and_what_bf16_has_stays(pattern, seed):
    x = number_of(pattern)
    below = number_of(pattern & -65536)  # towards zero
    above = number_of((pattern & -65536) + (65536 if pattern % 65536 else 0))

    found = round_stochastically(x, generator=torch.Generator().manual_seed(seed)).float()

    if x.isnan():
        assert found.isnan()
    else:
        assert found in (below, above)
    if x.bfloat16().float() == x:
        assert found == x


@pytest.mark.parametrize("part", [1, 1000, 0x4000, 0x8000, 0xFFFF])
@pytest.mark.parametrize("upper", [0x3F80, 0xBF80, 0x0001, 0x7F00])
def test_the_chance_to_go_up_is_the_part_that_is_cut_off(upper, part):
    signed = upper - 0x10000 if upper >= 0x8000 else upper
    num_draws = 200_000
    x = number_of((signed << 16) + part).repeat(num_draws)

    found = round_stochastically(x, generator=torch.Generator().manual_seed(3))

    ups = (found.view(torch.int16) != torch.tensor(signed, dtype=torch.int16)).sum().item()
    chance = part / 65536
    # Five standard deviations, and a draw.
    assert abs(ups - num_draws * chance) <= 5 * math.sqrt(num_draws * chance * (1 - chance)) + 1


def test_infinities_and_every_nan_are_kept():
    x = torch.tensor([0x7F800000, -0x800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF, -1])
    x = x.to(torch.int32).view(torch.float32).repeat(1000)

    found = round_stochastically(x).view(1000, 6)

    assert (found[:, 0] == math.inf).all() and (found[:, 1] == -math.inf).all()
    assert found[:, 2:].isnan().all()


def test_it_writes_where_it_is_told_and_leaves_the_input():
    x = torch.rand(30, 20)
    before, out = x.clone(), torch.empty(30, 20, dtype=torch.bfloat16)

    assert round_stochastically(x, out=out) is out
    assert torch.equal(x, before)
    assert (out.float() - x).abs().max() < 2**-8


CLASSES = {
    "adamw": (torch.optim.AdamW, RoundedAdamW, {"weight_decay": 0.0}),
    "adamw fused": (torch.optim.AdamW, RoundedAdamW, {"weight_decay": 0.0, "fused": True}),
    "sgd": (torch.optim.SGD, RoundedSGD, {"momentum": 0.9}),
    "muon": (torch.optim.Muon, RoundedMuon, {"weight_decay": 0.0}),
    "muon-8bit": (torch.optim.Muon, RoundedMuon8bit, {"weight_decay": 0.0}),
}


def trained(kind: type, dtype: torch.dtype, num_steps: int, **settings: object) -> nn.Parameter:
    """A matrix of ones after steps along a gradient that never changes."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.ones(32, 48, dtype=dtype))
    gradient = torch.rand(32, 48, generator=torch.Generator().manual_seed(1)) - 0.3
    optimizer = kind([parameter], **settings)
    for _ in range(num_steps):
        parameter.grad = gradient.to(dtype)
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("name", CLASSES)
def test_updates_that_bf16_loses_altogether_arrive_on_average(name):
    plain, rounded, settings = CLASSES[name]
    # 40 updates, each below 1/512, which is half a step of bfloat16 below 1.
    settings = {**settings, "lr": 1e-3 if "muon" in name else 5e-5 if "sgd" in name else 4e-4}

    exact = trained(plain, torch.float32, 40, **settings)
    lost = trained(plain, torch.bfloat16, 40, **settings)
    kept = trained(rounded, torch.bfloat16, 40, **settings)

    assert torch.equal(lost, torch.ones_like(lost))
    moved = (exact - 1).double()
    found = (kept.float() - 1).double()
    assert moved.abs().mean() > 1e-3
    # The way along the exact one, over 1,536 numbers that are rounded independently.
    assert ((found * moved).sum() / (moved * moved).sum()).item() == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (RoundedAdamW, {}, 4 * 96 + 4),  # and the count of steps
        (RoundedSGD, {"momentum": 0.9}, 2 * 96),
        (RoundedAdafactor, {}, 4 * (8 + 12) + 4),
        (RoundedMuon, {}, 2 * 96),
        (RoundedMuon8bit, {}, 96 + 4),
    ],
)
def test_state_bytes(kind, settings, expected):
    parameter = nn.Parameter(torch.ones(8, 12, dtype=torch.bfloat16))
    optimizer = kind([parameter], **settings)
    for _ in range(2):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    state = optimizer.state[parameter]
    assert sum(t.nbytes for t in state.values() if isinstance(t, torch.Tensor)) == expected
    assert list(optimizer.state) == [parameter]  # nothing wide stays
    assert parameter.dtype == torch.bfloat16


def test_a_second_moment_does_not_stand_still():
    """With beta2 = 0.999 it moves by a thousandth, which bfloat16 rounded to nearest cannot do."""
    parameter = nn.Parameter(torch.zeros(64, 64, dtype=torch.bfloat16))
    optimizer = RoundedAdamW([parameter], lr=0.0, betas=(0.9, 0.999))
    for _ in range(1000):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    moment = optimizer.state[parameter]["exp_avg_sq"].float().mean().item()
    assert moment == pytest.approx(1 - 0.999**1000, rel=0.01)


def test_parameters_in_fp32_are_left_to_the_optimizer_bit_for_bit():
    plain, rounded = (nn.Parameter(torch.ones(5, 7)) for _ in range(2))
    narrow = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    frozen = nn.Parameter(torch.ones(3))
    optimizers = torch.optim.AdamW([plain]), RoundedAdamW([narrow, rounded, frozen])
    for number in range(3):
        for parameter in (plain, rounded, narrow):
            parameter.grad = torch.full_like(parameter, 0.1 * (number + 1))
        for optimizer in optimizers:
            optimizer.step()

    assert torch.equal(plain, rounded)
    assert torch.equal(frozen, torch.ones(3))


def test_a_saved_state_goes_on_bit_for_bit_with_the_same_chance():
    def step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> None:
        torch.manual_seed(7)
        parameter.grad = torch.full_like(parameter, 0.3)
        optimizer.step()

    here, there = (nn.Parameter(torch.ones(6, 6, dtype=torch.bfloat16)) for _ in range(2))
    optimizer, resumed = RoundedAdamW([here]), RoundedAdamW([there])
    step(optimizer, here)
    with torch.no_grad():
        there.copy_(here)
    resumed.load_state_dict(optimizer.state_dict())
    step(optimizer, here)
    step(resumed, there)

    assert torch.equal(here, there)


def adafactor_and_adamw(*parameters: nn.Parameter) -> torch.optim.Optimizer:
    matrix, vector = parameters
    return Together([RoundedAdafactor([matrix], lr=0.1), RoundedAdamW([vector], lr=0.1)])


@pytest.mark.parametrize(
    "build",
    [
        lambda *parameters: RoundedAdafactor(parameters, lr=0.1),
        lambda *parameters: RoundedAdamW(parameters, lr=0.1),
        lambda *parameters: RoundedSGD(parameters, lr=0.1, momentum=0.9),
        lambda *parameters: RoundedMuon(parameters[:1], lr=0.1),
        lambda *parameters: RoundedMuon8bit(parameters[:1], lr=0.1),
        adafactor_and_adamw,
    ],
    ids=["adafactor", "adamw", "sgd", "muon", "muon-8bit", "together"],
)
def test_a_state_dict_goes_on_bit_for_bit_under_a_schedule_of_pytorch(build):
    def train(optimizer, scheduler, parameters, first, last):
        for step in range(first, last):
            torch.manual_seed(step)
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
            scheduler.step()

    def new():
        parameters = [
            nn.Parameter(torch.ones(shape, dtype=torch.bfloat16)) for shape in [(5, 7), (6,)]
        ]
        optimizer = build(*parameters)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return optimizer, scheduler, parameters

    here, there = new(), new()
    train(*here, 0, 3)
    saved = copy.deepcopy([here[0].state_dict(), here[1].state_dict()])
    with torch.no_grad():
        for mine, theirs in zip(there[2], here[2], strict=True):
            mine.copy_(theirs)
    there[0].load_state_dict(saved[0])
    there[1].load_state_dict(saved[1])
    loaded = there[0].state_dict()
    torch.testing.assert_close(loaded, saved[0], rtol=0, atol=0)  # dtypes too
    train(*here, 3, 6)
    train(*there, 3, 6)

    for mine, theirs in zip(there[2], here[2], strict=True):
        assert torch.equal(mine, theirs)
    torch.testing.assert_close(there[0].state_dict(), here[0].state_dict(), rtol=0, atol=0)
    assert there[0].param_groups[0]["lr"] == pytest.approx(0.1 / 7)


def test_a_loaded_state_is_no_longer_that_of_the_dict():
    parameter = nn.Parameter(torch.ones(5, 7, dtype=torch.bfloat16))
    optimizer = RoundedAdafactor([parameter], lr=0.1)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = optimizer.state_dict()
    before = copy.deepcopy(saved)

    optimizer.load_state_dict(saved)
    parameter.grad.mul_(2)
    optimizer.step()

    rows = [found["state"][0]["row_var"] for found in (saved, before, optimizer.state_dict())]
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])


def test_moments_in_fp32_become_bf16_as_those_of_the_parameters_are():
    narrow, wide = (nn.Parameter(torch.ones(5, 7, dtype=d)) for d in (torch.bfloat16, torch.float))
    former, optimizer = torch.optim.AdamW([wide]), RoundedAdamW([narrow])
    wide.grad = torch.ones_like(wide)
    former.step()

    optimizer.load_state_dict(former.state_dict())

    assert optimizer.state[narrow]["exp_avg"].dtype == torch.bfloat16


def test_a_step_that_fails_leaves_parameter_and_moments(monkeypatch):
    parameter = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = RoundedMuon([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    before = parameter.detach().clone(), optimizer.state[parameter]["momentum_buffer"].clone()
    monkeypatch.setattr(torch.optim._muon, "_zeropower_via_newtonschulz", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        optimizer.step()

    assert torch.equal(parameter, before[0])
    assert torch.equal(optimizer.state[parameter]["momentum_buffer"], before[1])
    assert list(optimizer.state) == [parameter]
    assert optimizer.param_groups[0]["params"] == [parameter]


def test_hooks_are_called_once_a_step_and_the_closure_too():
    parameters = [nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(3)]
    torch.optim.SGD(parameters)  # so that PyTorch has wrapped the step of the base
    optimizer = RoundedSGD(parameters, lr=0.1)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))

    def closure() -> torch.Tensor:
        calls.append("closure")
        loss = sum(parameter.sum() for parameter in parameters)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 12
    assert calls == ["before", "closure", "after"]
