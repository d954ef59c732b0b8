"""Where documents begin and end in an array of tokens, and pieces of them.

A piece is a stretch of positions [start, stop): the input at position p is token p, its label token
p + 1.  A document of n tokens has n - 1 positions: every token of it but the first is a target, and
nothing of one document is asked of another.  Cutting a piece in two loses no target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_READ_AT_ONCE = 1 << 24
"""Tokens of a mapped file that are looked at together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents:
    """Tokens, and the documents they are of."""

    tokens: np.ndarray
    """(N,) integers, below 2**31."""

    starts: np.ndarray
    """(D + 1,) int64, increasing: document d is ``tokens[starts[d]:starts[d + 1]]``."""

    targets: np.ndarray | None = None
    """(N,) bool: tokens that are targets; None where all are."""

    def pieces(self, longest: int | None = None, truncate: str = "head") -> np.ndarray:
        """(P, 2) int64: a piece for each document that has a target.

        Args:
            longest: positions that are kept of a document; None for all.
            truncate: which end of a longer one is kept, ``head`` or ``tail``.
        """
        pieces = np.stack([self.starts[:-1], self.starts[1:] - 1], axis=1)
        if longest is not None:
            pieces = truncated(pieces, longest, truncate)
        return self.with_targets(pieces)

    def with_targets(self, pieces: np.ndarray) -> np.ndarray:
        """(P, 2) int64: those of ``pieces`` that have a target."""
        kept: np.ndarray = pieces[self.num_targets(pieces) > 0]
        return kept

    def num_targets(self, pieces: np.ndarray) -> np.ndarray:
        """(P,) int64: how many targets each piece has."""
        start, stop = pieces[:, 0], pieces[:, 1]
        if self.targets is None:
            counts: np.ndarray = stop - start
        else:
            before = np.concatenate([[0], np.cumsum(self.targets, dtype=np.int64)])
            counts = before[stop + 1] - before[start + 1]
        return counts


def truncated(pieces: np.ndarray, longest: int, truncate: str) -> np.ndarray:
    """(P, 2) int64: at most ``longest`` positions of each piece, its ``head`` or its ``tail``."""
    first, last = pieces[:, 0], pieces[:, 1]
    if truncate == "head":
        return np.stack([first, np.minimum(last, first + longest)], axis=1)
    return np.stack([np.maximum(first, last - longest), last], axis=1)


def documents_of(tokens: np.ndarray, end_of_text_id: int) -> Documents:
    """Documents that each end with the end of text; the first and last may be parts of one."""
    found = [
        np.flatnonzero(tokens[start : start + _READ_AT_ONCE] == end_of_text_id) + start
        for start in range(0, len(tokens), _READ_AT_ONCE)
    ]
    ends = np.concatenate([*found, [len(tokens) - 1]]).astype(np.int64)
    starts = np.unique(np.concatenate([[0], ends + 1]))
    return Documents(tokens=tokens, starts=starts)
