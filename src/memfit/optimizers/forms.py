"""Which form of an optimizer PyTorch has for some parameters."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Those with fused AdamW and SGD, as in ``torch/utils/_foreach_utils.py``,
``_get_fused_kernels_supported_devices``, which names a few more that memfit does not know."""


def has_fused(parameters: Sequence[Tensor]) -> bool:
    """Whether AdamW and SGD can update these in one kernel, which allocates nothing."""
    return all(p.is_floating_point() and p.device.type in _DEVICES for p in parameters)
