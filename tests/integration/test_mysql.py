"""A core on a MariaDB server that comes late, goes, and comes back."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsched.cli.processes import CoreProcess, WorkerProcess, wait_until
from dsched.client import Client
from dsched.errors import StoreUnavailable
from dsched.testing.mariadb import MariaDbServer

pytestmark = pytest.mark.integration

RECORDING_JOBS = str(Path(__file__).with_name("recording_jobs.py"))


@pytest.fixture
def server() -> Iterator[MariaDbServer]:
    with MariaDbServer() as server:
        yield server


def test_a_core_waits_for_its_server_and_goes_on_after_a_restart(server: MariaDbServer, tmp_path: Path) -> None:
    """Case B083: with real processes."""
    name = server.create_database()
    server.execute("CREATE USER app@'127.0.0.1' IDENTIFIED BY 'hush'", f"GRANT ALL ON {name}.* TO app@'127.0.0.1'")
    server.shut_down()
    core = CoreProcess(tmp_path, store=server.url(name, "app", "hush"))
    trace = tmp_path / "executions"
    with core, WorkerProcess(tmp_path, "one", core.address, [RECORDING_JOBS]) as worker:
        core.wait_for(lambda: "cannot be opened yet" in core.log_tail(100), 30, "the core to miss its server")
        server.start()
        core.wait_ready()
        core.wait_for_workers([worker])
        assert core.client.status()["store"] == server.url(name, "app")
        core.client.create_job({"name": "record", "timeout": 60})

        def run(key: str) -> str:
            params = {"file": str(trace), "work_s": 0.5}
            return str(core.client.trigger("record", params=params, sharding_total=5, key=key)["id"])

        before = run("before")
        server.kill()
        server.start()
        wait_until(core.client.leads, 5, "the core to find its server again")
        after = run("after")
        for run_id in (before, after):
            assert core.client.run(run_id, wait_s=30)["counts"] == {"SUCCESS": 5}
    doubled = f"SELECT count(*) FROM {name}.schedule_job WHERE status <> 'SUCCESS' OR attempt <> 1"
    assert server.execute(doubled) == [(0,)]
    assert "hush" not in core.log_path.read_text(encoding="utf-8")


def test_a_hundred_people_submit_while_the_server_restarts(server: MariaDbServer, tmp_path: Path) -> None:
    """Cases B083 and B087: who is told 503 asks again with the same key; never two rows, and nobody waits for ever."""
    name = server.create_database()
    core = CoreProcess(tmp_path, store=server.url(name))
    trace = tmp_path / "executions"
    with core, WorkerProcess(tmp_path, "one", core.address, [RECORDING_JOBS], slots=50) as worker:
        core.wait_ready()
        core.wait_for_workers([worker])
        core.client.create_job({"name": "record", "timeout": 60})
        began_s = time.monotonic()
        told: list[str] = []

        def submit(number: int) -> str:
            with Client(core.url, timeout_s=30.0) as client:
                while True:
                    try:
                        params = {"file": str(trace), "work_s": 0.1}
                        run_id = str(client.trigger("record", params=params, key=str(number))["id"])
                        assert client.run(run_id)["id"] == run_id
                        return run_id
                    except StoreUnavailable as error:
                        assert time.monotonic() - began_s < 60, "the store did not come back"
                        told.append(error.message)
                        time.sleep(0.1)

        with ThreadPoolExecutor(100) as people:
            asked = [people.submit(submit, number) for number in range(1000)]
            # In the middle: most of them wait for a commit.
            wait_until(lambda: sum(each.done() for each in asked) > 100, 30, "some answers")
            server.kill()
            wait_until(lambda: len(told) > 50, 30, "people to be told")
            server.start()
            ids = [each.result(60) for each in asked]
        assert len(set(ids)) == 1000
        wait_until(lambda: core.client.pending()["pending"] == 0, 60, "the end of everything")
    states = f"SELECT status, count(*), count(DISTINCT run_id) FROM {name}.schedule_job GROUP BY status"
    assert server.execute(states) == [("SUCCESS", 1000, 1000)]
