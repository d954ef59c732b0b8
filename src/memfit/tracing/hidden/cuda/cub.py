"""Temporary storage of the CUB algorithms that PyTorch calls.

CUB computes it on the host: several arrays, each rounded up to 256 bytes, and 255 bytes to align
the first (``AliasTemporaries``, cub/util_temporary_storage.cuh).  Tile sizes come from CUB's tuning
tables by compute capability (cub/device/dispatch/tuning), here of CCCL 3.0, which ships with CUDA
13.0.  The radix sort's formula gives the sizes that torch 2.6 and 2.11 were recorded with.
"""

from __future__ import annotations

from memfit.tracing.hidden.cuda.kernels import Kernels

_ALIGN = 256
_OFFSET_BYTES = 8
"""PyTorch passes the number of items as int64 (cuda/cub-RadixSortPairs.cu)."""

_RADIX_BITS = 8
_DIGITS = 1 << _RADIX_BITS


def radix_sort_pairs_bytes(
    num_items: int, key_bytes: int, value_bytes: int, num_bits: int, kernels: Kernels
) -> int:
    """Scratch of ``cuda::cub::radix_sort_pairs`` between separate input and output.

    dispatch_radix_sort.cuh: one tile needs nothing (1 byte is asked for); otherwise "onesweep":
    digit counts, look-back of each tile, and a second set of keys and values for two or more
    passes.

    Keys of 1 or 2 bytes are sorted another way before Hopper, whose further scratch (digit counts
    of each block, below 1 MiB) is left out.

    Args:
        num_items: pairs to sort.
        key_bytes: size of a key.
        value_bytes: size of a value; 0 for keys alone.
        num_bits: bits of the key that are sorted on.
        kernels: the card.
    """
    if num_items == 0:
        return 0
    if num_items <= _single_tile_items(max(key_bytes, value_bytes)):
        return 1
    tile = _onesweep_items(key_bytes, value_bytes, kernels)
    portion = ((1 << 28) - 1) // tile * tile
    num_passes = -(-num_bits // _RADIX_BITS)
    if key_bytes < 4 and kernels.capability < (9, 0):
        return _aliased(num_items * key_bytes, num_items * value_bytes)
    num_portions = -(-num_items // portion)
    num_tiles = -(-min(num_items, portion) // tile)
    copies = num_items if num_passes > 1 else 0
    return _aliased(
        num_portions * num_passes * _DIGITS * _OFFSET_BYTES,
        num_tiles * _DIGITS * 4,
        copies * key_bytes,
        copies * value_bytes,
        num_portions * num_passes * 4,
    )


def num_bits_of(largest: int) -> int:
    """``cuda::cub::get_num_bits``: bits that keys up to ``largest`` take."""
    return max(1, largest.bit_length())


def segmented_sort_pairs_bytes(num_items: int, key_bytes: int, value_bytes: int) -> int:
    """Scratch of ``cuda::cub::segmented_sort_pairs``: a second set of keys and values.

    dispatch_radix_sort.cuh, DispatchSegmentedRadixSort.
    """
    return _aliased(num_items * key_bytes, num_items * value_bytes)


def scan_bytes(num_items: int, item_bytes: int) -> int:
    """Scratch of a device-wide scan: the state of each tile, and 32 more.

    dispatch_scan.cuh and ``ScanTileState``: a state is a status and a value, read as one word of
    twice the size of a value of up to 8 bytes.  128 threads x 15 values of 4 bytes make a tile
    (Policy600, sm_60 to sm_89; wider ones on newer cards, which need a few bytes less).
    """
    if num_items == 0:
        return 0
    items = max(1, 15 * 4 // max(4, item_bytes))
    num_tiles = -(-num_items // (128 * items))
    return _aliased((num_tiles + 32) * 2 * max(4, item_bytes))


def select_bytes(num_items: int) -> int:
    """Scratch of a device-wide selection (``nonzero``, ``unique_by_key``): a scan of counts."""
    if num_items == 0:
        return 0
    num_tiles = -(-num_items // (128 * 10))
    return _aliased((num_tiles + 32) * 8)


def reduce_bytes(num_items: int, item_bytes: int, kernels: Kernels) -> int:
    """Scratch of a device-wide sum: one value for each of five times the blocks that fit at once.

    dispatch_reduce.cuh: a single tile of 256 threads x 16 values of 4 bytes needs none, which is
    asked for as 1 byte.  How many blocks fit is taken from the threads alone.
    """
    if num_items <= 256 * max(1, 16 * 4 // max(4, item_bytes)):
        return 1
    return _aliased(5 * kernels.sms * (kernels.threads_per_sm // 256) * item_bytes)


def _aliased(*sizes: int) -> int:
    return sum(-(-size // _ALIGN) * _ALIGN for size in sizes) + _ALIGN - 1


def _single_tile_items(dominant_bytes: int) -> int:
    """256 threads x 19 items of 4 bytes, fewer of larger ones (``RegBoundScaling``)."""
    return 256 * max(1, 19 * 4 // max(4, dominant_bytes))


def _onesweep_items(key_bytes: int, value_bytes: int, kernels: Kernels) -> int:
    """OnesweepPolicy of tuning_radix_sort.cuh, for 64-bit offsets."""
    dominant = max(key_bytes, value_bytes)
    major = kernels.capability[0]
    threads = 384
    if major >= 9 and key_bytes < 4:
        threads, nominal = (512, 23) if key_bytes == 2 else (384, 18)
    elif major >= 9 and key_bytes == 8:
        nominal = 30 if value_bytes < 8 else 24
    elif major >= 9:
        nominal = 29 if value_bytes >= 8 else 17 if value_bytes else 19
    elif major == 8:
        nominal = 17 if key_bytes == 4 and value_bytes else 21
    else:
        threads, nominal = 256, 46 if key_bytes == 4 and value_bytes == 4 else 23
    items = max(1, nominal * 4 // max(4, dominant))
    fitting = -(-(48 * 1024 // (dominant * items)) // 32) * 32
    return items * min(threads, fitting)
