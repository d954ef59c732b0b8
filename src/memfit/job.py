"""What the user hands us: how to build the model, a batch, and the loss.

A :class:`Job` says nothing about memory: the techniques that change it are a ``Recipe``.
The same three functions run without data when memfit predicts and with data when it trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from memfit.errors import BadInput
from memfit.records.recipe import SEQUENCES

if TYPE_CHECKING:
    from torch import Tensor, nn

    Loss: TypeAlias = Tensor | tuple[Tensor, Tensor | int] | Mapping[str, Any]

IGNORED = -100
"""The label of a position that is no target: the default ``ignore_index`` of cross-entropy."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job, before any technique is applied.

    Raises:
        BadInput: a field is not callable, a size is not positive, or ``seq_len`` is above
            ``max_seq_len``.
    """

    model: Callable[[], nn.Module]
    """Builds the model, freshly initialised, in the default dtype (fp32 unless a recipe says
    otherwise), on the default device."""

    batch: Callable[[int, int], Any]
    """``(batch_size, seq_len)`` -> anything the loss takes: a tensor, or a tuple, list or mapping
    of tensors whose dim 0 is the sample.  Jobs without a sequence ignore ``seq_len``."""

    loss: Callable[[nn.Module, Any], Loss]
    """``(model, batch)`` -> the mean loss over the batch, a scalar, or a mapping with it as
    ``"loss"``, as Hugging Face's models return; or ``(sum of losses, number of targets)`` where
    targets are masked or vary in number."""

    name: str = "job"
    """What reports call it."""

    seq_len: int | None = None
    """The sequence length when none is asked for, in tokens; None for a job without sequences."""

    max_seq_len: int | None = None
    """The longest sequence the model can take, in tokens; None where nothing limits it."""

    vocab_size: int | None = None
    """For a language model whose batch is token ids (B, T+1): ids are below this."""

    sequences: tuple[str, ...] = ("rows",)
    """What a sample may be, as ``Recipe.sequences``.  For ``documents`` the loss takes a dict of
    ``input_ids`` and ``labels``, int64 (B, T), and ``num_targets``, int64 (B,); labels are shifted
    already, and IGNORED where there is no target.  For ``packed`` there are also ``position_ids``,
    int64 (B, T), that begin again at each document, which must see nothing of the others."""

    def __post_init__(self) -> None:
        for field in ("model", "batch", "loss"):
            if not callable(getattr(self, field)):
                raise BadInput(f"Job.{field} must be a function, not {getattr(self, field)!r}")
        if self.vocab_size is not None and self.vocab_size < 1:
            raise BadInput(f"Job.vocab_size is {self.vocab_size}: it must be at least 1")
        self.check_seq_len(self.seq_len)

    def check_sequences(self, sequences: str) -> None:
        """Refuses samples of a kind that the loss does not take.

        Raises:
            BadInput: it is no kind at all, or not one of this job's.
        """
        if sequences not in SEQUENCES:
            raise BadInput(f"sequences are {sequences!r}: choose one of {', '.join(SEQUENCES)}")
        if sequences not in self.sequences:
            raise BadInput(
                f"{self.name} cannot train on sequences {sequences}: it takes "
                f"{', '.join(self.sequences)}"
                + (
                    "; its documents would see each other, or nobody has tested that they do not"
                    if sequences == "packed"
                    else ""
                )
            )

    def check_seq_len(self, seq_len: int | None) -> int:
        """The sequence length to give to ``batch``: the asked one, else the job's own.

        A job without sequences ignores the number it gets, which is then 1.

        Raises:
            BadInput: the length is not positive, or more than the model can take.
        """
        length = self.seq_len if seq_len is None else seq_len
        if length is None:
            return 1
        if length < 1:
            raise BadInput(f"the sequence length is {length}: a sequence has at least one token")
        if self.max_seq_len is not None and length > self.max_seq_len:
            raise BadInput(
                f"{self.name} cannot take a sequence of {length} tokens: it has positions for "
                f"{self.max_seq_len}; choose a length up to that"
            )
        return length
