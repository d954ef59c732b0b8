"""Activations that wait in host memory until backward needs them.

Autograd hands each tensor that it saves to a hook (``torch.autograd.graph.saved_tensors_hooks``),
which copies it to the host and keeps the copy.  The earliest are moved, since they wait longest.
Those saved last are wanted again at once: they stay.  On CUDA the copies run on a stream of their
own; a tensor is let go of at a fixed point of the forward pass, when two more have been saved, and
the main stream waits for its copy there.  So memory does not depend on how fast the bus is.

The idea: Rhu et al. 2016, "vDNN", https://arxiv.org/abs/1602.08124.  On the CPU the same is done
with copies in the same memory: it saves nothing there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from memfit.records.recipe import Recipe

MIN_BYTES = 1024
"""Smaller tensors stay: a copy costs more than it frees (torchtune's ``min_offload_size``)."""

_IN_FLIGHT = 2
"""Tensors whose copy may still run, so that the main stream need not wait for it."""

_MOVED_DTYPES = (torch.bool, torch.uint8)
"""Beside floating ones: masks.  Other integers belong to the batch, which stays anyway."""


class ActivationOffload:
    """Moves what backward needs to the host, as many bytes of a forward pass as the recipe says.

    Args:
        model: its parameters and buffers stay, and so do views of them.
    """

    def __init__(
        self, recipe: Recipe, device: torch.device, model: nn.Module | None = None
    ) -> None:
        self.moved_bytes = 0
        """Bytes that the last forward pass took off the device."""
        self._limit = recipe.offloaded_activation_bytes
        self._device = device
        self._model = model
        on_cuda = device.type == "cuda" and self._limit != 0
        self._stream = torch.cuda.Stream(device) if on_cuda else None
        self._buffers: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._moved: list[_Moved] = []
        self._in_flight: deque[_Moved] = deque()
        self._staying: set[int] = set()

    def forward(self) -> AbstractContextManager[object]:
        """The context of a forward pass, whose backward must be over before the next one."""
        return nullcontext() if self._limit == 0 else self._forward()

    @contextmanager
    def _forward(self) -> Iterator[None]:
        self.step_ends()
        self.moved_bytes = 0
        if self._model is not None:
            tensors = chain(self._model.parameters(), self._model.buffers())
            self._staying = {_place(tensor) for tensor in tensors}
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield
        # What is still in flight is what backward begins with.
        self._in_flight.clear()

    def step_ends(self) -> None:
        """The step is over, or was given up: nothing stays on the device, and no copy runs."""
        for moved in self._moved:
            self._wait(moved)
            self._buffers.setdefault((moved.host.numel(), moved.host.dtype), []).append(moved.host)
            moved.on_device = None
        self._moved = []
        self._in_flight.clear()

    # ------------------------------------------------------------------ forward

    def _pack(self, tensor: Tensor) -> Any:
        if not self._may_move(tensor):
            return tensor
        version = tensor._version
        place = _place(tensor)
        moved = next((m for m in reversed(self._moved) if m.is_of(place, version)), None)
        if moved is None:
            num_bytes = tensor.untyped_storage().nbytes()
            asked = self.moved_bytes + sum(m.num_bytes for m in self._in_flight) + num_bytes
            if self._limit is not None and asked > self._limit:
                self._let_go(0)  # later tensors stay, so no copy need run beside the next one
                return tensor
            moved = self._move(tensor, place, version)
        elif moved.host.dtype != tensor.dtype:
            return tensor
        moved.num_waiting += 1
        return _Saved(moved, tensor)

    def _may_move(self, tensor: Tensor) -> bool:
        base = tensor if tensor._base is None else tensor._base
        return (
            tensor.device.type == self._device.type
            and tensor.layout == torch.strided
            and not isinstance(base, nn.Parameter)
            and (tensor.is_floating_point() or tensor.dtype in _MOVED_DTYPES)
            and tensor.untyped_storage().nbytes() >= MIN_BYTES
            and _place(tensor) not in self._staying
        )

    def _move(self, tensor: Tensor, place: int, version: int) -> _Moved:
        """Starts the copy of the whole storage, and lets go of the one before the last."""
        with torch.no_grad():
            whole = _whole(tensor.detach())
            host = self._buffer(whole)
            moved = _Moved(whole, host, place, version)
            self._copy(host, whole, moved)
        self._moved.append(moved)
        self._in_flight.append(moved)
        self._let_go(_IN_FLIGHT)
        return moved

    def _let_go(self, num_left: int) -> None:
        """Takes the oldest in flight off the device, until ``num_left`` are."""
        while len(self._in_flight) > num_left:
            oldest = self._in_flight.popleft()
            self._wait(oldest)
            oldest.on_device = None
            self.moved_bytes += oldest.num_bytes

    def _buffer(self, like: Tensor) -> Tensor:
        """A host buffer; pinned where copies run beside the work, and used again and again."""
        free = self._buffers.get((like.numel(), like.dtype))
        if free:
            return free.pop()
        self._buffers.clear()  # batches have another shape now: those of the last would pile up
        pinned = self._stream is not None
        return torch.empty(like.numel(), dtype=like.dtype, device="cpu", pin_memory=pinned)

    # ------------------------------------------------------------------ backward

    def _unpack(self, saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        moved = saved.moved
        whole = self._fetch(moved)
        self._wait(moved)
        moved.num_waiting -= 1
        self._prefetch(moved)
        if moved.num_waiting <= 0:
            moved.on_device = None
        return whole.as_strided(saved.size, saved.stride, saved.offset)

    def _prefetch(self, moved: _Moved) -> None:
        """Starts the copy of what backward will want next: the last before it that still waits.

        One op's tensors come back in the order it saved them.  What was used already must not come
        again: nobody would let go of it.
        """
        if self._stream is None:
            return
        before = self._moved[: max(moved.number_in(self._moved), 0)]
        following = next((m for m in reversed(before) if m.num_waiting > 0), None)
        if following is not None:
            self._fetch(following)

    def _fetch(self, moved: _Moved) -> Tensor:
        if moved.on_device is None:
            with torch.no_grad():
                whole = torch.empty(moved.host.numel(), dtype=moved.host.dtype, device=self._device)
                self._copy(whole, moved.host, moved)
            moved.on_device = whole
        return moved.on_device

    # ------------------------------------------------------------------ copies

    def _copy(self, target: Tensor, source: Tensor, moved: _Moved) -> None:
        if self._stream is None:
            target.copy_(source)
            return
        # Its memory was the main stream's a moment ago, whose work may not be done.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            moved.copied = torch.cuda.Event()
            moved.copied.record(self._stream)

    def _wait(self, moved: _Moved) -> None:
        if moved.copied is not None:
            torch.cuda.current_stream(self._device).wait_event(moved.copied)
            moved.copied = None


class _Moved:
    """One storage: its copy on the host, and itself while it is on the device."""

    def __init__(self, whole: Tensor, host: Tensor, place: int, version: int) -> None:
        self.on_device: Tensor | None = whole
        self.host = host
        self.num_bytes = host.nbytes
        self.num_waiting = 0
        self.copied: torch.cuda.Event | None = None
        # Its address is not given to another while this is here.
        self._storage = StorageWeakRef(whole.untyped_storage())
        self._place, self._version = place, version

    def is_of(self, place: int, version: int) -> bool:
        """Whether it is the copy of that storage as it is now."""
        return (self._place, self._version) == (place, version) and not self._storage.expired()

    def number_in(self, row: list[_Moved]) -> int:
        """Its place in the order of the forward pass; -1 when the pass is over and forgotten."""
        return next((number for number, moved in enumerate(row) if moved is self), -1)


class _Saved:
    """A view of a storage that was moved: what autograd keeps instead of the tensor."""

    __slots__ = ("moved", "offset", "size", "stride")

    def __init__(self, moved: _Moved, tensor: Tensor) -> None:
        self.moved = moved
        self.size, self.stride = tensor.size(), tensor.stride()
        self.offset = tensor.storage_offset()


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _whole(tensor: Tensor) -> Tensor:
    """All of the storage, flat."""
    numel = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((numel,), (1,), 0)
