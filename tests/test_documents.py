"""What the documents name exists, and their tables are those of the code."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dsched.cli.main import cli
from dsched.config import TABLES, CoreSettings, read_settings
from dsched.engine.settings import EngineSettings
from dsched.errors import InvalidValue
from dsched.model.run import RunState
from dsched.model.task import TERMINAL, TRANSITIONS, TaskState
from dsched.tap import CoreOptions, WorkerOptions
from dsched.triggers.spec import parse_trigger
from dsched.web.app import ROUTES
from dsched.worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
DOCUMENTS = [*NAMES, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]

_LINK = re.compile(r"\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
# A path of this tree inside backquotes. A part in capitals, as in `tests/unit/PACKAGE/`, stands for any folder.
_PATH = re.compile(r"`(?P<path>(?:dsched|tests|docs|examples|benchmarks|scripts|twisted|\.ci)/[\w./-]*)[^`\s]*`")
_MODULE = re.compile(r"`(?P<name>dsched(?:\.[a-z_]+)+)`(?<!`dsched\.db`)")
_HEADING = re.compile(r"^#+ (?P<text>.*)$", re.MULTILINE)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Return what stands under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


def anchors(text: str) -> set[str]:
    """Return the fragments that lead to the headings of a document."""
    return {re.sub(r"[^\w -]", "", heading["text"]).lower().replace(" ", "-") for heading in _HEADING.finditer(text)}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    for link in _LINK.finditer(read(name)):
        path, _, fragment = link["target"].partition("#")
        if re.match(r"https?:", path):
            continue
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link[0]
        if fragment:
            assert fragment in anchors(target.read_text(encoding="utf-8")), link[0]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_and_modules_exist(name: str) -> None:
    text = read(name)
    for found in _PATH.finditer(text):
        parts = [part for part in found["path"].split("/") if not part.isupper()]
        assert ROOT.joinpath(*parts).exists(), found[0]
    for module in _MODULE.finditer(text):
        path = ROOT.joinpath(*module["name"].split("."))
        # The last part may be a name inside a module.
        places = (path, path.with_suffix(".py"), path.parent.with_suffix(".py"))
        assert any(place.exists() for place in places), module[0]


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    for name in DOCUMENTS:
        named = set(re.findall(r"`(?:\w+=\S+ )?make ([a-z]+)`", read(name)))
        assert named <= targets, name


def test_the_house_has_every_room() -> None:
    rows = section(read("ARCHITECTURE.md"), "The house")
    rooms = {path.strip("/").split("/")[1] for path in re.findall(r"`(dsched/[\w./]+)`", rows)}
    there = {
        path.name
        for path in (ROOT / "dsched").iterdir()
        if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")))
    }
    assert rooms == there - {"__init__.py"}


def test_the_diagram_is_the_transition_table() -> None:
    diagram = section(read("ARCHITECTURE.md"), "The states of a task")
    drawn = re.findall(r"^ +(\w+) --> (\w+): (\w+)$", diagram, re.MULTILINE)
    table = [(before, after, event) for before, events in TRANSITIONS.items() for event, after in events.items()]
    assert sorted(drawn) == sorted((str(before), str(after), str(event)) for before, after, event in table)
    assert set(re.findall(r"(\w+) --> \[\*\]", diagram)) == {str(state) for state in TERMINAL}


def test_the_routes_are_those_of_the_api() -> None:
    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \|", section(read("README.md"), "HTTP API"), re.MULTILINE)
    assert sorted(rows) == sorted((route.method, route.path) for route in ROUTES.by_name.values())


def test_the_statuses_are_those_of_runs_and_tasks() -> None:
    text = section(read("README.md"), "HTTP API")
    [(runs, tasks)] = re.findall(r"^(A run is `.*?)(A task is `.*?)\[", text, re.DOTALL | re.MULTILINE)
    for told, states in ((runs, RunState), (tasks, TaskState)):
        assert sorted(re.findall(r"`([A-Z]+)`", told)) == sorted(states)


def test_the_state_of_this_version() -> None:
    lines = section(read("README.md"), "State of this version").splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith("|")][2:]
    there, missing = (" ".join(column) for column in zip(*rows, strict=True))
    assert set(re.findall(r"`dsched (\w+)`", there)) == set(cli.commands)
    methods = {route.method for route in ROUTES.by_name.values()}
    has = {
        **{kind: is_trigger(kind) for kind in ("interval", "cron", "once", "delay")},
        "pruning": "history_days" in CoreSettings.__dataclass_fields__,
        "metrics": any(route.path == "/metrics" for route in ROUTES.by_name.values()),
        "edit of jobs": bool(methods & {"PUT", "PATCH"}),
    }
    assert {what: (what in there, what in missing) for what in has} == {what: (it, not it) for what, it in has.items()}


def is_trigger(kind: str) -> bool:
    try:
        parse_trigger({"type": kind, "seconds": 1}, created_ms=0)
    except InvalidValue as error:
        return error.field != "trigger.type"
    return True


def test_the_options_are_those_of_the_roles() -> None:
    core, worker = section(read("README.md"), "Options").split("`twistd dsched-worker`:")
    for rows, options in ((core, CoreOptions), (worker, WorkerOptions)):
        named = re.findall(r"^\| `--([a-z-]+)` \|", rows, re.MULTILINE)
        assert sorted(named) == sorted(options().keys())


def test_the_file_of_settings_is_taken(tmp_path: Path) -> None:
    [text] = re.findall(r"^```toml\n(.*?)^```$", read("README.md"), re.DOTALL | re.MULTILINE)
    assert set(tomllib.loads(text)) == set(TABLES)
    path = tmp_path / "dsched.toml"
    path.write_text(text, encoding="utf-8")
    options: dict[str, Any] = {"config": path}
    core, engine = read_settings("core", (CoreSettings, EngineSettings), options=options, environ={})
    assert (core.store, engine.resume_grace_s) == ("sqlite:////var/lib/dsched/dsched.db", 5)
    [worker] = read_settings(
        "worker",
        (WorkerSettings,),
        options=options,
        environ={},
        names={"cores": "core", "worker_id": "id", "tags": "tag"},
        defaults={"worker_id": "one"},
    )
    assert (worker.cores, worker.jobs, worker.drain_s) == ((("127.0.0.1", 8080),), ("jobs.py",), 30)
