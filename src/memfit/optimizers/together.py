"""Several optimizers as one."""

from __future__ import annotations

import torch


def parts(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizers that ``optimizer`` is made of; itself where it is an ordinary one."""
    return [optimizer]
