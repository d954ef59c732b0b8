from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def warm() -> set[str]:
    """Jobs whose real run has happened once in this process."""
    return set()
