"""Settings: which source wins, what is refused, and that every problem is told."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from dsched.config import Address, CoreSettings, read_settings, variables_of
from dsched.engine.settings import EngineSettings
from dsched.errors import ConfigError
from dsched.worker.settings import WorkerSettings

WORKER_NAMES = {"cores": "core", "worker_id": "id", "tags": "tag"}


def core(options: dict[str, Any] | None = None, environ: dict[str, str] | None = None) -> CoreSettings:
    settings, _ = read_settings("core", (CoreSettings, EngineSettings), options=options or {}, environ=environ or {})
    assert isinstance(settings, CoreSettings)
    return settings


def engine(options: dict[str, Any] | None = None, environ: dict[str, str] | None = None) -> EngineSettings:
    _, settings = read_settings("core", (CoreSettings, EngineSettings), options=options or {}, environ=environ or {})
    assert isinstance(settings, EngineSettings)
    return settings


def worker(options: dict[str, Any] | None = None, environ: dict[str, str] | None = None) -> WorkerSettings:
    [settings] = read_settings(
        "worker",
        (WorkerSettings,),
        options=options or {},
        environ=environ or {},
        names=WORKER_NAMES,
        defaults={"worker_id": "generated", "cores": ()},
    )
    assert isinstance(settings, WorkerSettings)
    return settings


def problems(read: Any, *args: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        read(*args)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8080", "127.0.0.1", 8080),
        ("0", "127.0.0.1", 0),
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("localhost:1", "127.0.0.1", 1),
        ("[::1]:65535", "::1", 65535),
        ("tcp:8080", "", 8080),
        ("tcp:port=8080", "", 8080),
        ("tcp:8080:interface=127.0.0.1", "127.0.0.1", 8080),
        (r"tcp6:8080:interface=\:\:1", "::1", 8080),
        ("tcp:core.example:8080", "core.example", 8080),
        ("tcp:host=core.example:port=8080:timeout=5", "core.example", 8080),
    ],
)
def test_an_address_has_many_forms(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    ["", ":", ":80", "host", "host:", "host:x", "host:65536", "-1", "::1:80", "1:2:3", "٣", "8080 ", "tcp:", "tcp:x",
     "tcp:1:2:3", "tcp:8080:colour=red", "ssl:443", "unix:/run/dsched"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        Address.parse(text)


def test_an_address_prints_as_it_is_written() -> None:
    for text in ("127.0.0.1:80", "[::1]:80"):
        assert str(Address.parse(text)) == text


def test_defaults_are_those_of_the_design() -> None:
    settings = core()
    assert (str(settings.listen), str(settings.admin)) == ("127.0.0.1:8080", "127.0.0.1:8081")
    assert settings.store == "sqlite:///dsched.db"
    assert (settings.worker_address, settings.url) == ("127.0.0.1:8080", "http://127.0.0.1:8081")
    assert (engine().resume_grace_s, engine().lease_s, engine().ping_s) == (5.0, 60.0, 45.0)


def test_options_beat_the_environment_beats_the_file_beats_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "dsched.toml"
    path.write_text('[core]\nlisten = 1001\nadmin = "1002"\nadvertise = "core:1"\nlease_s = 30\n[worker]\nslots = 3\n')
    environ = {"DSCHED_CONFIG": str(path), "DSCHED_ADMIN": "2002", "DSCHED_LISTEN": "2001", "DSCHED_ELSEWHERE": "x"}
    settings = core({"listen": "3001", "store": None}, environ)
    assert (settings.listen.port, settings.admin.port, settings.advertise) == (3001, 2002, "core:1")
    assert settings.store == core().store
    assert engine({}, environ).lease_s == 30.0


def test_a_variable_that_nobody_reads_is_refused_as_in_the_file() -> None:
    others = {*variables_of([CoreSettings]), "DSCHED_STORE_PASSWORD"}
    fine = {"DSCHED_LISTEN": "x", "DSCHED_STORE_PASSWORD": "x", "DSCHED_CONFIG": "", "DSCHED_SLOTS": "2", "SLOTZ": "1"}
    assert unread(fine, others) == ()
    assert unread({**fine, "DSCHED_SLOTZ": "3", "DSCHED_": "", "DSCHED_ELSEWHERE": ""}, others) == (
        "the environment: there is no setting 'DSCHED_'",
        "the environment: there is no setting 'DSCHED_ELSEWHERE'",
        "the environment: there is no setting 'DSCHED_SLOTZ'; did you mean DSCHED_SLOTS?",
    )


def unread(environ: dict[str, str], others: Collection[str]) -> tuple[str, ...]:
    """Return the problems that a worker has with the environment."""
    try:
        read_settings(
            "worker", (WorkerSettings,), options={"core": ["1"]}, environ=environ, names=WORKER_NAMES, others=others
        )
    except ConfigError as error:
        return error.problems
    return ()


@pytest.mark.parametrize(
    "name",
    ["TEST_MYSQL_URL", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8080_TCP",
     "PORT_8080_TCP_ADDR", "CORE_SERVICE_HOST", "CORE_SERVICE_PORT_WORKERS", "CORE_PORT", "CORE_PORT_8081_TCP_PROTO"],
)  # fmt: skip
def test_variables_of_tests_and_of_kubernetes_are_left_alone(name: str) -> None:
    """A pod has such variables for each service of its namespace, one called `dsched-core` too."""
    assert unread({f"DSCHED_{name}": "x"}, ()) == ()
    assert unread({f"DSCHED_{name}X": "x"}, ()) != () or name.startswith(
        ("TEST_", "SERVICE_PORT_", "CORE_SERVICE_PORT_")
    )


def test_the_file_of_the_option_beats_that_of_the_environment(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f'[core]\nadvertise = "{name}:1"\n')
    options = {"config": str(tmp_path / "a")}
    assert core(options, {"DSCHED_CONFIG": str(tmp_path / "b")}).advertise == "a:1"


def test_every_problem_is_told(tmp_path: Path) -> None:
    path = tmp_path / "dsched.toml"
    path.write_text('[core]\nlisen = 1\nlease_s = "long"\nping_s = -1\n[cores]\n')
    found = problems(core, {"config": str(path), "listen": "x", "admin": "0.0.0.0:1"}, {"DSCHED_RESUME_GRACE_S": "nan"})
    told = "\n".join(found)
    for part in ("[cores]", "'lisen'; did you mean listen?", "lease_s: must be a number", "ping_s: must not be",
                 "--listen: must end with a port", "DSCHED_RESUME_GRACE_S: must be a number"):  # fmt: skip
        assert part in told
    assert len(found) == 6
    assert "\n" not in "".join(found)


@pytest.mark.parametrize(
    ("content", "part"),
    [(None, "cannot be read"), (b"\xff", "is not TOML"), (b"core = ", "is not TOML"), (b"core = 1", "must be a table")],
)
def test_a_bad_file_is_one_problem(tmp_path: Path, content: bytes | None, part: str) -> None:
    path = tmp_path / "dsched.toml"
    if content is not None:
        path.write_bytes(content)
    [problem] = problems(core, {"config": str(path)})
    assert problem.startswith(str(path))
    assert part in problem


@pytest.mark.parametrize(
    "address", ["0.0.0.0:8080", "tcp:8080", "[::]:8080", "10.1.2.3:8080", "tcp:8080:interface=eth0"]
)
@pytest.mark.parametrize("name", ["listen", "admin"])
def test_only_loopback_is_listened_on(name: str, address: str) -> None:
    [problem] = problems(core, {name: address, ("admin" if name == "listen" else "listen"): "1"})
    assert problem.startswith(f"--{name}")
    assert "use 127.0.0.1:8080, or put a tunnel in front; tokens come in a later version" in problem


def test_the_two_ports_differ() -> None:
    assert "same address" in problems(core, {"listen": "80", "admin": "80"})[0]


def test_port_0_is_refused() -> None:
    assert problems(core, {"listen": "0"}) == ("--listen: port 0 is no port that anybody could be told",)


@pytest.mark.parametrize("value", ["", "1e999", "inf", "nan", "x", "-0.1", True, [], {}])
def test_durations_are_numbers(value: object) -> None:
    assert "lease_s" in problems(engine, {"lease_s": value})[0].replace("-", "_")


@pytest.mark.parametrize("value", ["1.5", 1.5, "x", True, "9" * 5000])
def test_counts_are_whole(value: object) -> None:
    assert problems(worker, {"core": "1", "slots": value})


def test_lists_come_from_options_the_environment_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "dsched.toml"
    path.write_text('[worker]\ncore = ["a:1", "tcp:b:2"]\ntag = ["x"]\nid = "w"\nweight = 2\n')
    settings = worker({"config": str(path), "jobs": ["one", "two"]}, {"DSCHED_TAG": "y, z"})
    assert settings.cores == (("a", 1), ("b", 2))
    assert settings.jobs == ("one", "two")
    assert settings.tags == ("y", "z")
    assert (settings.worker_id, settings.weight) == ("w", 2)


def test_a_worker_needs_a_core() -> None:
    assert problems(worker) == ("--core: at least one HOST:PORT is needed",)
    assert worker({"core": ["8080"]}).worker_id == "generated"


def test_a_value_that_cannot_be_read_is_one_problem() -> None:
    [problem] = problems(worker, {"core": ["nonsense"]})
    assert problem.startswith("--core: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("advertise", "nohost"),
        ("advertise", "host:0"),
        ("advertise", "a b:1"),
        ("admin-url", "foo"),
        ("admin-url", "ftp://x"),
    ],
)
def test_what_others_would_be_told_must_make_sense(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name}"):
        core({name.replace("-", "_"): value}, {})


def test_history_is_kept_for_30_days_or_as_long_as_somebody_says(tmp_path: Path) -> None:
    assert core().history_days == 30
    file = tmp_path / "dsched.toml"
    file.write_text("[core]\nhistory_days = 7\n")
    assert core({"config": str(file)}).history_days == 7
    assert core({"config": str(file)}, {"DSCHED_HISTORY_DAYS": "0"}).history_days == 0
    assert core({"history_days": "90"}, {"DSCHED_HISTORY_DAYS": "0"}).history_days == 90
    for wrong in ("-1", "x", "1.5"):
        assert problems(core, {"history_days": wrong})
    assert "at most 36500" in problems(lambda: core({"history_days": "36501"}).validate())[0]
