"""The options of both roles, and what is made of them; nothing is started."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock as ManualReactor
from twisted.logger import LogLevel, capturedLogs, formatEvent

from dsched.clock import Clock
from dsched.tap import CoreOptions, CoreRole, CoreRoleService, Ending, WorkerOptions, WorkerRole, WorkerRoleService
from dsched.worker.service import WorkerService

JOBS = "from dsched import job\n\n\n@job\ndef hello(ctx):\n    return 1\n"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings come from the options only; files would land in `tmp_path`; the reactor stays as it is for others."""
    from twisted.internet import reactor

    for name in ("seconds", "sigInt", "sigTerm"):
        monkeypatch.setattr(reactor, name, getattr(reactor, name))
    for name in [name for name in os.environ if name.startswith("DSCHED_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def refusal(capsys: pytest.CaptureFixture[str], options: CoreOptions | WorkerOptions, *given: str) -> str:
    """Return the one line that goes with exit code 2."""
    with pytest.raises(SystemExit) as caught:
        options.parseOptions(list(given))
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_the_core_takes_what_is_documented() -> None:
    options = CoreOptions()
    options.parseOptions(
        ["--listen=1001", "--admin=localhost:1002", "--store=sqlite:///x.db", "--advertise=a:1", "--admin-url=http://b"]
    )
    settings, _ = options.settings
    assert (str(settings.listen), str(settings.admin)) == ("127.0.0.1:1001", "127.0.0.1:1002")
    assert (settings.store, settings.worker_address, settings.url) == ("sqlite:///x.db", "a:1", "http://b")


def test_the_worker_takes_what_is_documented() -> None:
    options = WorkerOptions()
    options.parseOptions(
        ["--core=1001", "--core=b:1002", "--jobs=x", "--jobs=y:z", "--id=w", "--group=g", "--slots=3", "--tag=s",
         "--tag=t", "--weight=2"]
    )  # fmt: skip
    settings = options.settings
    assert settings.cores == (("127.0.0.1", 1001), ("b", 1002))
    assert (settings.jobs, settings.tags) == (("x", "y:z"), ("s", "t"))
    assert (settings.worker_id, settings.group, settings.slots, settings.weight) == ("w", "g", 3, 2)


def start_worker(*given: str) -> WorkerRoleService:
    options = WorkerOptions()
    options.parseOptions(["--core=1", *given])
    service = WorkerRole.makeService(options)
    assert isinstance(service, WorkerRoleService)
    service.startService()
    return service


def stop(*services: WorkerRoleService) -> None:
    for service in services:
        stopped = service.stopService()
        assert stopped.called and stopped.result is None


def id_of(service: WorkerRoleService) -> str:
    [worker] = service.services
    assert isinstance(worker, WorkerService)
    return worker.settings.worker_id


def test_workers_without_options_have_ids_and_ledgers_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second = start_worker(), start_worker()
    ids = [id_of(first), id_of(second)]
    assert ids[0] != ids[1]
    assert {path.parent.name for path in (tmp_path / "dsched").glob("*/ledger")} == set(ids)
    stop(first)
    again = start_worker()
    assert id_of(again) == ids[0]
    stop(again, second)


def test_the_place_of_the_state_can_be_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSCHED_STATE_DIR", str(tmp_path / "a"))
    monkeypatch.setenv("HOME", str(tmp_path))
    first, second = start_worker("--id=one"), start_worker("--id=one", "--state-dir=~/b")
    assert (tmp_path / "a" / "one" / "ledger").exists()
    assert (tmp_path / "b" / "one" / "ledger").exists()
    stop(first, second)


def test_a_worker_whose_state_another_has_ends_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed: list[Ending] = []
    monkeypatch.setattr(Ending, "fail", lambda ending: failed.append(ending))
    first = start_worker("--id=one", f"--state-dir={tmp_path}")
    second = start_worker("--id=one", f"--state-dir={tmp_path}")
    assert len(failed) == 1
    assert second.services == []
    stop(second, first)


@pytest.mark.parametrize(
    ("given", "part"),
    [(["--nonsense"], "nonsense"), (["x"], "argument"), (["--listen"], "listen"), (["--admin=0.0.0.0:1"], "tunnel"),
     (["--config=nowhere"], "nowhere")],
)  # fmt: skip
def test_a_core_refuses_in_one_line(capsys: pytest.CaptureFixture[str], given: list[str], part: str) -> None:
    line = refusal(capsys, CoreOptions(), *given)
    assert line.startswith("dsched-core: ")
    assert part in line


def test_a_worker_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, WorkerOptions(), "--slots=0", "--id=a b")
    for part in ("dsched-worker: ", "--core", "--slots", "--id"):
        assert part in line


def test_each_role_refuses_unknown_variables_and_knows_those_of_the_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STORE", "STORE_PASSWORD", "LISTEN", "LEASE_S", "SLOTS", "CORE", "ID", "TEST_MYSQL_URL"):
        monkeypatch.setenv(f"DSCHED_{name}", "1")
    monkeypatch.setenv("DSCHED_STORE", "sqlite:///x.db")
    WorkerOptions().parseOptions([])
    CoreOptions().parseOptions([])
    monkeypatch.setenv("DSCHED_SLOTZ", "4")
    for options in (WorkerOptions(), CoreOptions()):
        assert "no setting 'DSCHED_SLOTZ'; did you mean DSCHED_SLOTS?" in refusal(capsys, options)


def test_a_worker_that_offers_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "hello_jobs.py").write_text(JOBS)
    for given, warnings in (([], 1), ([f"--jobs={tmp_path / 'hello_jobs.py'}"], 0)):
        with capturedLogs() as events:
            stop(start_worker("--id=one", f"--state-dir={tmp_path}", *given))
        said = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
        assert len([line for line in said if "--jobs" in line and "offers no handler" in line]) == warnings


