"""What the virtual GPU knows of the values in its tensors, and what it answers when it does not.

Small tensors that depend on no data (ids, positions, masks, lengths, step counters) have *shadows*:
real values on the host, on which ops run for real beside the simulation.  All others are unknown.
An unknown number reads as 1.0, 1 or False, and the line that asked is noted.
"""

from __future__ import annotations

import torch

from memfit.tracing.memory import storage_address
from memfit.tracing.values import MEMFIT_FOLDER, is_small, user_line


class Shadows:
    """Values of known tensors on the device, by the addresses of their storages."""

    def __init__(self) -> None:
        self._bytes: dict[int, torch.UntypedStorage] = {}
        self.unknown_reads: set[str] = set()
        """Lines of the user's code that were answered without knowing."""

        self.unknown_sizes: set[str] = set()
        """Lines whose results are as large as they can be, because their size hangs on values."""

    def note_read(self) -> None:
        """The user's code was handed a value that nobody knows."""
        line = user_line()
        if not line.startswith(MEMFIT_FOLDER):  # our own step reads the loss, to report it
            self.unknown_reads.add(line)

    def note_size(self) -> None:
        """A result was made as large as it can be."""
        self.unknown_sizes.add(user_line())

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has real values."""
        return tensor.numel() == 0 or storage_address(tensor) in self._bytes

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A host tensor over the values of ``tensor``; None where they are unknown."""
        if tensor.numel() == 0:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        held = self._bytes.get(storage_address(tensor))
        if held is None:
            return None
        view = torch.empty(0, dtype=tensor.dtype)
        view.set_(held, tensor.storage_offset(), tensor.size(), tensor.stride())
        return view

    def give(self, tensor: torch.Tensor, num_bytes: int) -> torch.Tensor | None:
        """Values for ``tensor`` to be written into; None where it is not small.

        A tensor over a part of a storage of ``num_bytes`` whose rest is unknown gets none.
        """
        address = storage_address(tensor)
        if tensor.numel() and address not in self._bytes:
            covers = tensor.numel() * tensor.element_size() >= num_bytes
            if not covers or not is_small(tensor.numel(), tensor.dtype):
                return None
            self._bytes[address] = torch.UntypedStorage(num_bytes)
        return self.of(tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """The tensor was written with what only the run would know."""
        if tensor.numel():
            self._bytes.pop(storage_address(tensor), None)

    def forget_address(self, address: int) -> None:
        """The storage at this address died."""
        self._bytes.pop(address, None)
