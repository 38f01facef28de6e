"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# No deadlines: the machines that run the tests are shared, and elapsed time is not what they assert.
settings.register_profile("dsched", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("soak", parent=settings.get_profile("dsched"), max_examples=5_000)
settings.load_profile("dsched")
