"""The command line before any process is started."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dsched import __version__
from dsched.cli.demo import command
from dsched.cli.demo.scene import Plan
from dsched.cli.main import cli


def plan_of(monkeypatch: pytest.MonkeyPatch, *options: str) -> Plan:
    """Return what `dsched demo` would play."""
    plans: list[Plan] = []

    def play(plan: Plan, board: object) -> bool:
        plans.append(plan)
        return True

    monkeypatch.setattr(command, "play", play)
    result = CliRunner().invoke(cli, ["demo", *options])
    assert result.exit_code == 0, result.output
    return plans[0]


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
