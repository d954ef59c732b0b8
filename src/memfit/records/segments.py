"""Segments: how an allocator has laid out what it holds of the device.

A segment is one piece of memory taken from the driver (one ``cudaMalloc``, or one contiguous
mapped range of an expandable segment).  It is cut into blocks that follow each other without
gaps; each is handed out, or free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from memfit.records.plain import from_plain


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentBlock:
    """One block of a segment."""

    offset: int
    """Bytes from the start of the segment."""

    num_bytes: int
    """The size of the block, with what the allocator rounded up or left unsplit."""

    requested_bytes: int
    """What was asked for; 0 when the block is free."""

    block: int
    """The number of the block in the Timeline; -1 when it is free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One segment and its blocks in the order of their addresses.

    Raises:
        ValueError: the blocks do not fill the segment one after the other.
    """

    address: int
    num_bytes: int
    stream: int
    """The CUDA stream whose requests it serves; 0 is the default one."""

    is_small: bool
    """Whether it serves requests of up to 1 MiB."""

    is_expandable: bool
    blocks: tuple[SegmentBlock, ...]

    def __post_init__(self) -> None:
        end = 0
        for block in self.blocks:
            if block.offset != end or block.num_bytes <= 0:
                raise ValueError(f"a segment's blocks leave a gap, or overlap, at byte {end}")
            end += block.num_bytes
        if end != self.num_bytes:
            raise ValueError(f"a segment of {self.num_bytes} bytes has blocks of {end} bytes")


def encode_segments(segments: Iterable[Segment]) -> list[list[Any]]:
    """Segments as JSON: a list of fields each, since a large run has ten thousand blocks."""
    return [
        [
            segment.address,
            segment.num_bytes,
            segment.stream,
            segment.is_small,
            segment.is_expandable,
            [[b.offset, b.num_bytes, b.requested_bytes, b.block] for b in segment.blocks],
        ]
        for segment in segments
    ]


def decode_segments(rows: Any) -> tuple[Segment, ...]:
    """The segments that :func:`encode_segments` wrote.

    Raises:
        TypeError, ValueError: they are not such segments.
    """
    return tuple(_segment(*row) for row in rows)


def _segment(
    address: Any, num_bytes: Any, stream: Any, is_small: Any, is_expandable: Any, blocks: Any
) -> Segment:
    fields = {
        "address": address,
        "num_bytes": num_bytes,
        "stream": stream,
        "is_small": is_small,
        "is_expandable": is_expandable,
        "blocks": tuple(_block(*row) for row in blocks),
    }
    return from_plain(Segment, fields)


def _block(offset: Any, num_bytes: Any, requested_bytes: Any, block: Any) -> SegmentBlock:
    fields = {
        "offset": offset,
        "num_bytes": num_bytes,
        "requested_bytes": requested_bytes,
        "block": block,
    }
    return from_plain(SegmentBlock, fields)
