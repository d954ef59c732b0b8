"""Error texts of an out-of-memory: which they are, and what they say in numbers.

Frameworks, drivers, libraries and the kernel each have their own words, and PyTorch has changed
its own five times.  A text is looked through for *signs*, the surest first; then for numbers,
wherever in the text they stand.

PyTorch's words are those of ``c10/cuda/CUDACachingAllocator.cpp``, ``c10/xpu/XPUCachingAllocator
.cpp``, ``aten/src/ATen/mps/MPSAllocator.mm`` and ``c10/core/impl/alloc_cpu.cpp``; their sizes are
rounded to two places, and ``GB`` there means GiB.
"""

from __future__ import annotations

import errno
import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memfit.errors import MemfitError

_KIB = 1024
_UNITS = {"": 1, "k": _KIB, "m": _KIB**2, "g": _KIB**3, "t": _KIB**4}
_NOT_AVAILABLE = 2**63
"""NVML says 2^64 - 1 bytes where it does not know (WSL2): ``17179869184.00 GiB``."""

_SIZE = r"(\d[\d,.]*) ?(bytes|[kKMGT]i?B?\b|B\b)"
"""A size as the texts write it: ``786.00 MiB``, ``5.50 GB``, ``23.43G``, ``0 bytes``."""

_FRAGMENTED_SHARE = 0.04
"""Bytes in pieces are the cause when they are a real share of the card: below this a card is
full, though the request might have fitted in the pieces.  memfit's own choice, from the texts of
public reports: 99 % full cards with 340 MiB in pieces on one side, 4.2 % on the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """What an error text says about memory.  Bytes that it does not say are None."""

    is_oom: bool | Literal["maybe"]
    """False: it is known, looks like one, and is not.  ``maybe``: it often hides one."""

    where: Literal["device", "host", "pinned_host", "shared_memory", "kv_cache"]
    backend: str
    """``cuda hip xpu mps cpu jax tpu tf``."""

    cause: str | None = None
    """What else is known: ``other_process``, ``tried_gt_total``, ``library_outside_allocator``,
    ``nccl``, ``other_rank``, ``block_size_limit``, ...; None when it is plainly full."""

    phase: str | None = None
    """``checkpoint_save`` when it happened while a state was gathered to be saved."""

    device: int | None = None
    tried_bytes: int | None = None
    """What was asked of the driver.  For CUDA's caching allocator a segment, not a tensor."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    """``reserved in total``, as torch 1.4 to 2.0 say it."""

    unallocated_bytes: int | None = None
    """Reserved but unallocated, as torch says it since 2.1; ``cached``, as before 1.4."""

    private_pools_bytes: int | None = None
    allowed_bytes: int | None = None
    """The limit of ``set_per_process_memory_fraction``, or of the MPS high watermark."""

    this_process_bytes: int | None = None
    other_processes: tuple[int, ...] = ()
    """What each ``Process N`` has in use.  Within a container one of them may be this one."""

    other_bytes: int | None = None
    """MPS: what others have allocated."""

    needed_bytes: int | None = None
    """XLA: what the compiled program would use."""

    anon_rss_bytes: int | None = None
    """The killed process's own memory, as the kernel logs it."""

    exit_code: int | None = None
    max_seq_len: int | None = None
    kv_tokens: int | None = None

    @property
    def pieces_bytes(self) -> int | None:
        """What is reserved and not in use: pieces of segments, for whole ones have gone back."""
        if self.unallocated_bytes is not None:
            return self.unallocated_bytes
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)

    @property
    def unaccounted_bytes(self) -> int | None:
        """Used, and not by PyTorch: the context, libraries, other processes."""
        if self.total_bytes is None or self.free_bytes is None or self.allocated_bytes is None:
            return None
        pieces = self.pieces_bytes
        if pieces is None:
            return None
        return self.total_bytes - self.free_bytes - self.allocated_bytes - pieces

    @property
    def free_ge_tried(self) -> bool:
        """More is free than was asked for: a limit, a race or a fault, and not the batch."""
        free, tried = self.free_bytes, self.tried_bytes
        return free is not None and tried is not None and free >= tried

    @property
    def fragmentation(self) -> bool:
        """Whether the request failed for lying in pieces, not for want of bytes."""
        pieces, tried, total = self.pieces_bytes, self.tried_bytes, self.total_bytes
        if pieces is None or tried is None or total is None or self.free_ge_tried:
            return False
        # Sizes are rounded to two places, so what equals on paper may be a little less.
        return pieces >= tried * 0.99 and pieces >= total * _FRAGMENTED_SHARE

    @property
    def request_class(self) -> str | None:
        """Which tensors a request stands for: the allocator asks for whole segments.

        ``kSmallBuffer`` 2 MiB and ``kLargeBuffer`` 20 MiB of ``c10/core/AllocatorConfig.h``.
        """
        if self.backend not in ("cuda", "hip", "xpu"):
            return None
        known = {2 * _KIB**2: "up to 1 MiB", 20 * _KIB**2: "1-10 MiB"}
        return known.get(self.tried_bytes or 0)


