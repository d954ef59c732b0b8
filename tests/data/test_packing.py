"""Packing: every position once, no row over, as few rows as a slow best fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.data.documents import Documents, documents_of
from memfit.data.packing import best_fit, cut_pieces, joined, pack
from memfit.data.text import load


def pieces_of(lengths: list[int]) -> np.ndarray:
    """Pieces with one token between them that is no input, as documents have."""
    starts = np.cumsum([0, *(length + 1 for length in lengths)])[:-1]
    return np.stack([starts, starts + np.array(lengths, dtype=np.int64)], axis=1)


def positions(pieces: np.ndarray) -> list[int]:
    return [p for start, stop in pieces.tolist() for p in range(start, stop)]


def slow_best_fit(lengths: list[int], row_len: int) -> int:
    """Rows when each piece, longest first, looks at all of them."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [index for index, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting, key=lambda index: rooms[index])] -= length
        else:
            rooms.append(row_len - length)
    return len(rooms)


def slow_first_fit(lengths: list[int], row_len: int) -> int:
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        for index, room in enumerate(rooms):
            if room >= length:
                rooms[index] -= length
                break
        else:
            rooms.append(row_len - length)
    return len(rooms)


LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=60)


@given(lengths=LENGTHS, row_len=st.integers(1, 40))
def test_every_position_is_in_one_row_and_no_row_has_too_many(lengths, row_len) -> None:
    pieces = pieces_of(lengths)

    rows = pack(pieces, row_len)

    assert sorted(positions(rows.pieces)) == positions(pieces)
    filled = [len(positions(rows.row(number))) for number in range(len(rows))]
    assert min(filled) > 0 and max(filled) <= row_len
    assert rows.num_positions == sum(filled) == sum(lengths)


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_no_document_that_fits_into_a_row_is_cut(lengths) -> None:
    pieces = pieces_of(lengths)

    rows = pack(pieces, 40)

    assert sorted(rows.pieces.tolist()) == pieces.tolist()


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_it_needs_the_rows_of_a_best_fit_that_looks_at_each(lengths) -> None:
    num_rows = int(best_fit(np.array(lengths), 40).max()) + 1

    assert num_rows == slow_best_fit(lengths, 40)
    # Both are within 11/9 of the fewest, and 4 more (Johnson et al. 1974).
    assert num_rows <= 11 / 9 * slow_first_fit(lengths, 40) + 4


def test_a_long_document_is_cut_into_consecutive_pieces_that_are_all_kept() -> None:
    assert cut_pieces(np.array([[5, 27], [30, 40]]), 10).tolist() == [
        [5, 15],
        [15, 25],
        [25, 27],
        [30, 40],
    ]


@given(lengths=LENGTHS, row_len=st.integers(1, 40))
def test_pieces_put_together_again_are_the_documents(lengths, row_len) -> None:
    pieces = pieces_of(lengths)

    assert joined(pack(pieces, row_len).pieces).tolist() == pieces.tolist()


@given(
    documents=st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=8),
    is_cut=st.booleans(),
)
def test_every_token_of_a_document_but_its_first_is_a_target(documents, is_cut) -> None:
    tokens = np.array([token for one in documents for token in [*one, 0]], dtype=np.uint16)
    tokens = tokens[: len(tokens) - is_cut]
    ends = np.flatnonzero(tokens[:-1] == 0)

    found = documents_of(tokens, 0)

    targets = [position + 1 for position in positions(found.pieces())]
    assert targets == [t for t in range(1, len(tokens)) if t - 1 not in ends]


@pytest.mark.parametrize(("truncate", "kept"), [("head", [[0, 3]]), ("tail", [[6, 9]])])
def test_what_is_too_long_keeps_its_head_or_its_tail(truncate, kept) -> None:
    documents = Documents(tokens=np.arange(10), starts=np.array([0, 10]))

    assert documents.pieces(3, truncate).tolist() == kept
    assert documents.pieces(9, truncate).tolist() == [[0, 9]]


def test_a_piece_without_a_target_is_left_out() -> None:
    targets = np.array([True, False, False, False, True, True])
    documents = Documents(tokens=np.arange(6), starts=np.array([0, 3, 6]), targets=targets)

    assert documents.pieces().tolist() == [[3, 5]]
    assert documents.num_targets(np.array([[0, 2], [3, 5], [3, 4]])).tolist() == [0, 2, 1]
    assert documents.pieces(1, "tail").tolist() == [[4, 5]]


@pytest.mark.parametrize("row_len", [256, 512, 1024, 2048])
def test_real_text_fills_at_least_97_percent(row_len, python_documents) -> None:
    rows = pack(python_documents.pieces(), row_len)

    assert rows.num_positions >= 0.97 * len(rows) * row_len
    num_documents = len(python_documents.starts) - 1
    assert rows.num_positions == len(python_documents.tokens) - num_documents


@pytest.fixture(scope="module")
def python_documents(tmp_path_factory) -> Documents:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMFIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load(["python"], vocab_size=1024, seq_len=256).train_documents
