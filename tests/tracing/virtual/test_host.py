"""Large parameters on the host need neither memory nor time before they move to the GPU."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

OnGpu = Callable[..., Any]
GIB = 2**30


def test_two_gib_of_parameters_take_no_memory_on_their_way_to_the_gpu(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        def resident_bytes() -> int:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        began, before = time.perf_counter(), resident_bytes()
        model = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(8)))
        model = model.bfloat16().float()
        saved = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(saved)
        model.to("cuda", torch.bfloat16)
        back = [value.cpu() for value in model.state_dict().values()]
        places = {str(value.device) for value in back}
        return (
            torch.cuda.memory_allocated(),
            places,
            resident_bytes() - before < 64 * 2**20,
            time.perf_counter() - began < 5,
        )

    assert on_gpu(ask) == (GIB, {"cpu"}, True, True)


def test_they_are_ordinary_tensors_of_the_host(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        model = nn.Linear(1024, 512)
        x = torch.ones(2, 1024)
        model(x).sum().backward()
        weight = model.weight
        with torch.no_grad():
            weight[0, 0] = 3.0
        return (
            str(weight.device),
            weight.is_cpu,
            weight.detach().numpy()[0, :2].tolist(),
            weight.grad is not None and weight.grad[0, 0].item() == 2.0,
            torch.isfinite(model(x)).all().item(),
        )

    assert on_gpu(ask) == ("cpu", True, [3.0, 0.0], True, True)


def test_small_parameters_are_initialized_for_real(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        gate = nn.Parameter(torch.full((4,), 0.5))
        return gate.tolist(), nn.Linear(16, 16).weight.abs().sum().item() > 0

    assert on_gpu(ask) == ([0.5] * 4, True)


def test_gradients_flow_through_a_move_of_a_large_parameter(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        weight = nn.Parameter(torch.empty(1024, 512))
        (weight.to("cuda") * 2).sum().backward()
        assert weight.grad is not None
        return str(weight.grad.device), weight.grad.shape

    assert on_gpu(ask) == ("cpu", (1024, 512))


def test_what_waits_in_pinned_memory_takes_no_memory(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        def resident_bytes() -> int:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        before = resident_bytes()
        waiting = []
        for dtype in (torch.float32, torch.bfloat16, torch.bool):
            made = torch.empty(2**28, dtype=dtype, device="cuda")
            pinned = torch.empty_like(made, device="cpu", pin_memory=True)
            pinned.copy_(made, non_blocking=True)
            waiting.append(pinned)
        back = [tensor.to("cuda", non_blocking=True).dtype for tensor in waiting]
        numbers = torch.empty(2**20, dtype=torch.int64, pin_memory=True).copy_(torch.arange(2**20))
        return back, resident_bytes() - before < 64 * 2**20, int(numbers[-1])

    dtypes = [torch.float32, torch.bfloat16, torch.bool]
    assert on_gpu(ask) == (dtypes, True, 2**20 - 1)


def test_optimizers_leave_out_what_has_no_memory_and_update_the_rest(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        large, small = nn.Parameter(torch.empty(2**18)), nn.Parameter(torch.ones(4))
        optimizer = torch.optim.AdamW([large, small], lr=0.5, weight_decay=0.0)
        for parameter in (large, small):
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert large.grad is not None
        return large in optimizer.state, small in optimizer.state, small.max().item() < 1

    assert on_gpu(ask) == (False, True, True)
