"""A core on a MariaDB server that comes late, goes, and comes back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsched.cli.processes import CoreProcess, WorkerProcess, wait_until
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
