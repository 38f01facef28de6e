"""Settings of all tests, and the MySQL or MariaDB server that they share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from dsched.testing.mariadb import Databases

# No deadlines: the machines that run the tests are shared, and elapsed time is not what they assert.
settings.register_profile("dsched", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("soak", parent=settings.get_profile("dsched"), max_examples=5_000)
settings.load_profile("dsched")


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """Make databases on the server of DSCHED_TEST_MYSQL_URL, else on one that these tests start."""
    found = Databases(os.environ.get("DSCHED_TEST_MYSQL_URL"))
    yield found
    found.close()


@pytest.fixture
def mysql_url(databases: Databases) -> Iterator[str]:
    """Return the store URL of an empty database."""
    url = databases.fresh()
    yield url
    databases.drop(url)
