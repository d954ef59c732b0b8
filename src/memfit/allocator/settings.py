"""Settings: what ``PYTORCH_ALLOC_CONF`` can say about the native allocator, read as PyTorch does.

The string is cut into tokens and walked as the parsers of c10/core/AllocatorConfig.cpp and
c10/cuda/CUDAAllocatorConfig.cpp do, with their readings of numbers (``64abc`` is 64, as C's
``stoull`` has it) and their reasons for refusing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from memfit.allocator.rounding import (
    LARGE_SEGMENT_BYTES,
    NUM_ROUNDUP_INTERVALS,
    OWN_SEGMENT_BYTES,
)
from memfit.allocator.version import TorchVersion
from memfit.errors import BadInput, UnknownName
from memfit.units import MiB


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The allocator's options, in bytes; the defaults are PyTorch's."""

    max_split_size_bytes: int | None = None
    """``max_split_size_mb``: larger blocks are not split; None: every block may be."""

    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    """``max_non_split_rounding_mb``: by how much a block above ``max_split_size_bytes`` may be
    larger than a request that it serves."""

    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    """``large_segment_size_mb``: the segment for requests between 1 and 10 MiB."""

    roundup_power2_divisions: tuple[int, ...] = ()
    """Steps between powers of two, for 1 MiB, 2 MiB, ... 32 GiB and more; empty: none."""

    garbage_collection_threshold: float = 0.0
    """Share of the memory limit above which old free segments are given back; 0: never."""

    expandable_segments: bool = False

    per_process_memory_fraction: float = 1.0
    """Share of the device that the process may reserve."""

    throw_on_cudamalloc_oom: bool = False
    """Whether a request above that share fails at once, without giving cached memory back."""


_SINCE = {
    "backend": (2, 0),
    "max_split_size_mb": (2, 0),
    "garbage_collection_threshold": (2, 0),
    "roundup_power2_divisions": (2, 0),
    "expandable_segments": (2, 1),
    "release_lock_on_cudamalloc": (2, 2),
    "pinned_use_cuda_host_register": (2, 2),
    "pinned_num_register_threads": (2, 2),
    "pinned_use_background_threads": (2, 6),
    "max_non_split_rounding_mb": (2, 6),
    "graph_capture_record_stream_reuse": (2, 9),
    "pinned_reserve_segment_size_mb": (2, 10),
    "per_process_memory_fraction": (2, 10),
    "large_segment_size_mb": (2, 11),
    "throw_on_cudamalloc_oom": (2, 12),
    "pinned_free_catch_all": (2, 13),
    "pinned_max_round_threshold_mb": (2, 13),
    "pinned_max_cached_size_mb": (2, 13),
}
"""Options and the first release that has them: the notes on CUDA and the release notes of each
version, and the headers of torch 2.13.  Those about pinned (host) memory and graph capture change
no size outside it: their values are checked where PyTorch checks them, and change nothing."""

_BOOLEANS = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "release_lock_on_cudamalloc",
    }
)
"""Options that are True or False, and change no size."""

_MAX_REGISTER_THREADS = 128
"""``CUDAAllocatorConfig::pinned_max_register_threads``."""

_SHARED_CONFIG = (2, 9)
"""From here on the options are read by the parser that all accelerators share."""

_MAX_MB = ((1 << 64) - 1) // MiB
_NUMBER = re.compile(r"\s*([+-]?\d+)")
_DECIMAL = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")


def parse_settings(text: str, version: TorchVersion) -> Settings:
    """The settings of a ``PYTORCH_ALLOC_CONF`` string.

    Raises:
        BadInput: PyTorch ``version`` would refuse it, with its reason; or it asks for an
            allocator that is not this one.
    """
    return _Parser(text, version).settings()


