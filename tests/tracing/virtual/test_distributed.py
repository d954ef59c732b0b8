"""One process of one GPU: process groups, DataParallel, FSDP, processes started by the script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

OnGpu = Callable[..., Any]


def test_a_group_without_a_place_is_the_error_that_it_would_be(
    on_gpu: OnGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="environment variable RANK expected, but not set"):
        on_gpu(lambda: dist.init_process_group("nccl"))


def test_collectives_of_one_rank_give_back_what_they_get(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
        x = torch.arange(3, device="cuda")
        gathered = [torch.zeros(3, dtype=torch.int64, device="cuda")]
        dist.all_gather(gathered, x)
        dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        objects: list[Any] = ["a"]
        dist.broadcast_object_list(objects, src=0)
        group = dist.new_group([0])
        return (
            dist.get_backend(),
            dist.get_backend(group),
            x.tolist(),
            gathered[0].tolist(),
            work.get_future().value()[0].tolist(),
            objects,
        )

    assert on_gpu(ask) == ("nccl", "nccl", [0, 1, 2], [0, 1, 2], [0, 1, 2], ["a"])


def test_a_shard_of_eight_holds_an_eighth(traced_on_gpu: OnGpu) -> None:
    def ask() -> Any:
        dist.init_process_group("nccl", rank=0, world_size=8)
        model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4))).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        model(torch.randn(8, 512, device="cuda")).sum().backward()
        return held, {str(parameter.device) for parameter in model.parameters()}

    (held, places), timeline = traced_on_gpu(ask)
    assert (held, places) == (4 * 512 * 512 * 4 // 8, {"cuda:0"})
    assert timeline.facts["ranks"] == "rank 0 of 8; the others were not run"


def test_spawned_ranks_run_here(on_gpu: OnGpu) -> None:
    def ask() -> list[tuple[int, str]]:
        seen: list[tuple[int, str]] = []

        def main(rank: int, word: str) -> None:
            torch.zeros(1, device=rank)
            seen.append((rank, word))

        torch.multiprocessing.spawn(main, args=("hello",), nprocs=torch.cuda.device_count())
        return seen

    assert on_gpu(ask) == [(0, "hello")]


def test_data_parallel_uses_the_one_gpu(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        model = nn.DataParallel(nn.Linear(4, 4)).cuda()
        output = model(torch.randn(2, 4))
        output.sum().backward()
        return str(output.device), model.module.weight.grad.shape

    assert on_gpu(ask) == ("cuda:0", (4, 4))
