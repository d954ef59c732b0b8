"""The segment map: what lies where in reserved memory, drawn as bars of one scale.

Segments are laid out largest first, as words in lines: a line is one share of all that is
reserved, a segment that is longer than a line goes on in the next one.  Bars and the cells in
them are true to scale; what would be too narrow to see is drawn together with its neighbours, and
segments that would be are only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memfit.records.segments import Segment
from memfit.records.timeline import CATEGORIES, Timeline
from memfit.reports.wording import LABELS
from memfit.units import format_size

NUM_LINES = 24
"""Lines that all segments together would fill."""

_NARROWEST = 1 / 400
"""Of a line: what is narrower is not drawn on its own."""

_SHORTEST_START = 1 / 8
"""Of a line: with less room left, a segment that is cut anyway starts on the next one."""

_FREE = "free"


class Cell(NamedTuple):
    """A stretch of a bar."""

    kind: str
    """A category, or ``free``."""

    share: float
    """Of its bar, in per cent."""

    title: str


class Bar(NamedTuple):
    """A segment, or as much of it as goes on a line."""

    share: float
    """Of a line, in per cent."""

    goes_on: bool
    """Whether the segment continues in the next bar."""

    title: str
    cells: list[Cell]


class SegmentMap(NamedTuple):
    """The bars, and what is not drawn."""

    bars: list[Bar]
    num_segments: int
    num_bytes: int
    free_bytes: int
    line_bytes: int
    num_left_out: int
    left_out_bytes: int


class _Piece(NamedTuple):
    """A block of the allocator, or the part of it that lies on a line."""

    kind: str
    num_bytes: int
    title: str


def segment_map(segments: Iterable[Segment], timeline: Timeline) -> SegmentMap:
    """The map of segments whose blocks are those of ``timeline``."""
    ordered = sorted(segments, key=lambda segment: (-segment.num_bytes, segment.address))
    total = sum(segment.num_bytes for segment in ordered)
    line = max(1, -(-total // NUM_LINES))
    narrowest = line * _NARROWEST
    drawn = [segment for segment in ordered if segment.num_bytes >= narrowest]
    left_out = ordered[len(drawn) :]
    free = (b.num_bytes for segment in ordered for b in segment.blocks if b.block < 0)
    return SegmentMap(
        bars=list(_laid_out(drawn, timeline, line)),
        num_segments=len(ordered),
        num_bytes=total,
        free_bytes=sum(free),
        line_bytes=line,
        num_left_out=len(left_out),
        left_out_bytes=sum(segment.num_bytes for segment in left_out),
    )


def _laid_out(segments: list[Segment], timeline: Timeline, line: int) -> Iterator[Bar]:
    """The bars in their order; only segments that are longer than a line are cut."""
    left = line
    for segment in segments:
        if left < min(segment.num_bytes, line * _SHORTEST_START):
            left = line
        title = _segment_title(segment)
        pieces = [_piece(block.block, block.num_bytes, timeline) for block in segment.blocks]
        if left < segment.num_bytes <= line:
            left = line
        while pieces:
            on_line, pieces = _cut(pieces, left)
            num_bytes = sum(piece.num_bytes for piece in on_line)
            left = line if pieces else left - num_bytes
            cells = [
                Cell(piece.kind, 100 * piece.num_bytes / num_bytes, piece.title)
                for piece in _merged(on_line, line * _NARROWEST)
            ]
            yield Bar(100 * num_bytes / line, bool(pieces), title, cells)


def _cut(pieces: list[_Piece], room: int) -> tuple[list[_Piece], list[_Piece]]:
    """The pieces that fill ``room`` bytes, and the rest; one may be cut in two."""
    for index, piece in enumerate(pieces):
        if piece.num_bytes > room:
            inside = piece._replace(num_bytes=room)
            outside = piece._replace(num_bytes=piece.num_bytes - room)
            return [*pieces[:index], *([inside] if room else [])], [outside, *pieces[index + 1 :]]
        room -= piece.num_bytes
    return pieces, []


def _merged(pieces: list[_Piece], narrowest: float) -> Iterator[_Piece]:
    """The pieces, those that are too narrow put together with narrow neighbours."""
    narrow: list[_Piece] = []
    for piece in pieces:
        if piece.num_bytes < narrowest:
            narrow.append(piece)
            if sum(one.num_bytes for one in narrow) >= narrowest:
                yield _together(narrow)
                narrow = []
            continue
        if narrow:
            yield _together(narrow)
            narrow = []
        yield piece
    if narrow:
        yield _together(narrow)


def _together(pieces: list[_Piece]) -> _Piece:
    """One piece of the kind that has most of the bytes."""
    if len(pieces) == 1:
        return pieces[0]
    sizes: Counter[str] = Counter()
    for piece in pieces:
        sizes[piece.kind] += piece.num_bytes
    parts = ", ".join(f"{_label(kind)} {format_size(size)}" for kind, size in sizes.most_common())
    return _Piece(sizes.most_common(1)[0][0], sizes.total(), f"{len(pieces)} blocks: {parts}")


def _piece(block: int, num_bytes: int, timeline: Timeline) -> _Piece:
    if block < 0:
        return _Piece(_FREE, num_bytes, f"Free, {format_size(num_bytes)}")
    kind = CATEGORIES[timeline.categories[block]]
    words = [f"{_label(kind)}, {format_size(num_bytes)}"]
    words += filter(
        None,
        (timeline.names[column[block]] for column in (timeline.tensors, timeline.modules)),
    )
    return _Piece(kind, num_bytes, " · ".join(words))


def _label(kind: str) -> str:
    return LABELS.get(kind, "Free")


def _segment_title(segment: Segment) -> str:
    kind = "expandable" if segment.is_expandable else "small" if segment.is_small else "large"
    stream = f", stream {segment.stream}" if segment.stream else ""
    return f"Segment of {format_size(segment.num_bytes)}, {kind}{stream}"
