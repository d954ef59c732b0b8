"""Device: the memory that a run must fit into, and how fast the machine around it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from memfit.records.files import load_document, save_document
from memfit.records.plain import from_plain

KIND, VERSION = "device", 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A CPU or a GPU.

    Raises:
        ValueError: a size is not positive.
    """

    name: str
    """What people type: ``rtx-4090``, ``h100-80gb``, ``cpu``."""

    kind: str
    """``cpu`` or ``cuda``."""

    total_bytes: int
    """All memory of the device: what CUDA reports as total, or the machine's RAM."""

    label: str = ""
    """What the maker calls it: ``NVIDIA GeForce RTX 4090``."""

    architecture: str = ""
    """``Ada``, ``Hopper``, ...; empty for a CPU."""

    compute_capability: str = ""
    """``8.9``; empty for a CPU."""

    sms: int = 0
    """Streaming multiprocessors; 0 for a CPU."""

    threads_per_sm: int = 0
    """Largest number of threads that are resident on one multiprocessor; 0 for a CPU."""

    shared_memory_per_block_bytes: int = 0
    """Largest shared memory that a block can opt in to; 0 for a CPU."""

    l2_bytes: int = 0
    """Second-level cache; 0 when unknown."""

    bandwidth_bytes_per_second: int = 0
    """Peak memory bandwidth; 0 when unknown."""

    fp32_flops: int = 0
    """Peak fp32 FLOP/s outside tensor cores; 0 when unknown."""

    tf32_flops: int = 0
    """Peak dense FLOP/s of the tensor cores on fp32 rounded to tf32; 0 where they cannot."""

    fp16_flops: int = 0
    """Peak dense fp16 FLOP/s of the tensor cores with fp32 accumulation; 0 without tensor cores."""

    bf16_flops: int = 0
    """Peak dense bf16 FLOP/s with fp32 accumulation; 0 where the card has no bf16 tensor cores."""

    fp8_flops: int = 0
    """Peak dense fp8 FLOP/s with fp32 accumulation; 0 where the card has no fp8 tensor cores."""

    link: str = ""
    """How the card reaches another: ``NVLink 4``, ``PCIe 4.0 x16``; empty when unknown."""

    link_bytes_per_second: int = 0
    """Peak of ``link`` in one direction; 0 when unknown."""

    context_bytes: int = 0
    """An estimate of what a CUDA context takes before the first kernel; 0 for a CPU."""

    context_spread_bytes: int = 0
    """How far the true context may be from ``context_bytes``, on either side."""

    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name -> where the figure stands."""

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "cuda"):
            raise ValueError(f"a device is 'cpu' or 'cuda', not {self.kind!r}")
        if self.total_bytes <= 0:
            raise ValueError(f"{self.name} has {self.total_bytes} bytes of memory")
        for figure in fields(self):
            value = getattr(self, figure.name)
            if isinstance(value, int) and value < 0:
                raise ValueError(f"{self.name}: {figure.name} is negative")
        if self.context_spread_bytes > self.context_bytes:
            raise ValueError(
                f"{self.name}: a context of {self.context_bytes} bytes may be off by at most as "
                f"much, not by {self.context_spread_bytes}"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def save(self, path: Path, *, force: bool = False) -> None:
        """Writes the device as one versioned file."""
        save_document(path, KIND, VERSION, {"device": self.as_dict()}, force=force)

    @classmethod
    def load(cls, path: Path) -> Device:
        """Reads a device; raises BadInput or DamagedFile."""
        return load_document(
            path, KIND, VERSION, lambda document: from_plain(cls, document["device"])
        )
