"""``torch.cuda`` as the virtual GPU answers it."""

from __future__ import annotations

from typing import Any

import torch

from memfit.records.device import Device
from memfit.tracing.virtual.dispatch import Dispatch


def install(gpu: Dispatch, card: Device) -> None:
    """Replaces the questions of ``torch.cuda``."""
    allocator = gpu.ledger.allocator
    major, minor = (int(part) for part in card.compute_capability.split("."))
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: gpu.ledger.act("synchronize"),
        "empty_cache": lambda: gpu.ledger.act("empty_cache"),
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_name": lambda device=None: card.label,
        "get_device_capability": lambda device=None: (major, minor),
        "memory_allocated": lambda device=None: allocator.allocated_bytes,
        "max_memory_allocated": lambda device=None: allocator.peak_allocated_bytes,
        "memory_reserved": lambda device=None: allocator.reserved_bytes,
        "max_memory_reserved": lambda device=None: allocator.peak_reserved_bytes,
        "reset_peak_memory_stats": lambda device=None: gpu.ledger.act("reset_peak"),
        "memory_stats": lambda device=None: allocator.stats(),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
        if hasattr(torch.cuda.memory, name):
            setattr(torch.cuda.memory, name, answer)
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
