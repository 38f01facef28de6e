"""The command line before any process is started."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dsched import __version__
from dsched.cli.demo import command
from dsched.cli.demo.scene import Plan
from dsched.cli.main import cli


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the store of whoever runs the tests out of them."""
    monkeypatch.delenv("DSCHED_STORE", raising=False)
    monkeypatch.delenv("DSCHED_STORE_PASSWORD", raising=False)


def played(monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[Plan, str]:
    """Return what `dsched demo` would play, and what it says before."""
    plans: list[Plan] = []

    def play(plan: Plan, board: object) -> bool:
        plans.append(plan)
        return True

    monkeypatch.setattr(command, "play", play)
    result = CliRunner().invoke(cli, ["demo", *options])
    assert result.exit_code == 0, result.output
    return plans[0], result.output


def plan_of(monkeypatch: pytest.MonkeyPatch, *options: str) -> Plan:
    return played(monkeypatch, *options)[0]


def test_it_tells_its_version() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"dsched {__version__}\n"


def test_without_a_command_it_explains_itself() -> None:
    result = CliRunner().invoke(cli, [])
    assert result.exit_code == 0
    assert "demo" in result.output


def test_the_demo_has_the_documented_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_of(monkeypatch) == Plan(workers=3, shards=10, kill=True, path=None, store=None)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("sqlite:///a/b.db", "sqlite:///{here}/a/b.db"),
        ("sqlite:///b.db?synchronous=NORMAL", "sqlite:///{here}/b.db?synchronous=NORMAL"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("mysql://u:p@h/d?tls=require", "mysql://u:p@h/d?tls=require"),
    ],
)
def test_a_store_is_seen_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, used: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert plan_of(monkeypatch, "--store", given).store == used.format(here=tmp_path)


@pytest.mark.parametrize(
    ("environ", "options", "used", "told"),
    [
        (None, [], None, "a temporary SQLite file"),
        ("", [], None, "a temporary SQLite file"),
        ("sqlite:///b.db", [], "sqlite:///{here}/b.db", "sqlite:///{here}/b.db (DSCHED_STORE)"),
        ("mysql://u@h/d", ["--store", "sqlite:////a.db"], "sqlite:////a.db", "sqlite:////a.db (--store)"),
        ("mysql://u:secret@h/d", [], "mysql://u:secret@h/d", "mysql://u@h:3306/d (DSCHED_STORE)"),
    ],
)
def test_the_store_may_come_from_the_environment_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    environ: str | None,
    options: list[str],
    used: str | None,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSCHED_STORE_PASSWORD", "another secret")
    if environ is not None:
        monkeypatch.setenv("DSCHED_STORE", environ)
    plan, said = played(monkeypatch, *options)
    assert plan.store == (used and used.format(here=tmp_path))
    assert f"the store is {told.format(here=tmp_path)}\n" in said
    assert "secret" not in said


@pytest.mark.parametrize("store", ["memory:", "postgres://u:secret@h/d", "mysql://u:secret@h", "mysql://u:secret@[h/d"])
def test_a_store_from_the_environment_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.setenv("DSCHED_STORE", store)
    result = CliRunner().invoke(cli, ["demo"])
    assert result.exit_code == 2
    assert "DSCHED_STORE: " in result.output and "secret" not in result.output


def test_a_path_is_seen_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    monkeypatch.chdir(tmp_path)
    assert plan_of(monkeypatch, "--path", "sources").path == tmp_path / "sources"


@pytest.mark.parametrize(
    "options",
    [["--workers", "0"], ["--workers", "51"], ["--workers", "1"], ["--shards", "0"], ["--path", "/nowhere"],
     ["--store", "x"], ["--store", "sqlite:///"], ["--store", "mysql://u@h"]],
)  # fmt: skip
def test_wrong_use_is_refused(options: list[str]) -> None:
    assert CliRunner().invoke(cli, ["demo", *options]).exit_code == 2
