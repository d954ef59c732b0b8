"""Planted leaks are found by module and line; varying sizes and evaluations are no leaks."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from memfit.devices.cpu_allocations import CpuAllocations
from memfit.trainer.leaks import GROWING_STEPS, LeakWatch

MIB = 2**20


class Block(nn.Module):
    def __init__(self, *, keeps: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.keeps = keeps
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x).relu()
        if self.keeps:
            self.seen.append(out.detach() * 2)
        return out


def run(
    model: nn.Module,
    after_loss: Callable[[Tensor], object] = lambda loss: None,
    *,
    steps: int = 40,
    batch: Callable[[int], int] = lambda step: 8,
    evaluates: Callable[[int], bool] = lambda step: False,
) -> tuple[list[str], int]:
    """Trains; gives what the watch found, and how many steps it looked at."""
    optimizer = torch.optim.AdamW(model.parameters())
    watch, live, findings, looked = LeakWatch(model), 0, [], 0
    look = False
    for step in range(1, steps + 1):

        def take(step: int = step) -> None:
            x = torch.randn(batch(step), 16)
            loss = model(x).square().mean()
            loss.backward()
            after_loss(loss)
            optimizer.step()
            optimizer.zero_grad()
            if evaluates(step):
                with torch.inference_mode():
                    model(torch.randn(64, 16))

        listener = CpuAllocations()
        with listener, watch.looking() if look else contextlib.nullcontext():
            take()
        looked += look
        # What an earlier step has made counts when it goes, too.
        live += sum(event.num_bytes for event in listener.events)
        look = watch.after_step(step, live)
        if found := watch.finding():
            findings.append(found)
    return findings, looked


def test_a_list_of_losses_is_found_and_its_graph_named() -> None:
    losses: list[Tensor] = []

    findings, looked = run(nn.Sequential(Block(), Block()), losses.append)

    assert 2 <= looked <= 6, "it looks again each time that the run has doubled"
    (found,) = findings
    assert found.startswith("a leak: each step leaves ")
    assert "'losses', a list of " in found
    assert found.endswith("keep loss.item() or tensor.detach() instead")


def test_a_cache_that_grows_in_a_module_is_found_by_module_line_and_bytes() -> None:
    (found,), _ = run(nn.Sequential(Block(), Block(keeps=True)))

    assert found.startswith(
        "a leak: each step leaves 512 B behind in 1 tensor; 512 B of it is made in "
        "module '1' by test_leaks.py:"
    ), found
    assert "(self.seen.append(out.detach() * 2)), and is kept by 'seen', a list of " in found
    assert "graph" not in found


def test_a_hook_that_keeps_outputs_is_found() -> None:
    model = nn.Sequential(Block(), Block())
    outputs: dict[int, Tensor] = {}
    model[0].register_forward_hook(lambda module, args, out: outputs.update({len(outputs): out}))

    (found,), _ = run(model)

    assert "kept by 'outputs', a dict of " in found
    assert "it holds the graph of its step" in found


def test_a_small_leak_below_varying_sizes_is_found() -> None:
    sizes = random.Random(0)
    last: list[Tensor] = []

    def hold(loss: Tensor) -> None:
        last[:] = [torch.empty(sizes.randrange(1, 4000))]

    (found,), _ = run(nn.Sequential(Block(), Block(keeps=True)), hold, steps=150)

    assert "each step leaves 512 B behind in 1 tensor" in found


@pytest.mark.parametrize("seed", range(3))
def test_sizes_that_vary_and_evaluations_raise_no_alarm(seed: int) -> None:
    sizes = random.Random(seed)
    last: list[Tensor] = []

    def hold(loss: Tensor) -> None:
        last[:] = [torch.empty(sizes.randrange(1, 9) * 100)]

    findings, looked = run(
        nn.Sequential(Block(), Block()),
        hold,
        steps=80,
        batch=lambda step: 8 * (1 + step // 20),
        evaluates=lambda step: step % 7 == 0,
    )

    assert findings == []
    assert looked <= 4


def test_a_run_that_does_not_grow_is_never_looked_at() -> None:
    assert run(nn.Sequential(Block(), Block())) == ([], 0)


def test_growth_that_ends_is_looked_at_and_is_no_leak() -> None:
    watch = LeakWatch(nn.Linear(1, 1))
    said = [watch.after_step(step, step * MIB) for step in range(1, GROWING_STEPS + 2)]
    assert said == [False] * GROWING_STEPS + [True]

    for step in range(7, 9):
        with watch.looking():
            torch.ones(4)
        assert watch.after_step(step, None) is (step == 7)

    assert watch.finding() is None


def test_steps_that_were_not_measured_count_for_nothing() -> None:
    watch = LeakWatch(nn.Linear(1, 1))

    assert not any(watch.after_step(step, None) for step in range(1, 100))


def test_a_finding_is_told_once() -> None:
    losses: list[Tensor] = []
    findings, _ = run(nn.Sequential(Block()), losses.append, steps=GROWING_STEPS + 12)

    assert len(findings) == 1


def test_looking_changes_no_weight() -> None:
    weights = []
    for looks in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(Block(), Block())
        optimizer = torch.optim.AdamW(model.parameters())
        watch = LeakWatch(model)
        x = torch.randn(8, 16)
        for _ in range(2):
            if looks:
                with watch.looking():
                    model(x).square().mean().backward()
                    optimizer.step()
            else:
                model(x).square().mean().backward()
                optimizer.step()
        weights.append([p.detach().clone() for p in model.parameters()])

    for one, other in zip(*weights, strict=True):
        assert torch.equal(one, other)
