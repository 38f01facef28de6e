"""What `--jobs MODULE[:ATTR]` finds, and how it says what it does not find."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsched.errors import ConfigError
from dsched.worker.handlers import HandlerRegistry, load_handlers

GOOD = """
    from dsched import job

    @job("first")
    def one(ctx): ...

    @job("second", handler="other")
    async def two(ctx): ...

    def plain(ctx): ...

    class Box:
        inner = one

    both = [one, two]
    named = {"a": one}
    empty = ()
    mixed = [one, plain]
    number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, name: str, source: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("good_jobs", ["first", "other"]),
        ("good_jobs:one", ["first"]),
        ("good_jobs:Box.inner", ["first"]),
        ("good_jobs:both", ["first", "other"]),
        ("good_jobs:named", ["first"]),
        ("good_jobs.py", ["first", "other"]),
        ("./good_jobs.py:two", ["other"]),
    ],
)
def test_a_spec_finds_handlers(folder: Path, spec: str, names: list[str]) -> None:
    write(folder, "good_jobs.py", GOOD)
    registry = load_handlers([spec])
    assert registry.names == names
    assert [declaration.handler for declaration in registry.declarations] == names
    assert registry.get("plain") is None


def test_specs_add_up_and_the_same_function_twice_is_no_clash(folder: Path) -> None:
    write(folder, "good_jobs.py", GOOD)
    assert load_handlers(["good_jobs:one", "good_jobs:two", "good_jobs", "good_jobs.py"]).names == ["first", "other"]


def test_a_path_elsewhere_finds_its_neighbours(folder: Path) -> None:
    write(folder, "far/jobs_far.py", "from dsched import job\nfrom near_far import name\n@job(name)\ndef f(ctx): ...\n")
    write(folder, "far/near_far.py", "name = 'near'\n")
    assert load_handlers(["far/jobs_far.py"]).names == ["near"]


def test_a_file_may_be_called_as_a_module_that_is_loaded(folder: Path) -> None:
    write(folder, "json.py", "from dsched import job\n@job('x')\ndef f(ctx): ...\n")
    first, second = load_handlers(["json.py"]), load_handlers(["json.py"])
    assert first.names == ["x"]
    assert first.get("x") is second.get("x")


@pytest.mark.parametrize(
    ("spec", "source", "reason"),
    [
        ("bad_jobs", None, "there is no module 'bad_jobs'"),
        ("bad_jobs.sub", None, "there is no module 'bad_jobs'"),
        ("bad_jobs.py", None, "there is no file"),
        ("", None, "is empty"),
        ("bad_jobs", "def f(:", "syntax error in"),
        ("bad_jobs.py", "x = 1\ndef f(:", "line 2"),
        ("bad_jobs", "import surely_not_installed", "imports 'surely_not_installed', which is not installed"),
        ("bad_jobs", "x = 1\n1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("bad_jobs", "raise SystemExit(3)", "cannot be imported: SystemExit"),
        ("bad_jobs", "from dsched import job\n@job('a b')\ndef f(ctx): ...", "InvalidValue: name: must be"),
        ("bad_jobs", "def f(ctx): ...", "no jobs in bad_jobs"),
        ("bad_jobs:g", "def f(ctx): ...", "bad_jobs has no attribute 'g'"),
        ("bad_jobs:f", "def f(ctx): ...", "f (function) is not decorated with @job"),
        ("bad_jobs:number", GOOD, "number (int) is not decorated with @job"),
        ("bad_jobs:empty", GOOD, "empty is empty"),
        ("bad_jobs:mixed", GOOD, "which is not decorated with @job"),
        ("bad_jobs:", GOOD, "has no attribute ''"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_reason(folder: Path, spec: str, source: str | None, reason: str) -> None:
    if source is not None:
        write(folder, "bad_jobs.py", source)
    with pytest.raises(ConfigError) as caught:
        load_handlers([spec])
    [problem] = caught.value.problems
    assert problem.startswith(f"--jobs {spec}: ")
    assert reason in problem


def test_an_error_at_import_names_its_line(folder: Path) -> None:
    path = write(folder, "bad_line.py", "x = 1\ny = 2\n1 / 0\n")
    with pytest.raises(ConfigError, match=f"{path.name}, line 3"):
        load_handlers(["bad_line"])


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("@job('a', timeout=-1)\ndef f(ctx): ...", 3),
        ("@job('a b')\ndef f(ctx): ...", 3),
        ("@job('a')\ndef f(ctx):\n    yield 1", 3),
        ("@job('a')\ndef f(): ...", 3),
        ("@job('a', params={1: 2})\ndef f(ctx): ...", 3),
        ("@job('a', interval=0)\ndef f(ctx): ...", 3),
        ("@job('a')\n@job('b')\ndef f(ctx): ...", 3),
        ("def declare():\n    job('a')(3)\n\ndeclare()", 4),
        ("job(nonsense=1)(lambda ctx: 1)", 3),
        ("import json\njson.loads('{')", None),
    ],
)
def test_a_declaration_that_is_refused_names_the_line_of_its_module(
    folder: Path, source: str, line: int | None
) -> None:
    path = write(folder, "bad_declaration.py", f"from dsched import job\n\n{source}\n")
    for spec in ("bad_declaration", "bad_declaration.py"):
        with pytest.raises(ConfigError) as caught:
            load_handlers([spec])
        [problem] = caught.value.problems
        # What a library raises is told with its place there.
        assert (f"({path}, line {line})" in problem) is (line is not None), problem
        assert "/dsched/" not in problem


def test_all_problems_are_told(folder: Path) -> None:
    write(folder, "twin_a.py", "from dsched import job\n@job('x')\ndef f(ctx): ...\n")
    write(folder, "twin_b.py", "from dsched import job\n@job('y', handler='x')\ndef g(ctx): ...\n")
    with pytest.raises(ConfigError) as caught:
        load_handlers(["twin_a", "nowhere_at_all", "twin_b"])
    first, second = caught.value.problems
    assert "nowhere_at_all" in first
    assert second == "--jobs twin_b: handler 'x' is offered by twin_a.f and by twin_b.g"


def test_nothing_named_is_nothing_offered() -> None:
    assert load_handlers([]).names == []
    assert len(HandlerRegistry()) == 0
