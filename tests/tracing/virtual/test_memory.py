"""Memory of the virtual GPU: addresses that tell storages apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.tracing.virtual import memory
from memfit.tracing.virtual.memory import DeviceMemory

OnGpu = Callable[..., Any]


def test_at_the_end_of_the_range_addresses_begin_anew_where_no_storage_lives(on_gpu: OnGpu) -> None:
    def run() -> tuple[list[int], list[int]]:
        memory._REGION_BYTES = 4096
        freed: list[int] = []
        small = DeviceMemory(freed.append)
        kept, first = small.tensor([128], [1], torch.float32, 512)
        places = [0]
        for _ in range(9):
            tensor, address = small.tensor([256], [1], torch.float32, 1024)
            places.append(address - first)
            del tensor
        del kept
        return places, [address - first for address in freed]

    places, freed = on_gpu(run)
    assert places == [0, 512, 1536, 2560, 512, 1536, 2560, 512, 1536, 2560]
    assert freed == [*places[1:], 0]
