from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def warm() -> set[str]:
    """Jobs whose real run has happened once in this process."""
    return set()


@pytest.fixture(scope="session", autouse=True)
def learnt_scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of learnt scratch of this test run's own, shared by its processes."""
    folder = tmp_path_factory.getbasetemp().parent / "memfit-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMFIT_CACHE", str(folder))
        yield folder
