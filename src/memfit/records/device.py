"""Device: the memory that a run must fit into, and how fast the machine around it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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

    bandwidth_bytes_per_second: int = 0
    """Peak memory bandwidth; 0 when unknown."""

    bf16_flops: int = 0
    """Peak dense bf16 FLOP/s with fp32 accumulation; 0 where the card has no bf16 tensor cores."""

    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name -> where the figure stands."""

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "cuda"):
            raise ValueError(f"a device is 'cpu' or 'cuda', not {self.kind!r}")
        if self.total_bytes <= 0:
            raise ValueError(f"{self.name} has {self.total_bytes} bytes of memory")
        for name in ("sms", "bandwidth_bytes_per_second", "bf16_flops"):
            if getattr(self, name) < 0:
                raise ValueError(f"{self.name}: {name} is negative")

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
