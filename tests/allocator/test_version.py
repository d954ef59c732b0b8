"""Which texts are a version of PyTorch, and how versions compare."""

import pytest

from memfit.allocator.version import NEWEST, OLDEST, TorchVersion
from memfit.errors import BadInput


@pytest.mark.parametrize(
    "text", ["2.11", "2.11.0", "2.11.0+cu128", " 2.11.1 ", "2.11.0a0+gitabc12"]
)
def test_patch_and_build_are_left_out(text: str) -> None:
    assert TorchVersion.parse(text) == TorchVersion(2, 11)
    assert str(TorchVersion.parse(text)) == "2.11"


def test_minor_versions_compare_as_numbers() -> None:
    assert TorchVersion.parse("2.9") < TorchVersion.parse("2.10") < (2, 11)


@pytest.mark.parametrize("text", ["", "two", "2", "2.x", "v2.6", "2.11 or so"])
def test_what_is_not_a_version_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"not a version of PyTorch: write for example 2\.14 or"):
        TorchVersion.parse(text)


@pytest.mark.parametrize("text", ["2.5.1", "1.13", "2.15", "3.0"])
def test_versions_whose_rules_are_not_known_are_refused_with_the_range(text: str) -> None:
    with pytest.raises(BadInput, match=r"choose a version from 2\.6 to 2\.14"):
        TorchVersion.parse(text)


def test_the_ends_of_the_range_are_inside() -> None:
    assert [TorchVersion.parse(str(v)) for v in (OLDEST, NEWEST)] == [OLDEST, NEWEST]