class _Sign(NamedTuple):
    pattern: str
    is_oom: bool | Literal["maybe"]
    where: Literal["device", "host", "pinned_host", "shared_memory", "kv_cache"] = "device"
    backend: str = ""
    """Left empty where the text names it elsewhere; then CUDA's is meant when none is named."""
    cause: str | None = None


_OUTSIDE = "library_outside_allocator"
_SIGNS = (
    # The kernel's log, shells, launchers, container runtimes: a killed process says nothing.
    _Sign(r"out of memory: kill(ed)? process", True, "host", "cpu"),
    _Sign(r"memory cgroup out of memory|oom-kill|oomkilled|oom.kill(er|ed)", True, "host", "cpu"),
    _Sign(r"(exit(s|ed)? ?(with )?(return )?(code|status)\W*|returncode\W*)(-9|137)\b", True,
          "host", "cpu"),
    _Sign(r"dataloader worker .*killed by signal: killed", True, "host", "cpu"),
    _Sign(r"\bsignal 9\b|\bsigkill\b|^\s*killed\s*$|sh: killed\b", True, "host", "cpu"),
    # Shared memory between a loader's workers.
    _Sign(r"out of shared memory|killed by signal: bus error", True, "shared_memory", "cpu"),
    _Sign(r"(/dev/shm|shared memory|</?torch_|shm_open).*(no space left|cannot allocate)", True,
          "shared_memory", "cpu"),
    # Other frameworks, and inference.
    _Sign(r"ran out of memory in memory space (hbm|vmem)|xla:tpu.*out of memory", True,
          "device", "tpu"),
    _Sign(r"oom when allocating tensor|bfc_allocator.*ran out of memory", True, "device", "tf"),
    _Sign(r"resource_exhausted: .*(allocat|out of memory)", True, "device", "jax"),
    _Sign(r"larger than the maximum number of tokens that can be stored in kv cache|"
          r"no available memory for the cache blocks|kv cache is needed, which is larger than",
          True, "kv_cache", "cuda"),
    _Sign(r"free memory on device .* is less than desired gpu memory utilization", True),
    # MPS and Intel.
    _Sign(r"mps backend out of memory|mps.*invalid buffer size|invalid buffer size: [\d.]+ ?gb",
          True, "device", "mps"),
    _Sign(r"can not allocate memory block with size larger than", True, "device", "xpu",
          "block_size_limit"),
    _Sign(r"ur_result_error_out_of_(device|host|resources)\w*|ze_result_error_out_of_device_memory"
          r"|pi_error_out_of_(resources|host_memory)", True, "device", "xpu"),
    # The host: PyTorch's CPU allocator, libc, NumPy, Windows.
    _Sign(r"(can't allocate|not enough) memory: you tried to allocate", True, "host", "cpu"),
    _Sign(r"posix_memalign\(.*\) == 0|enforce fail at (cpuallocator|alloc_cpu)", True,
          "host", "cpu"),
    _Sign(r"unable to allocate .* for an array|std::bad_alloc|paging file is too small", True,
          "host", "cpu"),
    _Sign(r"\bmemoryerror\b|cannot allocate memory|not enough space on the host", True,
          "host", "cpu"),
    # Libraries beside PyTorch's allocator, on the card.
    _Sign(r"nccl.*out of memory|nccl[\s\S]*cuda failure( \d+)? 'out of memory'", True, "device", "",
          "nccl"),
    _Sign(r"out of memory encountered on a different rank", True, "device", "cuda", "other_rank"),
    _Sign(r"ran out of memory outside pytorch's allocator", True, "device", "cuda", _OUTSIDE),
    _Sign(r"(cublas|cudnn|cusolver|cusparse|cufft|curand|hipblas|rocblas|miopen)\w*_status_?\w*_"
          r"(alloc_failed|allocation_failed|memory_error)|(cusolver|cusparse)_status_"
          r"insufficient_resources|cufft_alloc_failed|miopenstatusallocfailed", True,
          "device", "", _OUTSIDE),
    # The card itself.
    _Sign(r"(cuda|hip) ?error: out of memory[\s\S]*pin_memory|"
          r"pin_memory[\s\S]*(cuda|hip) ?error: out of memory|"
          r"(cuda|hip)host(alloc|register|malloc)\w* failed: out of memory", True, "pinned_host"),
    _Sign(r"cu(da)?_?error_?(out_?of_?memory|memory_?allocation)|hiperroroutofmemory", True),
    _Sign(r"memory mapping failed with oom\b", True),  # expandable segments
    _Sign(r"curesult error result=2\b|(cuda|hip)malloc\w* failed: out of memory", True),
    # "to avoid an out of memory" is advice, and "out of memory bounds" something else.
    _Sign(r"(?<!avoid )(?<!prevent )(?<!possible )(?<!potential )(?<!\ban )(?<!\bif )"
          r"(?<!cause )(?<!causing )(?<!against )\bout of memory\b(?! bounds)", True),
    _Sign(r"\boutofmemoryerror\b", True),
    # They often hide one: PyTorch issues 150096 and 95823, and what users of cuDNN report.
    _Sign(r"pin_memory[\s\S]*cuda error: invalid argument|"
          r"cuda error: invalid argument[\s\S]*pin_memory", "maybe", "pinned_host"),
    _Sign(r"cuda driver error: invalid argument", "maybe"),
    _Sign(r"failed to cuda (c|m)alloc|ncclunhandledcudaerror", "maybe", "device", "cuda", "nccl"),
    _Sign(r"cu(dnn|blas|solver)_status_(not_initialized|internal_error|not_supported)|"
          r"unable to find a valid cudnn algorithm|find was unable to find an engine|"
          r"get was unable to find an engine", "maybe", "device", "cuda", _OUTSIDE),
    # They look like one, and are none.
    _Sign(r"error invalid configuration argument at line \d+ in file .*ops\.cu", False,
          "device", "cuda", "bnb_empty_tensor"),
    _Sign(r"attempting to unscale fp16 gradients", False, "device", "cuda", "fp16_parameters"),
    _Sign(r"unscale_\(\) has already been called", False, "device", "cuda", "unscaled_twice"),
    _Sign(r"checkpoint\w*: (recomputed values for the following tensors|a different number of "
          r"tensors was saved)", False, "device", "cuda", "checkpoint_not_deterministic"),
    _Sign(r"out of resources?: shared memory", False, "device", "cuda", "kernel_shared_memory"),
    _Sign(r"(cuda|hip)( driver| runtime)? error\b", False),
    _Sign(r"no kernel image is available|device-side assert|illegal memory access", False),
)  # fmt: skip
_COMPILED = [(re.compile(sign.pattern, re.IGNORECASE | re.MULTILINE), sign) for sign in _SIGNS]

