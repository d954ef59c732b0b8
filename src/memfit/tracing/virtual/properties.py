"""``torch.cuda.get_device_properties``: what CUDA says of a card, from its record."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.records.device import Device

_REGISTERS_PER_SM = 65536
"""32-bit registers of a multiprocessor, from capability 5.0 on (CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability")."""

_SHARED_MEMORY_BYTES = 49152
"""Shared memory that a block gets without opting in to more (the same table)."""

_RESERVED_SHARED_BYTES = 1024
"""What the system keeps of each block's shared memory from capability 8.0 on: the most that one
block can opt in to is the multiprocessor's shared memory less this (the same guide)."""


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Named as ``torch.cuda._CudaDeviceProperties``."""

    name: str
    major: int
    minor: int
    total_memory: int
    """Bytes."""

    multi_processor_count: int
    max_threads_per_multi_processor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    regs_per_multiprocessor: int = _REGISTERS_PER_SM
    max_threads_per_block: int = 1024
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""  # noqa: N815  # torch's name
    uuid: str = "00000000-0000-0000-0000-000000000000"
    pci_bus_id: int = 1
    pci_device_id: int = 0
    pci_domain_id: int = 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name={self.name!r}, major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def capability(card: Device) -> tuple[int, int]:
    """The compute capability, as two numbers."""
    major, _, minor = card.compute_capability.partition(".")
    return int(major), int(minor)


def properties(card: Device) -> Properties:
    """What CUDA says of ``card``."""
    major, minor = capability(card)
    optin = card.shared_memory_per_block_bytes
    return Properties(
        name=card.label,
        major=major,
        minor=minor,
        total_memory=card.total_bytes,
        multi_processor_count=card.sms,
        max_threads_per_multi_processor=card.threads_per_sm,
        shared_memory_per_block=_SHARED_MEMORY_BYTES,
        shared_memory_per_block_optin=optin,
        shared_memory_per_multiprocessor=optin + (_RESERVED_SHARED_BYTES if major >= 8 else 0),
        L2_cache_size=card.l2_bytes,
    )
