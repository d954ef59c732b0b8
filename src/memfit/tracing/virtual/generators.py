"""CUDA's random generators: seeds and states are kept, numbers are never drawn from them."""

from __future__ import annotations

from typing import Any

import torch

_STATE_BYTES = 16
"""Seed and offset of Philox (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp: get_state)."""

_Original = torch.Generator


class _IsGenerator(type(_Original)):  # type: ignore[misc]  # computed base
    """Lets ``isinstance(x, torch.Generator)`` say what it says of generators made before."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Original)


class Generator(_Original, metaclass=_IsGenerator):
    """``torch.Generator``: on the host the real one; on the virtual GPU a seed and an offset."""

    _on_gpu: bool

    def __new__(cls, device: Any = "cpu") -> Generator:
        on_gpu = _is_cuda(device)
        made: Generator = _Original.__new__(cls, "cpu" if on_gpu else device)  # type: ignore[call-arg]
        made._on_gpu = on_gpu
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it is."""
        return torch.device("cuda", 0) if self._on_gpu else torch.device("cpu")

    def get_state(self) -> torch.Tensor:
        """Seed and offset on the GPU; on the host the whole state of its generator."""
        if not self._on_gpu:
            return super().get_state()
        state = torch.zeros(_STATE_BYTES // 8, dtype=torch.int64)
        state[0] = self.initial_seed() & (2**63 - 1)
        return state.view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> Generator:
        """Takes a state that ``get_state`` gave."""
        if not self._on_gpu:
            super().set_state(state)
        else:
            self.manual_seed(int(state.view(torch.int64)[0]))
        return self


def _is_cuda(device: Any) -> bool:
    return isinstance(device, int) or torch.device(device).type == "cuda"


def install() -> None:
    """Replaces ``torch.Generator``, and makes the GPU's default one."""
    package: Any = torch
    package.Generator = Generator
    package.cuda.default_generators = (Generator("cuda"),)