_SIZES = {
    # The last words of ``total``, ``free`` and ``allowed`` are CUDAMallocAsyncAllocator.cpp's.
    "tried_bytes": (
        r"[Tt]ried to allocate {size}",
        r"[Oo]ut of memory (?:while trying to allocate|allocating|trying to allocate) {size}",
        r"[Uu]nable to allocate {size}",
        r"[Ff]ailed to allocate (?:request for )?{size}",
        r"[Ii]nvalid buffer size: {size}",
        r"Requested +: {size}",
    ),
    "total_bytes": (
        r"total capac?i?ty of {size}",
        r"{size} total capacity",
        r"GPU has {size} total",
        r"Used [\d.]+[KMGT] of {size} hbm",
        r"Device limit +: {size}",
    ),
    "free_bytes": (
        r"of which {size} is free",
        r"{size} free\b",
        r"Free \(according to CUDA\): {size}",
    ),
    "allocated_bytes": (
        r"allocated memory {size} is allocated by PyTorch",
        r"{size} already allocated",
        r"MPS allocated: {size}",
        r"Currently allocated +: {size}",
    ),
    "reserved_bytes": (r"{size} reserved in total",),
    "unallocated_bytes": (r"{size} is reserved by PyTorch but unallocated", r"{size} cached"),
    "private_pools_bytes": (r"with {size} allocated in private pools",),
    "allowed_bytes": (r"{size} allowed", r"max allowed: {size}", r"PyTorch limit[^:]*: {size}"),
    "this_process_bytes": (
        r"this process has {size} memory in use",
        r"{size} in use by this process",
    ),
    "other_bytes": (r"other allocations: {size}",),
    "needed_bytes": (r"Used {size} of [\d.]+[KMGT] hbm",),
    "anon_rss_bytes": (r"anon-rss:{size}",),
}
_SIZE_PATTERNS = {
    name: [re.compile(word.replace("{size}", _SIZE)) for word in words]
    for name, words in _SIZES.items()
}
_INTEGERS = {
    "device": (
        r"GPU\s+(\d+)\b(?! GiB)",
        r"on device (\d+)",
        r"device:GPU:(\d+)",
        r"device ordinal (\d+)",
        r"\[(\d+)\] \w[\w/.]*\.cc:\d+ NCCL",
    ),
    "exit_code": (r"(?:code|status|exitcode|returncode)\W*?(-9|137)\b",),
    "max_seq_len": (r"max seq len \((\d+)\)",),
    "kv_tokens": (r"stored in KV cache \((\d+)\)",),
}
_TF_TENSOR = re.compile(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+)")
_TF_BYTES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8, "int32": 4, "int64": 8, "bool": 1}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, of a device or of the host.

    By its type (``MemoryError``, ``torch.OutOfMemoryError``, ``ENOMEM``), else by its text.  An
    error that may hide one (``maybe``) is not taken for one: a run must not go on after an error
    of another kind.  Nor is memfit's own refusal, which is the end of a recovery.
    """
    if isinstance(error, MemfitError) or not isinstance(error, Exception):
        return False
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    message = parse(f"{type(error).__name__}: {error}")
    return message is not None and message.is_oom is True


def parse(text: str) -> Message | None:
    """Reads an error text, a log line or a whole traceback.

    Returns:
        What it says; None when it says nothing about memory and nothing that is taken for it.
    """
    sign = next((sign for pattern, sign in _COMPILED if pattern.search(text)), None)
    if sign is None:
        return None
    if not sign.is_oom:
        return Message(
            is_oom=False, where=sign.where, backend=_backend(sign, text), cause=sign.cause
        )
    sizes = {name: _first_size(patterns, text) for name, patterns in _SIZE_PATTERNS.items()}
    integers = {name: _first_integer(patterns, text) for name, patterns in _INTEGERS.items()}
    if (tensor := _TF_TENSOR.search(text)) and tensor[2] in _TF_BYTES:
        shape = [int(size) for size in tensor[1].split(",") if size]
        sizes["tried_bytes"] = math.prod(shape) * _TF_BYTES[tensor[2]]
    others = tuple(
        size
        for found in re.finditer(rf"Process \d+ has {_SIZE} memory in use", text)
        if (size := _size(found[1], found[2])) is not None
    )
    saving = re.search(r"(?<!load_)state_dict\(\)|save_checkpoint|torch\.save\(", text)
    return Message(
        is_oom=sign.is_oom,
        where=sign.where,
        backend=_backend(sign, text),
        cause=sign.cause or _cause(sizes, others),
        phase="checkpoint_save" if saving else None,
        other_processes=others,
        **sizes,
        **integers,
    )


def _backend(sign: _Sign, text: str) -> str:
    if sign.backend:
        return sign.backend
    for word, backend in (("HIP", "hip"), ("hip", "hip"), ("XPU", "xpu"), ("MPS", "mps")):
        if re.search(rf"\b{word}(\b|[Ee]rror|blas)", text):
            return backend
    return "cuda"


def _cause(sizes: dict[str, int | None], others: tuple[int, ...]) -> str | None:
    """Whether the request was beyond any card, or others hold more than this process."""
    tried, total = sizes["tried_bytes"], sizes["total_bytes"]
    if tried is not None and total is not None and tried > total:
        return "tried_gt_total"
    own = sizes["this_process_bytes"]
    if own is None:
        if sizes["allocated_bytes"] is None:
            return None
        own = sizes["allocated_bytes"] + (sizes["unallocated_bytes"] or 0)
        # In a container PyTorch does not know its own number: the first that could be it, is.
        itself = min((size for size in others if size >= own), default=None)
        if itself is not None:
            others = tuple(size for size in others if size is not itself)
    return "other_process" if sum(others) > own else None


def _first_size(patterns: list[re.Pattern[str]], text: str) -> int | None:
    for pattern in patterns:
        if found := pattern.search(text):
            return _size(found[1], found[2])
    return None


def _first_integer(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        if found := re.search(pattern, text):
            return int(found[1])
    return None


def _size(number: str, unit: str) -> int | None:
    """Bytes, rounded; None where the text's number means ``not available``."""
    prefix = "" if unit == "bytes" else unit[0].lower().replace("b", "")
    num_bytes = round(float(number.replace(",", "")) * _UNITS[prefix])
    return num_bytes if num_bytes < _NOT_AVAILABLE else None
