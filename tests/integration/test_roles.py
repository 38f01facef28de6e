"""The roles of twistd as an operator meets them: what they refuse, and how they say so."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsched.cli.processes import CoreProcess, role_command, wait_until
from dsched.net.ports import free_port

pytestmark = pytest.mark.integration

LIMIT_S = 60
JOBS = str(Path(__file__).with_name("recording_jobs.py"))


def run_role(folder: Path, role: str, *options: str) -> subprocess.CompletedProcess[str]:
    # Settings come from the options alone.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DSCHED_")}
    return subprocess.run(
        role_command(role, *options), cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


def refused(folder: Path, role: str, *options: str) -> str:
    """Return the one line with which a role refused to start."""
    done = run_role(folder, role, *options)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("role", "options", "part"),
    [
        ("dsched-core", ["--nonsense"], "nonsense"),
        ("dsched-core", ["more"], "argument"),
        ("dsched-core", ["--listen", "x"], "--listen"),
        ("dsched-core", ["--store", "postgres://localhost/x"], "store"),
        ("dsched-core", ["--config", "nowhere.toml"], "nowhere.toml"),
        ("dsched-worker", ["--jobs", JOBS], "--core"),
        ("dsched-worker", ["--core", "nonsense", "--jobs", JOBS], "--core"),
        ("dsched-worker", ["--core", "8080", "--jobs", "no_such_module"], "no_such_module"),
        ("dsched-worker", ["--core", "8080", "--jobs", JOBS, "--slots", "0"], "--slots"),
        ("dsched-worker", ["--core", "8080", "--jobs", JOBS, "--slots", "x"], "--slots"),
        ("dsched-worker", ["--core", "8080", "--jobs", JOBS, "--id", "a b"], "--id"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(tmp_path: Path, role: str, options: list[str], part: str) -> None:
    line = refused(tmp_path, role, *options)
    assert line.startswith(f"{role}: ")
    assert part in line


@pytest.mark.parametrize("address", ["0.0.0.0:{port}", "tcp:{port}", "[::]:{port}"])
@pytest.mark.parametrize("option", ["--listen", "--admin"])
def test_other_addresses_than_loopback_are_refused(tmp_path: Path, option: str, address: str) -> None:
    port = free_port()
    line = refused(tmp_path, "dsched-core", f"{option}={address.format(port=port)}")
    assert f"use 127.0.0.1:{port}" in line
    assert "tunnel" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taken", ["listen", "admin"])
def test_a_port_in_use_is_named(tmp_path: Path, taken: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        other = "admin" if taken == "listen" else "listen"
        done = run_role(tmp_path, "dsched-core", f"--{taken}={port}", f"--{other}={free_port()}")
    assert done.returncode not in (0, None)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert re.search(rf"127\.0\.0\.1:{port}\D.*in use", said)


def test_settings_come_from_file_and_environment(tmp_path: Path) -> None:
    (tmp_path / "dsched.toml").write_text('[core]\nadvertise = "from-the-file:1"\nadmin_url = "http://from-the-file"\n')
    environ = {"DSCHED_ADVERTISE": "from-the-environment:1"}
    options = [f"--config={tmp_path / 'dsched.toml'}"]
    with CoreProcess(tmp_path, options=options, environ=environ) as core:
        core.wait_ready()
        leader = core.client.status()["leader"]
        assert leader == {"address": "from-the-environment:1", "admin_url": "http://from-the-file"}
        core.terminate()
        # When everything is stopped, twistd ends by the signal that asked for it.
        assert core.wait(LIMIT_S) == -signal.SIGTERM


def test_a_core_that_was_stopped_can_be_started_and_asked_again(tmp_path: Path) -> None:
    with CoreProcess(tmp_path) as core:
        core.wait_ready()
        core.stop()
        core.start()
        core.wait_ready()


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Let children hear SIGINT also where these tests run in the background: shells have it ignored there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_worker_that_waits_for_its_handlers(cluster: Any, number: signal.Signals) -> None:
    cluster.start(workers=1)
    run_id = cluster.trigger(1, 25.0)
    wait_until(lambda: bool(cluster.running(run_id)), LIMIT_S, "the shard to run")
    [worker] = cluster.workers

    def said(part: str) -> bool:
        return part in worker.log_path.read_text(encoding="utf-8")

    began_s = time.monotonic()
    worker.signal(number)
    worker.wait_for(lambda: said("shutting down"), LIMIT_S, "the stop to begin")
    # One that comes along with the first is the same: `timeout`, for example, tells the child and then its group.
    worker.wait_for(lambda: time.monotonic() - began_s > 1.0, LIMIT_S, "a person to lose patience")
    worker.signal(number)
    assert worker.wait(LIMIT_S) == -number
    assert time.monotonic() - began_s < 20.0
    for _ in range(2):
        worker.signal(number)
    assert said(f"{number.name} again")
    assert not said("Traceback") and not said("ReactorNotRunning")
