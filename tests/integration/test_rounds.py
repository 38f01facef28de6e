"""Real processes, killed and stopped under load, several clusters side by side: nothing lost, nothing twice.

The last three hurt the database server (cases B083 and B086).
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.rounds.campaign import Running, campaigns, start

pytestmark = pytest.mark.integration

ROUNDS = {"core": 20, "stop": 5, "leader": 5, "worker": 20, "restart": 4, "outage": 1, "server": 3, "deadlock": 300}
LANES = 6
SEED = 1


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    """All campaigns at once: most of their time they wait, so together they take little longer than the longest."""
    folder = tmp_path_factory.mktemp("rounds")
    known = campaigns(long=False)
    with ThreadPoolExecutor(LANES) as pool:
        yield {name: start(known[name], rounds, folder, pool, SEED) for name, rounds in ROUNDS.items()}


@pytest.mark.parametrize("name", ROUNDS)
def test_nothing_is_lost_and_nothing_done_twice(
    running: dict[str, Running], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, failures = running[name].summary()
    with capsys.disabled():
        print(f"\n{summary}")  # noqa: T201
    assert not failures, "\n".join(failures)
