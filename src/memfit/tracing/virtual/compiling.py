"""``torch.compile`` and its elders are traced eagerly: what runs is the code they were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.profiler
from torch import nn

from memfit.tracing.virtual.dispatch import Dispatch

COMPILED = "torch.compile was traced eagerly: compiled code fuses ops and may need less"


def install(gpu: Dispatch) -> None:
    """Replaces compilers by nothing, and the profiler by one that leaves the GPU alone."""

    def compile(model: Any = None, **options: Any) -> Any:  # noqa: A001  # torch's name
        gpu.facts["compile"] = COMPILED
        return _as_compiled if model is None else _as_compiled(model)

    def compile_module(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        gpu.facts["compile"] = COMPILED

    def script(obj: Any = None, *args: Any, **kwargs: Any) -> Any:
        return _same if obj is None else obj

    def trace(func: Any, *args: Any, **kwargs: Any) -> Any:
        return func

    package: Any = torch
    modules: Any = nn.Module
    package.compile = compile
    modules.compile = compile_module
    package.jit.script = script
    package.jit.trace = trace
    _install_profiler()


def _same(value: Any) -> Any:
    return value


def _as_compiled(model: Any) -> Any:
    """A compiled module is a wrapper, which users unwrap by its ``_orig_mod``."""
    if isinstance(model, nn.Module):
        model.__dict__["_orig_mod"] = model
    return model


def _install_profiler() -> None:
    """A CUDA activity would make the profiler ask the driver for events."""
    activity = torch.profiler.ProfilerActivity.CPU

    class profile(torch.profiler.profile):  # noqa: N801  # torch's name
        """``torch.profiler.profile`` of the host's side."""

        def __init__(self, *, activities: Any = None, **kwargs: Any) -> None:
            super().__init__(activities=[activity], **kwargs)

    package: Any = torch
    package.profiler.profile = profile
    initial: Callable[..., None] = package.autograd.profiler.profile.__init__

    def on_host(self: Any, enabled: bool = True, **kwargs: Any) -> None:
        for name in ("use_cuda", "use_device"):
            kwargs.pop(name, None)
        initial(self, enabled, **kwargs)

    package.autograd.profiler.profile.__init__ = on_host
