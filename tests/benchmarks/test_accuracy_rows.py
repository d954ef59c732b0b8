"""The rows of the accuracy table agree with themselves and with what they name."""

import pytest

from benchmarks.accuracy.figures import NAMES
from benchmarks.accuracy.rows import Figure, figure, group_words, load
from memfit.allocator.addresses import POLICIES
from memfit.allocator.version import TorchVersion
from memfit.devices.catalog import find
from memfit.units import MiB

ROWS = load()


def test_a_figure_in_bytes_has_no_rounding() -> None:
    assert figure("peak allocated", 512) == Figure(name="peak allocated", num_bytes=512)


def test_a_printed_figure_is_rounded_by_half_its_last_digit() -> None:
    assert figure("peak allocated", "1.5 GiB") == Figure(
        name="peak allocated",
        num_bytes=1536 * MiB,
        rounding_bytes=53_687_091,  # a twentieth of a GiB
        printed="1.5 GiB",
    )


def test_a_figure_in_other_units_is_refused() -> None:
    with pytest.raises(ValueError, match="neither bytes nor"):
        figure("peak allocated", "1.5 GB")


def test_every_measured_figure_of_the_sources_is_there() -> None:
    # 54 rows of course runs, single ops and bert-large, of which 4 out of memory; 24 of xMem, of
    # which 4 out of memory: one run here may hold the figures of several of theirs.
    assert (len(ROWS), sum(not row.fits for row in ROWS)) == (67, 7)


def test_no_two_rows_have_one_name() -> None:
    names = [(row.group, row.name) for row in ROWS]
    assert len(set(names)) == len(names)


def test_every_group_says_in_words_what_it_assumes() -> None:
    assert set(group_words()) == {row.group for row in ROWS}


def test_a_row_has_figures_if_and_only_if_it_fitted() -> None:
    assert [row.name for row in ROWS if bool(row.figures) != row.fits] == []


def test_figures_have_names_that_can_be_read() -> None:
    assert {figure.name for row in ROWS for figure in row.figures} <= set(NAMES)


def test_causes_name_figures_of_their_row() -> None:
    for row in ROWS:
        assert set(row.causes) <= {"*", *(figure.name for figure in row.figures)}


def test_cards_versions_and_policies_are_known() -> None:
    for row in ROWS:
        assert find(row.gpu).name == row.gpu
        assert str(TorchVersion.parse(row.torch)) == row.torch
        assert row.addresses in POLICIES


def test_what_was_measured_fits_the_card() -> None:
    for row in ROWS:
        assert all(figure.num_bytes < find(row.gpu).total_bytes for figure in row.figures)
