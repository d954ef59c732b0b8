"""Kernels: what the choice of CUDA kernels and their memory hang on."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.allocator.version import TorchVersion
from memfit.records.device import Device


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """A card and a torch, as far as hidden memory depends on them."""

    capability: tuple[int, int]
    """CUDA compute capability, e.g. (9, 0)."""

    sms: int
    """Streaming multiprocessors."""

    threads_per_sm: int
    """Most threads resident on one of them."""

    shared_memory_per_block_bytes: int
    """Most shared memory a block can opt in to."""

    version: TorchVersion

    deterministic: bool = False
    """``torch.use_deterministic_algorithms(True)``."""

    cublas_workspace_config: str = ""
    """``CUBLAS_WORKSPACE_CONFIG``."""

    cublaslt_workspace_kib: int = 1024
    """``CUBLASLT_WORKSPACE_SIZE``; from 2.11 on it matters no more (``products``)."""


def kernels_for(
    card: Device,
    version: TorchVersion,
    *,
    deterministic: bool = False,
    cublas_workspace_config: str = "",
) -> Kernels:
    """The kernels that a torch runs on a card.

    Raises:
        ValueError: the card is no GPU.
    """
    if card.kind != "cuda":
        raise ValueError(f"{card.name} is not a GPU: it runs no CUDA kernels")
    major, minor = card.compute_capability.split(".")
    return Kernels(
        capability=(int(major), int(minor)),
        sms=card.sms,
        threads_per_sm=card.threads_per_sm,
        shared_memory_per_block_bytes=card.shared_memory_per_block_bytes,
        version=version,
        deterministic=deterministic,
        cublas_workspace_config=cublas_workspace_config,
    )
