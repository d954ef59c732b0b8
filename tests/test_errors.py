"""The tree of errors, and what each of them says."""

import pytest

from memfit.errors import BadInput, DamagedFile, DoesNotFit, MemfitError, MissingExtra, UnknownName


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (MemfitError("x"), 2),
        (BadInput("x"), 2),
        (UnknownName("GPU", "x", [], "see `memfit gpus`"), 2),
        (DamagedFile("x"), 2),
        (DoesNotFit("x", smallest_bytes=1), 3),
        (MissingExtra("pyarrow", "parquet", "reading parquet"), 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_error_is_a_memfit_error_and_knows_its_exit_code(
    error: MemfitError, exit_code: int
) -> None:
    assert isinstance(error, MemfitError)
    assert error.exit_code == exit_code


def test_what_a_user_can_cause_is_also_the_error_that_python_has_for_it() -> None:
    assert issubclass(BadInput, ValueError)
    assert issubclass(UnknownName, BadInput)
    assert issubclass(DamagedFile, BadInput)
    assert issubclass(MissingExtra, ImportError)


def test_an_unknown_name_offers_the_nearest_ones_nearest_first() -> None:
    error = UnknownName(
        "GPU", "RTX4090", ["h100-80gb", "rtx-3090", "rtx-4090"], "see `memfit gpus`"
    )

    assert error.nearest == ["rtx-4090", "rtx-3090"]
    assert str(error) == (
        "no GPU is called 'RTX4090' (nearest: rtx-4090, rtx-3090; see `memfit gpus`)"
    )


def test_a_name_near_to_none_still_says_where_all_are_listed() -> None:
    error = UnknownName("preset", "zzz", ["gpt2", "bert-base"], "see `memfit predict --list`")

    assert error.nearest == []
    assert str(error) == "no preset is called 'zzz' (see `memfit predict --list`)"


def test_what_does_not_fit_says_what_the_smallest_run_needs() -> None:
    assert DoesNotFit("too small", smallest_bytes=123).smallest_bytes == 123


def test_a_missing_extra_says_what_to_install() -> None:
    assert str(MissingExtra("pyarrow", "parquet", "reading parquet")) == (
        "reading parquet needs the package 'pyarrow', which is not installed: "
        "pip install 'memfit[parquet]'"
    )