def settings_from_environment(environ: Mapping[str, str], version: TorchVersion) -> Settings:
    """The settings that PyTorch ``version`` takes from the environment.

    Up to 2.8 it reads ``PYTORCH_CUDA_ALLOC_CONF``; later releases read that one, then
    ``PYTORCH_HIP_ALLOC_CONF``, then ``PYTORCH_ALLOC_CONF``: the first that is set counts alone.

    Raises:
        BadInput: as ``parse_settings``; or caching is switched off.
    """
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in environ:
        raise BadInput(
            "PYTORCH_NO_CUDA_MEMORY_CACHING is set, to whatever value: that switches the caching "
            "allocator off, and only that one is predicted; unset it"
        )
    names = ["PYTORCH_CUDA_ALLOC_CONF"]
    if version >= _SHARED_CONFIG:
        names += ["PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]
    for name in names:
        if name in environ:
            return parse_settings(environ[name], version)
    return Settings()


class _Parser:
    """Walks the tokens of one settings string."""

    def __init__(self, text: str, version: TorchVersion) -> None:
        self._text = text
        self._version = version
        self._shared = version >= _SHARED_CONFIG
        blank = r"\s" if self._shared else " "
        self._tokens: list[str] = re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(blank, "", text))

    def settings(self) -> Settings:
        settings = Settings()
        at = 0
        large = LARGE_SEGMENT_BYTES
        if "large_segment_size_mb" in self._tokens and self._version >= (2, 11):
            large = self._large_segment(self._tokens.index("large_segment_size_mb") + 2)
            settings = replace(
                settings, large_segment_bytes=large, max_non_split_rounding_bytes=large
            )
        while at < len(self._tokens):
            key = self._tokens[at]
            self._check_key(key)
            self._expect(at + 1, ":")
            settings, at = self._option(settings, key, at + 2)
            at += 1
            if at < len(self._tokens):
                self._expect(at, ",")
                at += 1
        return settings

    def _option(self, settings: Settings, key: str, at: int) -> tuple[Settings, int]:
        """The settings with the value at token ``at``, and where the value ends."""
        if key == "roundup_power2_divisions":
            divisions, at = self._divisions(at)
            return replace(settings, roundup_power2_divisions=divisions), at
        value = self._value(at, key)
        if key == "backend":
            self._check_backend(value)
        elif key == "max_split_size_mb":
            size = self._size(value, key, settings.large_segment_bytes)
            settings = replace(settings, max_split_size_bytes=size)
        elif key == "max_non_split_rounding_mb":
            size = self._size(value, key, settings.large_segment_bytes)
            settings = replace(settings, max_non_split_rounding_bytes=size)
        elif key == "garbage_collection_threshold":
            settings = replace(settings, garbage_collection_threshold=self._threshold(value))
        elif key == "per_process_memory_fraction":
            fraction = self._decimal(value)
            if not 0 <= fraction <= 1:
                raise self._refusal("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
            settings = replace(settings, per_process_memory_fraction=fraction)
        elif key == "expandable_segments":
            settings = replace(settings, expandable_segments=self._boolean(value, key, at))
        elif key == "throw_on_cudamalloc_oom":
            settings = replace(settings, throw_on_cudamalloc_oom=self._boolean(value, key, at))
        elif key.replace("hip", "cuda") in _BOOLEANS:
            self._boolean(value, key, at)
        elif key == "pinned_num_register_threads":
            self._check_threads(value)
        elif key == "pinned_reserve_segment_size_mb" and self._integer(value) == 0:
            raise self._refusal("Pinned reserve segment size has to be greater than 0")
        return settings, at

    def _check_threads(self, value: str) -> None:
        threads = self._integer(value)
        if threads.bit_count() != 1:
            raise self._refusal("Number of register threads has to be power of 2")
        if threads > _MAX_REGISTER_THREADS:
            raise self._refusal(
                "Number of register threads should be less than or equal to "
                f"{_MAX_REGISTER_THREADS}"
            )

    def _large_segment(self, at: int) -> int:
        megabytes = self._integer(self._value(at, "large_segment_size_mb"))
        if megabytes * MiB <= OWN_SEGMENT_BYTES:
            raise self._refusal("CachingAllocator option large_segment_size_mb must be > 10 MB")
        return min(megabytes, _MAX_MB) * MiB

    def _size(self, value: str, key: str, at_least: int) -> int:
        megabytes = self._integer(value)
        least = at_least // MiB
        if self._shared and megabytes < least:
            raise self._refusal(f"CachingAllocator option {key} too small, must be >= {least}")
        if not self._shared and megabytes <= least:
            raise self._refusal(f"CachingAllocator option {key} too small, must be > {least}")
        return min(megabytes, _MAX_MB) * MiB

    def _threshold(self, value: str) -> float:
        threshold = self._decimal(value)
        if self._shared and not 0 < threshold < 1:
            raise self._refusal("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
        if threshold <= 0:
            raise self._refusal("garbage_collect_threshold too small, set it 0.0~1.0")
        if threshold >= 1:
            raise self._refusal("garbage_collect_threshold too big, set it 0.0~1.0")
        return threshold

    def _divisions(self, at: int) -> tuple[tuple[int, ...], int]:
        """All intervals alike, or a list by interval; empty when none rounds more than 512 B."""
        value = self._value(at, "roundup_power2_divisions")
        if value == "[":
            table, at = self._division_list(at + 1)
        else:
            parts = self._integer(value)
            if parts.bit_count() != 1:
                raise self._refusal("For roundups, the divisions has to be power of 2")
            table = [parts] * NUM_ROUNDUP_INTERVALS
        return (tuple(table) if max(table) > 1 else ()), at

    def _division_list(self, at: int) -> tuple[list[int], int]:
        """The table of ``[256:1,512:2,>:4]`` from behind its bracket, and where that closes."""
        table = [0] * NUM_ROUNDUP_INTERVALS
        last, is_first = 0, True
        while self._value(at, "roundup_power2_divisions") != "]":
            interval = self._tokens[at]
            self._expect(at + 1, ":")
            parts = self._integer(self._value(at + 2, "roundup_power2_divisions"))
            if parts & (parts - 1):
                raise self._refusal(
                    "For roundups, the divisions has to be power of 2 or 0 to disable roundup"
                )
            if interval == ">":
                table[last:] = [parts] * (NUM_ROUNDUP_INTERVALS - last)
            else:
                megabytes = self._integer(interval)
                if megabytes.bit_count() != 1:
                    raise self._refusal("For roundups, the intervals have to be power of 2")
                last = min(megabytes.bit_length() - 1, NUM_ROUNDUP_INTERVALS - 1)
                if is_first:
                    table[:last] = [parts] * last
                    is_first = False
                table[last] = parts
            at += 3
            if self._value(at, "roundup_power2_divisions") != "]":
                self._expect(at, ",")
                at += 1
        return table, at

    def _check_key(self, key: str) -> None:
        name = key.replace("hip", "cuda")
        since = _SINCE.get(name)
        if since is not None and self._version >= since:
            return
        if self._shared:
            reason = f"Unrecognized key '{key}' in CUDA allocator config."
        else:
            reason = f"Unrecognized CachingAllocator option: {key}"
        if since is not None:
            reason += f" (it exists from PyTorch {since[0]}.{since[1]} on)"
        else:
            known = [k for k, first in _SINCE.items() if self._version >= first]
            nearest = UnknownName("option", name, known, "").nearest
            if nearest:
                reason += f" (nearest: {', '.join(nearest)})"
        raise self._refusal(reason)

    def _check_backend(self, value: str) -> None:
        if value == "cudaMallocAsync":
            raise BadInput(
                f"{self._text!r:.200} chooses CUDA's own pool (cudaMallocAsync), whose memory is "
                "not predicted: only backend:native is"
            )
        if value != "native":
            raise self._refusal("Unknown allocator backend, options are native and cudaMallocAsync")

    def _expect(self, at: int, token: str) -> None:
        """Up to 2.8 a wrong separator is an error; later it is passed over unread."""
        if at >= len(self._tokens):
            raise self._refusal(f"it ends where {token!r} belongs: write option:value,option:value")
        if not self._shared and self._tokens[at] != token:
            raise self._refusal(f"Error parsing CachingAllocator settings, expected {token}")

    def _value(self, at: int, key: str) -> str:
        if at >= len(self._tokens):
            raise self._refusal(f"Error, expecting {key} value")
        return self._tokens[at]

    def _integer(self, value: str) -> int:
        """C's ``stoull`` (up to 2.8 ``stoi``): the digits in front, a sign wraps around."""
        match = _NUMBER.match(value)
        bits = 64 if self._shared else 31
        if match is None:
            raise self._refusal(f"{value!r:.40} is not a whole number")
        number = int(match[1])
        if abs(number) >= 1 << bits:
            raise self._refusal(f"{value!r:.40} is out of range")
        return number % (1 << 64)

    def _decimal(self, value: str) -> float:
        """C's ``stod``: the number in front."""
        match = _DECIMAL.match(value)
        if match is None:
            raise self._refusal(f"{value!r:.40} is not a number")
        return float(match[1])

    def _boolean(self, value: str, key: str, at: int) -> bool:
        if value not in ("True", "False"):
            raise self._refusal(
                f"Expected 'True' or 'False' at index {at} in ConfigTokenizer but got '{value}'"
                if self._shared
                else f"Expected a single True/False argument for {key}"
            )
        return value == "True"

    def _refusal(self, reason: str) -> BadInput:
        return BadInput(
            f"PyTorch {self._version} refuses the allocator settings {self._text!r:.200}: {reason}"
        )
