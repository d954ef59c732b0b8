"""Registers the virtual GPU with PyTorch, as the out-of-tree device type PrivateUse1.

This cannot be undone in a process, which is why a trace has one of its own (``run``).  Needs
``torch._C._acc``, which torch has since 2.10.
"""

from __future__ import annotations

import types
from contextlib import nullcontext

import torch
from torch.utils import backend_registration

NAME = "vgpu"
"""The device type's name in C++; ``cuda`` is refused there.  Python is told ``cuda``."""


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """What C++ asks of a device type."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


def register() -> torch.device:
    """Makes ``vgpu:0`` a device of this process, and returns it."""
    backend_registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=_module(), hook=_Hooks()
    )
    return torch.device(NAME, 0)


def _module() -> types.ModuleType:
    """``torch.vgpu``: what torch asks of a device type in Python."""
    module = types.ModuleType(NAME)
    answers = {
        "device": nullcontext,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "_is_in_bad_fork": lambda: False,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device=None: None,
    }
    for name, answer in answers.items():
        setattr(module, name, answer)
    return module