def test_handlers_that_are_missing_are_told_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    options = WorkerOptions()
    options.parseOptions(["--core=1", "--jobs=no_such_module"])
    with pytest.raises(SystemExit):
        WorkerRole.makeService(options)
    assert "no_such_module" in capsys.readouterr().err


def test_making_a_service_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "hello_jobs.py").write_text(JOBS)
    # twistd forks after this, and whatever is open by then is open twice.
    before = open_files()
    core = CoreOptions()
    core.parseOptions(["--listen=1", "--admin=2", "--store=sqlite:///x.db"])
    assert isinstance(CoreRole.makeService(core), CoreRoleService)
    worker = WorkerOptions()
    worker.parseOptions(["--core=1", f"--jobs={tmp_path / 'hello_jobs.py'}"])
    assert isinstance(WorkerRole.makeService(worker), WorkerRoleService)
    assert open_files() == before
    assert not (tmp_path / "x.db").exists()
    assert pending_calls() == []


def open_files() -> set[str]:
    from twisted.internet import reactor  # noqa: F401  (its own descriptors are open from here on)

    return {path.name for path in Path("/proc/self/fd").iterdir()}


def pending_calls() -> list[IDelayedCall]:
    from twisted.internet import reactor

    return list(reactor.getDelayedCalls())


class StoppableReactor(ManualReactor):
    """Stops and signals as Twisted's reactors have them; `done` is what became of it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[object] = []

    def sigInt(self, number: int, frame: FrameType | None) -> None:
        self.done.append(number)
        self.callFromThread(self.stop)

    sigTerm = sigInt

    def callFromThread(self, function: Callable[..., Any], *args: Any) -> None:
        self.callLater(0, function, *args)

    callWhenRunning = callFromThread

    def stop(self) -> None:
        if "stop" in self.done:
            raise ReactorNotRunning
        self.done.append("stop")

    def crash(self) -> None:
        self.done.append("crash")


@pytest.fixture
def stoppable(monkeypatch: pytest.MonkeyPatch) -> StoppableReactor:
    # Else the exit code of the tests themselves would be 1.
    monkeypatch.setattr("dsched.tap.atexit.register", lambda function: None)
    return StoppableReactor()


def ending_of(reactor: StoppableReactor) -> Ending:
    ending = Ending("dsched-worker", Clock(reactor))
    ending.take_signals()
    return ending


def test_a_second_signal_does_not_wait_for_the_services(stoppable: StoppableReactor) -> None:
    ending_of(stoppable)
    stoppable.sigInt(signal.SIGINT, None)
    stoppable.pump([0, 5])
    assert stoppable.done == [signal.SIGINT, "stop"]
    stoppable.sigTerm(signal.SIGTERM, None)
    stoppable.pump([0, 0])
    assert stoppable.done == [signal.SIGINT, "stop", "crash"]


def test_signals_that_come_together_are_one(stoppable: StoppableReactor) -> None:
    ending_of(stoppable)
    for _ in range(3):
        stoppable.sigTerm(signal.SIGTERM, None)
    stoppable.pump([0, 0.01])
    stoppable.sigInt(signal.SIGINT, None)
    stoppable.pump([0, 0])
    assert stoppable.done == [signal.SIGTERM, "stop"]


def test_what_fails_while_it_stops_is_stopped_once(stoppable: StoppableReactor) -> None:
    ending = ending_of(stoppable)
    stoppable.sigTerm(signal.SIGTERM, None)
    stoppable.pump([0, 0])
    ending.fail()
    stoppable.pump([0, 0])
    assert stoppable.done == [signal.SIGTERM, "stop"]


def test_what_has_failed_and_hangs_ends_at_the_first_signal(
    stoppable: StoppableReactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsched.tap._exit_with_1", lambda: stoppable.done.append("exit"))
    ending_of(stoppable).fail()
    stoppable.pump([0, 5])
    stoppable.sigTerm(signal.SIGTERM, None)
    stoppable.pump([0, 0])
    assert stoppable.done[:2] == ["stop", "exit"]
