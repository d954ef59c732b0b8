"""What the user hands us: how to build the model, a batch, and the loss.

A :class:`Job` says nothing about memory: the techniques that change it are a ``Recipe``.
The same three functions run without data when memfit predicts and with data when it trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from memfit.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor, nn

    Loss: TypeAlias = Tensor | tuple[Tensor, Tensor | int]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job, before any technique is applied.

    Raises:
        BadInput: a field is not callable, or ``seq_len`` is not positive.
    """

    model: Callable[[], nn.Module]
    """Builds the model, freshly initialised, in fp32, on the default device."""

    batch: Callable[[int, int], Any]
    """``(batch_size, seq_len)`` -> anything the loss takes: a tensor, or a tuple, list or dict of
    tensors whose dim 0 is the sample.  Jobs without a sequence ignore ``seq_len``."""

    loss: Callable[[nn.Module, Any], Loss]
    """``(model, batch)`` -> the mean loss over the batch, a scalar; or
    ``(sum of losses, number of targets)`` where targets are masked or vary in number."""

    name: str = "job"
    """What reports call it."""

    seq_len: int | None = None
    """The sequence length when none is asked for, in tokens; None for a job without sequences."""

    vocab_size: int | None = None
    """For a language model whose batch is token ids (B, T+1): ids are below this."""

    def __post_init__(self) -> None:
        for field in ("model", "batch", "loss"):
            if not callable(getattr(self, field)):
                raise BadInput(f"Job.{field} must be a function, not {getattr(self, field)!r}")
        if self.seq_len is not None and self.seq_len < 1:
            raise BadInput(f"Job.seq_len is {self.seq_len}: a sequence has at least one token")
