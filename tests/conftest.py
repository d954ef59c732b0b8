"""Settings that hold for every test."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: properties are about values, and time has its own tests.
# In CI the profile that Hypothesis loads there stays underneath: the same examples every time.
settings.register_profile(
    "memfit", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("memfit")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of this test run's own, shared by its processes: the user's stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMFIT_CACHE", str(tmp_path_factory.getbasetemp().parent / "memfit-cache"))
        yield
