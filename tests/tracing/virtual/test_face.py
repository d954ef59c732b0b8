"""Python is told that the virtual GPU is ``cuda:0``."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

OnGpu = Callable[..., Any]


def test_a_tensor_says_that_it_is_on_cuda_0(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        x = torch.zeros(2, 3, device="cuda")
        return (
            str(x.device),
            x.device == torch.device("cuda:0"),
            x.is_cuda,
            x.is_cpu,
            x.get_device(),
            x.type(),
            type(x) is torch.Tensor,
            str(x.untyped_storage().device),
        )

    expected = ("cuda:0", True, True, False, 0, "torch.cuda.FloatTensor", True, "cuda:0")
    assert on_gpu(ask) == expected


PLACES: dict[str, Callable[[], torch.Tensor]] = {
    "device=": lambda: torch.zeros(2, device="cuda"),
    "device= an index": lambda: torch.zeros(2, device=0),
    "to a name": lambda: torch.zeros(2).to("cuda"),
    "to a device": lambda: torch.zeros(2).to(torch.device("cuda")),
    "to an index": lambda: torch.zeros(2).to(0),
    "to a keyword": lambda: torch.zeros(2).to(device="cuda:0", dtype=torch.float16),
    "to another": lambda: torch.zeros(2).to(torch.zeros(1, device="cuda")),
    "cuda": lambda: torch.zeros(2).cuda(),
    "cuda with an index": lambda: torch.zeros(2).cuda(0, non_blocking=True),
    "type by name": lambda: torch.zeros(2).type("torch.cuda.HalfTensor"),
    "type by class": lambda: torch.zeros(2).type(torch.cuda.LongTensor),
    "type_as": lambda: torch.zeros(2).type_as(torch.zeros(1, device="cuda")),
    "a tensor type": lambda: torch.cuda.FloatTensor([1.0, 2.0]),
    "new_zeros": lambda: torch.zeros(1).new_zeros(2, device="cuda"),
    "new_tensor": lambda: torch.zeros(1, device="cuda").new_tensor([1, 2]),
    "like": lambda: torch.zeros_like(torch.zeros(2), device="cuda"),
    "like one there": lambda: torch.rand_like(torch.zeros(2, device="cuda")),
    "tensor": lambda: torch.tensor([1, 2], device="cuda"),
    "as_tensor": lambda: torch.as_tensor(np.zeros(2), device="cuda"),
    "randperm": lambda: torch.randperm(4, device="cuda"),
    "arange": lambda: torch.arange(4, device="cuda"),
    "normal": lambda: torch.normal(0.0, 1.0, (2,), device="cuda"),
    "pinned": lambda: torch.zeros(2, pin_memory=True).to("cuda", non_blocking=True),
    "a module": lambda: nn.Linear(2, 2, device="cuda").weight,
}


@pytest.mark.parametrize("place", PLACES)
def test_every_way_to_the_gpu_leads_there(on_gpu: OnGpu, place: str) -> None:
    assert on_gpu(lambda: str(PLACES[place]().device)) == "cuda:0"


def test_contexts_and_defaults_choose_the_gpu(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        with torch.device("cuda"):
            inside = nn.Linear(2, 2).weight.device
        torch.set_default_device("cuda")
        default = torch.zeros(1).device, torch.get_default_device()
        torch.set_default_device("cpu")
        return [str(device) for device in (inside, *default, torch.zeros(1).device)]

    assert on_gpu(ask) == ["cuda:0", "cuda:0", "cuda:0", "cpu"]


def test_host_tensors_keep_their_values(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        x = torch.arange(6.0).view(2, 3)
        return (x @ x.T).tolist(), str(x.device), x.numpy().sum()

    assert on_gpu(ask) == ([[5.0, 14.0], [14.0, 50.0]], "cpu", 15.0)


def test_known_numbers_come_back_and_unknown_ones_are_harmless(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        known, unknown = torch.tensor([3, 4], device="cuda"), torch.randn(2, device="cuda")
        return known.tolist(), known.cpu().numpy().tolist(), unknown.tolist(), unknown.sum().item()

    assert on_gpu(ask) == ([3, 4], [3, 4], [1.0, 1.0], 1.0)


def test_unknown_numbers_are_not_lent_to_numpy(on_gpu: OnGpu) -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        on_gpu(lambda: torch.zeros(2, device="cuda").numpy())


def test_text_shows_known_numbers_and_where_they_are(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        x = torch.randn(2, 3, device="cuda", requires_grad=True)
        return (
            repr(torch.arange(3, device="cuda")),
            repr(x),
            str(x * 2),
            f"{x.sum():.2f}",
            repr(torch.zeros(1)),
        )

    assert on_gpu(ask) == (
        "tensor([0, 1, 2], device='cuda:0')",
        "tensor(..., device='cuda:0', size=(2, 3), requires_grad=True)",
        "tensor(..., device='cuda:0', size=(2, 3), grad_fn=<MulBackward0>)",
        "1.00",
        "tensor([0.])",
    )


def test_parameters_stay_the_same_objects_when_a_module_moves(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen: list[Any] = []
        model[0].weight.register_hook(lambda grad: seen.append(grad.shape))
        before = [id(parameter) for parameter in model.parameters()]
        model.cuda()
        model(torch.randn(4, 3, device="cuda")).sum().backward()
        optimizer.step()
        same = before == [id(parameter) for parameter in model.parameters()]
        model.cpu()
        places = {str(value.device) for value in model.state_dict().values()}
        grads = {str(parameter.grad.device) for parameter in model.parameters()}
        return same, len(seen), places, grads, len(optimizer.state)

    assert on_gpu(ask) == (True, 1, {"cpu"}, {"cpu"}, 4)


def test_copies_of_modules_take_memory_of_their_own(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).cuda()
        before = torch.cuda.memory_allocated()
        twin = copy.deepcopy(model)
        taken = torch.cuda.memory_allocated() - before
        tied = copy.deepcopy([model[0].weight.data, model[0].weight.data.t()])
        shares = tied[0].data_ptr() == tied[1].data_ptr()
        return before == taken, str(next(twin.parameters()).device), shares

    assert on_gpu(ask) == (True, "cuda:0", True)


def test_tensors_pickle_as_descriptions_of_themselves(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        known = torch.arange(3, device="cuda")
        unknown = nn.Parameter(torch.randn(1000, 1000, device="cuda"))
        text = pickle.dumps((known, unknown, unknown.t()))
        first, second, third = pickle.loads(text)
        return (
            len(text) < 5000,
            first.tolist(),
            (str(second.device), second.shape, second.requires_grad, type(second).__name__),
            third.stride(),
        )

    assert on_gpu(ask) == (
        True,
        [0, 1, 2],
        ("cuda:0", (1000, 1000), True, "Parameter"),
        (1, 1000),
    )


def test_storages_can_be_emptied_and_regrown_in_place(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        x = torch.empty(1024, device="cuda")
        storage = x.untyped_storage()
        told = [storage.nbytes(), torch.cuda.memory_allocated()]
        storage.resize_(0)
        told += [storage.size(), torch.cuda.memory_allocated()]
        storage.resize_(4096)
        told += [storage.size(), torch.cuda.memory_allocated()]
        del x, storage
        return [*told, torch.cuda.memory_allocated()]

    assert on_gpu(ask) == [4096, 4096, 0, 0, 4096, 4096, 0]


def test_exceptions_pass_through_tensors_that_they_drop(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        def fail() -> None:
            raise LookupError("mine")

        caught = []
        for _ in range(3):
            try:
                torch.add(torch.randn(3, device="cuda") + 1, fail())
            except LookupError as error:
                caught.append(str(error))
        return caught, torch.cuda.memory_allocated()

    assert on_gpu(ask) == (["mine"] * 3, 0)


class OnTheGpu(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1, device="cuda")


def test_a_worker_that_touches_the_gpu_is_told_what_cuda_would_tell(on_gpu: OnGpu) -> None:
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        on_gpu(lambda: list(DataLoader(OnTheGpu(), num_workers=1)))


def test_compilers_hand_back_what_they_are_given(traced_on_gpu: OnGpu) -> None:
    def ask() -> Any:
        model = nn.Linear(2, 2).cuda()
        compiled = torch.compile(model, mode="max-autotune")

        @torch.compile(dynamic=True)
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        model.compile()
        return (
            compiled._orig_mod is model,
            list(compiled.state_dict()),
            double(torch.ones(1, device="cuda")).item(),
        )

    answer, timeline = traced_on_gpu(ask)
    assert answer == (True, ["weight", "bias"], 2.0)
    assert timeline.facts["compile"].startswith("torch.compile was traced eagerly")


def test_the_profiler_leaves_the_gpu_alone(on_gpu: OnGpu) -> None:
    def ask() -> int:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
            torch.ones(2, device="cuda") * 2
        return len(profiler.key_averages())

    assert on_gpu(ask) > 0
