"""Settings that hold for every test."""

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: properties are about values, and time has its own tests.
# In CI the profile that Hypothesis loads there stays underneath: the same examples every time.
settings.register_profile(
    "memfit", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("memfit")
