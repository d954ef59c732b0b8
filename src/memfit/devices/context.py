"""What a process takes of a card outside PyTorch's allocator: the CUDA context, and its growth.

The context holds a stack for every thread that can be resident, the driver's state, and kernels'
code.  Since CUDA 11.7 code is loaded when a kernel first runs (lazy loading; PyTorch asks for it
since 1.13), so a context starts small and grows over the first step.  The stacks follow from the
card.  No document gives the rest: it hangs on the driver and the libraries too.  What stands here
is what others recorded with PyTorch 2, less the stacks, by architecture: the middle of the smallest
and the largest, with a spread that goes a little past both.
"""

from __future__ import annotations

from typing import NamedTuple

from memfit.records.device import Device
from memfit.units import MiB

STACK_BYTES = 1024
"""CUDA Runtime API, cudaLimitStackSize: the stack of a GPU thread, 1 KiB unless it is set."""


class Estimate(NamedTuple):
    """A size that is known only roughly: it lies between ``low`` and ``high``, in bytes."""

    num_bytes: int
    low: int
    high: int
    source: str


def _recorded(mib: int, spread_mib: int, source: str) -> Estimate:
    return Estimate(mib * MiB, (mib - spread_mib) * MiB, (mib + spread_mib) * MiB, source)


# "OOM": PyTorch's out-of-memory message, what the process has in use less allocated less reserved.
_NO_LAZY_RECORDING = _recorded(
    190,
    110,
    "no recording of the context alone: OOMs leave 0.37 to 0.46 GiB on a V100 and 0.31 on a P100, "
    "with what kernels loaded",
)
_BESIDE_STACKS = {
    "Pascal": _NO_LAZY_RECORDING,
    "Volta": _NO_LAZY_RECORDING,
    "Turing": _recorded(
        100,
        60,
        "a context of 105 MiB on a Tesla T4 (torch 2.11+cu128, total less free less reserved by "
        "mem_get_info); OOMs leave 0.11 to 0.20 GiB there, with what kernels loaded",
    ),
    "Ampere": _recorded(
        170,
        110,
        "contexts of 256 MiB on an RTX 3090 (torch 2.7.1+cu128, invoke-ai/InvokeAI#9413) and "
        "0.47 GiB on an A100 80 GB (torch 2.1.1+cu121, stas00/ml-engineering)",
    ),
    "Ada": _recorded(
        220,
        100,
        "contexts of 386 MiB on an RTX 4090 (ComfyUI at rest), 426 MiB on an RTX 6000 Ada (torch "
        "2.10+cu130, unslothai/unsloth-zoo#1053) and 0.49 GiB on an L40S (total less vLLM's "
        "'Initial free memory: 43.82 GiB')",
    ),
    "Hopper": _recorded(
        300,
        80,
        "contexts of 0.52 GiB on an H100 80 GB (79.18 GiB less vLLM's 'Initial free memory: 78.66 "
        "GiB', llm-d-incubation/llm-d-fast-model-actuation#746) and 0.59 GiB on another",
    ),
    "Blackwell": _recorded(
        290,
        150,
        "no recording of the context alone: OOMs leave 0.48 to 0.58 GiB on an RTX 5090 and 0.70 "
        "GiB on a B200 (a script of two operations), with what kernels loaded",
    ),
}

_UNKNOWN = _recorded(
    400,
    300,
    "no recording on this architecture: 0.3 to 0.4 GiB is what PyTorch's maintainers expect of "
    "any card (pytorch/pytorch#107667 and #109888), the spread is assumed",
)


def expected_context(card: Device) -> Estimate:
    """The CUDA context that follows from a card's architecture, multiprocessors and threads."""
    beside = _BESIDE_STACKS.get(card.architecture)
    if beside is None or not card.sms:
        return _UNKNOWN
    stacks = card.sms * card.threads_per_sm * STACK_BYTES
    return Estimate(
        stacks + beside.num_bytes,
        stacks + beside.low,
        stacks + beside.high,
        f"{card.sms} multiprocessors x {card.threads_per_sm:,} threads x {STACK_BYTES:,} bytes of "
        f"stack, and {beside.num_bytes // MiB} MiB for all else from {beside.source}",
    )


def context_bytes(card: Device) -> Estimate:
    """The CUDA context of one process on ``card``, before its first kernel."""
    if not card.context_bytes:
        return expected_context(card)
    middle, spread = card.context_bytes, card.context_spread_bytes
    source = card.sources.get("context_bytes", "")
    return Estimate(middle, middle - spread, middle + spread, source)


def growth_bytes() -> Estimate:
    """What the driver takes on top while a step's kernels run for the first time."""
    return Estimate(
        30 * MiB,
        20 * MiB,
        300 * MiB,
        "30 MiB on a Tesla T4 (105 MiB in use after the context, 131 after the first cuBLAS call, "
        "135 after cuDNN; torch 2.11+cu128): the one recording of PyTorch by itself; 20 to 205 MiB "
        "on eight cards under vLLM ('non-torch forward increase' and 'non_torch_memory' in its "
        "logs: 0.02 GiB on an L40S, 0.14 and 0.16 GiB on an H100, 0.20 GiB on a card of 24 GB); "
        "training loads more kernels, so 300 MiB is allowed for",
    )
