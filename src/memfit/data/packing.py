"""Packing: whole documents side by side into rows of one length.

Best fit decreasing: the longest piece first, each into the row where the least room is left over.
It needs at most 11/9 of the fewest possible rows, and 4 more (Johnson et al. 1974, "Worst-case
performance bounds for simple one-dimensional packing algorithms").  A document longer than a row
fills rows of its own, cut into consecutive pieces that are all kept; what is left of it is packed
like a short one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Pieces of documents, and the row that each one is in."""

    pieces: np.ndarray
    """(P, 2) int64 [start, stop), row by row."""

    first: np.ndarray
    """(R + 1,) int64: row r has ``pieces[first[r]:first[r + 1]]``."""

    def __len__(self) -> int:
        return len(self.first) - 1

    def row(self, number: int) -> np.ndarray:
        """(P, 2) int64: the pieces of one row."""
        pieces: np.ndarray = self.pieces[self.first[number] : self.first[number + 1]]
        return pieces

    @property
    def num_positions(self) -> int:
        """Positions that a document fills, of ``len(self)`` times the length of a row."""
        return int((self.pieces[:, 1] - self.pieces[:, 0]).sum())


def pack(pieces: np.ndarray, row_len: int) -> PackedRows:
    """Packs pieces into rows of ``row_len`` positions.  The same pieces give the same rows.

    Args:
        pieces: (P, 2) int64 [start, stop), of any length above 0.
        row_len: positions of a row.
    """
    cut = cut_pieces(pieces, row_len)
    lengths = cut[:, 1] - cut[:, 0]
    rows = best_fit(lengths, row_len)
    order = np.argsort(rows, kind="stable")
    num_rows = int(rows.max()) + 1 if len(rows) else 0
    first = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))])
    return PackedRows(cut[order], first)


def cut_pieces(pieces: np.ndarray, row_len: int) -> np.ndarray:
    """(P, 2) int64: consecutive pieces of at most ``row_len`` positions, the last one shorter."""
    lengths = pieces[:, 1] - pieces[:, 0]
    counts = -(-lengths // row_len)
    owner = np.repeat(np.arange(len(pieces)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = pieces[owner, 0] + number * row_len
    return np.stack([start, np.minimum(start + row_len, pieces[owner, 1])], axis=1)


def best_fit(lengths: np.ndarray, row_len: int) -> np.ndarray:
    """(P,) int64: the row of each piece, longest pieces first, in the fullest row that has room.

    Of rows that are equally full, the one that became so last.
    """
    order = np.argsort(-lengths, kind="stable")
    rows = np.empty(len(lengths), dtype=np.int64)
    by_room: dict[int, list[int]] = {}  # room that is left -> rows that have it
    rooms: list[int] = []  # those above 0 that some row has, increasing
    num_rows = 0
    for piece, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        place = bisect_left(rooms, length)
        if place == len(rooms):
            row, room = num_rows, row_len
            num_rows += 1
        else:
            room = rooms[place]
            row = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[place]
        rows[piece] = row
        left = room - length
        if left:
            if left not in by_room:
                insort(rooms, left)
                by_room[left] = []
            by_room[left].append(row)
    return rows


def joined(pieces: np.ndarray) -> np.ndarray:
    """(P, 2) int64: the pieces in order, those put together that meet and share a document.

    Pieces of two documents never meet: between them is the last token of one, which is no input.
    """
    if not len(pieces):
        return pieces
    pieces = pieces[np.argsort(pieces[:, 0])]
    begins = np.concatenate([[True], pieces[1:, 0] != pieces[:-1, 1]])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([pieces[begins, 0], pieces[ends, 1]], axis=1)
