"""CUDA graphs, captured by running the work once: a replay asks for no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.tracing.virtual.dispatch import Dispatch


class CUDAGraph:
    """``torch.cuda.CUDAGraph``."""

    def __new__(cls, *args: Any, **kwargs: Any) -> CUDAGraph:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: (0, 1) if name == "pool" else None


class graph:  # noqa: N801  # torch's name
    """``with torch.cuda.graph(g):`` runs its body on a stream of its own."""

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, **mode: Any) -> None:
        self._stream = stream or torch.cuda.Stream()

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._stream.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._stream.__exit__(*exception)


def install(gpu: Dispatch) -> None:
    """Replaces what captures."""

    def told(cls: type) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            gpu.facts["CUDA graphs"] = "captured work was run once, without pools of its own"
            return cls(*args, **kwargs)

        return make

    def graphed(callables: Any, *args: Any, **kwargs: Any) -> Any:
        gpu.facts["CUDA graphs"] = "captured work was run once, without pools of its own"
        return callables

    cuda: Any = torch.cuda
    for module in (cuda, cuda.graphs):
        module.CUDAGraph = CUDAGraph
        module.graph = told(graph)
        module.make_graphed_callables = graphed
        module.graph_pool_handle = lambda: (0, 1)
        module.is_current_stream_capturing = lambda: False
