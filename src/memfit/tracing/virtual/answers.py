"""``torch.cuda`` and ``torch.accelerator`` as the virtual GPU answers them.

Python's side of them is left as it is: it checks arguments, formats summaries, keeps defaults.
What it asks of C++, ``torch._C._cuda_*``, is answered here from the card's record and the ledger's
allocator; builds without CUDA have no such functions, builds with it have ones for a real driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.cuda.nvtx

from memfit.records.device import Device
from memfit.tracing.virtual import generators, graphs, streams
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.properties import capability, properties

_CUDA_OF_TORCH = {(2, 6): "12.4", (2, 7): "12.6", (2, 8): "12.8", (2, 9): "12.8", (2, 10): "12.8"}
"""CUDA of the wheels that ``pip install torch`` gives; from 2.11 on it is 13.0 (pytorch.org,
"Previous PyTorch Versions", and RELEASE.md's compatibility matrix)."""

_CUDNN = 91900
"""cuDNN 9.19.0, which torch 2.11's wheel for CUDA 13.0 asks for (METADATA, Requires-Dist); other
versions differ in the second number."""

_OUT_OF_RANGE = (
    "CUDA error: invalid device ordinal\n"
    "GPU device may be out of range, do you have enough GPUs? (the virtual machine has one)"
)


def install(gpu: Dispatch, card: Device) -> None:
    """Puts the answers in place."""
    cuda: Any = torch.cuda
    cuda._initialized = True
    cuda._is_in_bad_fork = lambda: False
    cuda._queued_calls.clear()
    cuda._cudart = _Runtime(gpu, card)
    of_card = properties(card)
    cuda._get_device_properties = lambda device: of_card
    cuda.device_count = lambda: 1
    cuda._exchange_device = cuda._maybe_exchange_device = _exchange
    version = gpu.ledger.allocator.version
    cuda_version = _CUDA_OF_TORCH.get((version.major, version.minor), "13.0")
    torch.version.cuda = torch.version.cuda or cuda_version
    for name, answer in {
        **_of_device(card),
        **_of_memory(gpu, card),
    }.items():
        setattr(torch._C, f"_cuda_{name}", answer)
    for name, answer in _of_accelerator(gpu, card).items():
        setattr(torch._C, f"_accelerator_{name}", answer)
    torch._C._get_accelerator = lambda *check: torch.device("cuda")
    _install_monitoring(gpu, card)
    _install_backends()
    streams.install(gpu)
    generators.install()
    graphs.install(gpu)


class _Runtime:
    """``torch.cuda.cudart()``."""

    class cudaError:  # noqa: N801  # CUDA's name
        """Codes that callers compare with."""

        success = 0

    def __init__(self, gpu: Dispatch, card: Device) -> None:
        self._gpu = gpu
        self._card = card

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802
        """(free, total) bytes of the device: free is what neither context nor segments hold."""
        return _free_bytes(self._gpu, self._card), self._card.total_bytes

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802
        """What a code means."""
        return "no error" if code == 0 else f"error {code}"

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *args, **kwargs: 0


def _free_bytes(gpu: Dispatch, card: Device) -> int:
    held = card.context_bytes + gpu.ledger.allocator.reserved_bytes
    return max(card.total_bytes - held, 0)


def _exchange(device: int) -> int:
    _check_ordinal(device)
    return 0


def _check_ordinal(device: int | None) -> None:
    if device is not None and device > 0:
        raise torch.AcceleratorError(_OUT_OF_RANGE)


def _of_device(card: Device) -> dict[str, Callable[..., Any]]:
    major, minor = capability(card)
    return {
        "getDeviceCount": lambda: 1,
        "getDevice": lambda: 0,
        "setDevice": _check_ordinal,
        "exchangeDevice": _exchange,
        "maybeExchangeDevice": _exchange,
        "init": lambda: None,
        "isInBadFork": lambda: False,
        "getArchFlags": lambda: f"sm_{major}{minor}",
        "canDeviceAccessPeer": lambda device, peer: False,
        "getCurrentBlasHandle": lambda: 1,
        "getCurrentSolverHandle": lambda: 1,
        "set_sync_debug_mode": lambda mode: None,
        "get_sync_debug_mode": lambda: 0,
        "ipc_collect": lambda: None,
        "sleep": lambda cycles: None,
        "isCurrentStreamCapturing": lambda: False,
        "clearCublasWorkspaces": lambda: None,
    }


def _of_memory(gpu: Dispatch, card: Device) -> dict[str, Callable[..., Any]]:
    allocator = gpu.ledger.allocator

    def share(fraction: float, device: int | None = None) -> None:
        # The live allocator has room for all, so that a run that does not fit is seen to its end.
        gpu.facts["per_process_memory_fraction"] = str(fraction)

    return {
        "emptyCache": lambda: gpu.ledger.act("empty_cache"),
        "synchronize": lambda: gpu.ledger.act("synchronize"),
        "resetPeakMemoryStats": lambda device=None: gpu.ledger.act("reset_peak"),
        "resetAccumulatedMemoryStats": lambda device=None: None,
        "memoryStats": lambda device=None: _nested(allocator.stats()),
        "memorySnapshot": lambda *which: _snapshot(gpu),
        "hostMemoryStats": dict,
        "resetPeakHostMemoryStats": lambda: None,
        "resetAccumulatedHostMemoryStats": lambda: None,
        "record_memory_history": lambda *args, **kwargs: None,
        "record_memory_history_legacy": lambda *args, **kwargs: None,
        "allocationTraceback": lambda address: None,
        "setMemoryMetadata": lambda text: None,
        "getMemoryMetadata": lambda: "",
        "setMemoryFraction": share,
        "getMemoryFraction": lambda device=None: float(
            gpu.facts.get("per_process_memory_fraction", "1")
        ),
        "getAllocatorBackend": lambda: "native",
        "cudaCachingAllocator_is_enabled": lambda: True,
        "cudaCachingAllocator_enable": lambda value: None,
        "cudaCachingAllocator_set_allocator_settings": lambda text: None,
    }


def _of_accelerator(gpu: Dispatch, card: Device) -> dict[str, Callable[..., Any]]:
    allocator = gpu.ledger.allocator
    return {
        "getAccelerator": lambda: torch.device("cuda"),
        "isAllocatorInitialized": lambda: True,
        "getDeviceIndex": lambda: 0,
        "setDeviceIndex": _check_ordinal,
        "exchangeDevice": _exchange,
        "maybeExchangeDevice": _exchange,
        "synchronizeDevice": lambda device=None: gpu.ledger.act("synchronize"),
        "emptyCache": lambda: gpu.ledger.act("empty_cache"),
        "emptyHostCache": lambda: None,
        "getDeviceStats": lambda device=None: _nested(allocator.stats()),
        "resetPeakStats": lambda device=None: gpu.ledger.act("reset_peak"),
        "resetAccumulatedStats": lambda device=None: None,
        "getMemoryInfo": lambda device=None: (_free_bytes(gpu, card), card.total_bytes),
        "setAllocatorSettings": lambda text: None,
    }


def _nested(stats: dict[str, int]) -> dict[str, Any]:
    """``{"allocated_bytes.all.peak": n}`` as ``{"allocated_bytes": {"all": {"peak": n}}}``."""
    tree: dict[str, Any] = {}
    for key, value in stats.items():
        *path, last = key.split(".")
        branch = tree
        for name in path:
            branch = branch.setdefault(name, {})
        branch[last] = value
    return tree


def _snapshot(gpu: Dispatch) -> dict[str, Any]:
    """``torch.cuda.memory._snapshot()``: the layout now; actions are not recorded a second time."""
    segments = []
    for segment in gpu.ledger.allocator.segments():
        blocks: list[dict[str, Any]] = [
            {
                "address": segment.address + block.offset,
                "size": block.num_bytes,
                "requested_size": block.requested_bytes,
                "state": "active_allocated" if block.requested_bytes else "inactive",
                "frames": [],
            }
            for block in segment.blocks
        ]
        used = sum(block.num_bytes for block in segment.blocks if block.requested_bytes)
        segments.append(
            {
                "device": 0,
                "address": segment.address,
                "total_size": segment.num_bytes,
                "allocated_size": used,
                "active_size": used,
                "requested_size": sum(block.requested_bytes for block in segment.blocks),
                "stream": segment.stream,
                "segment_type": "small" if segment.is_small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": segment.is_expandable,
                "frames": [],
                "blocks": blocks,
            }
        )
    return {"segments": segments, "device_traces": [[]], "external_annotations": []}


def _install_monitoring(gpu: Dispatch, card: Device) -> None:
    """What torch asks of NVML, and the profiler's ranges."""
    cuda: Any = torch.cuda
    for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate"):
        setattr(cuda, name, lambda device=None: 0)

    def used(device: Any = None) -> int:
        return card.context_bytes + gpu.ledger.allocator.reserved_bytes

    def processes(device: Any = None) -> str:
        return f"GPU:0\nprocess {os.getpid():>10d} uses {used() / 2**20:>12.3f} MB GPU memory"

    cuda.device_memory_used = used
    cuda.list_gpu_processes = cuda.memory.list_gpu_processes = processes
    # A prediction leaves no files in the user's folder.
    cuda.memory._dump_snapshot = lambda filename="", **kwargs: None
    cuda.memory._record_memory_history = lambda *args, **kwargs: None
    cuda.nvtx._nvtx = _Ranges()


class _Ranges:
    """NVTX, to which nobody listens."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args: 0


def _install_backends() -> None:
    torch.backends.cuda.is_built = lambda: True
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: _CUDNN
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
