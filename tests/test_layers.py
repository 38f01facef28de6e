"""The house rules that a machine can hold: who may import whom, and what pure packages may not touch.

Each rule reads the syntax tree of one module and returns sentences. They run over the whole tree, and over small
snippets that break them, so that a rule which went blind is noticed.
"""

import ast
import builtins
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Each module or package directly below dsched, lowest layer first. An import goes to a lower layer, or stays inside its
# own package; packages of one layer do not import each other.
LAYERS = (
    ("errors",),
    ("model",),
    ("clock", "config", "triggers", "wire"),
    ("engine",),
    ("store", "cache", "net"),
    ("core", "jobs"),
    ("web", "cluster", "worker", "client"),
    ("tap", "cli", "testing"),
)
LAYER_OF = {part: number for number, parts in enumerate(LAYERS) for part in parts}
# Besides the order.
NEVER = frozenset({("worker", "core"), ("worker", "engine"), ("engine", "clock"), ("engine", "config")})
# What the package itself gives out lazily, and where it comes from.
REEXPORTED = {"job": "jobs", "JobContext": "jobs"}

PURE = frozenset({"model", "triggers", "wire", "engine"})
IMPURE_MODULES = frozenset(
    "twisted asyncio threading multiprocessing concurrent subprocess time logging os io pathlib shutil tempfile socket "
    "select ssl sqlite3 uuid secrets signal queue urllib http getpass platform".split()
)
WALL_CLOCK = frozenset({"now", "utcnow", "today"})

# The one module or package that may import each third-party package. Twisted is the language of the shell: all but the
# pure packages speak it.
OWNERS = {
    "msgspec": "dsched.wire.encoding",
    "sqlite3": "dsched.store.sqlite",
    "pymysql": "dsched.store.mysql",
    "txredisapi": "dsched.cache.redis",
    "cachetools": "dsched.cache.l1",
    "pybloom_live": "dsched.cache.bloom",
    "klein": "dsched.web",
    "werkzeug": "dsched.web",
    "prometheus_client": "dsched.web.metrics",
    "httpx": "dsched.client",
    "click": "dsched.cli",
    "rich": "dsched.cli",
    "pytest": "dsched.testing",
    "hypothesis": "dsched.testing",
    "twisted": "dsched",
    "zope": "dsched",
}
REACTOR = "twisted.internet.reactor"
REACTOR_OWNER = "dsched.tap"

MOST_LINES = 450
VAGUE_NAMES = frozenset({"utils", "util", "common", "helpers", "helper", "manager", "misc"})
DANGEROUS_MODULES = frozenset({"pickle", "cPickle", "marshal", "shelve", "dill"})
DANGEROUS_NAMES = frozenset({"eval", "exec", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"})


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module with its full name.

    `names` maps each name that an import binds to what it stands for; `imports` has the full name of all that is
    imported, in functions and for type checkers too.
    """

    name: str
    tree: ast.Module
    names: dict[str, str]
    imports: tuple[str, ...]

    @property
    def part(self) -> str:
        """The module or package directly below dsched, or nothing for dsched itself."""
        return (self.name.split(".") + [""])[1]

    def nodes(self) -> Iterator[ast.AST]:
        return ast.walk(self.tree)

    def dotted(self, node: ast.AST) -> str:
        """What a name or a chain of attributes refers to, if it was imported or is built in; else nothing."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id if hasattr(builtins, node.id) else "")
        if isinstance(node, ast.Attribute) and (base := self.dotted(node.value)):
            return f"{base}.{node.attr}"
        return ""


def parse(name: str, source: str) -> Module:
    tree = ast.parse(source)
    names: dict[str, str] = {}
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imports.append(alias.name)
                first = alias.name.split(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            for alias in node.names:
                imports.append(f"{origin}.{alias.name}")
                names[alias.asname or alias.name] = f"{origin}.{alias.name}"
        elif isinstance(node, ast.Call):
            imports.extend(imported_by_call(node))
    return Module(name, tree, names, tuple(imports))


def imported_by_call(node: ast.Call) -> Iterator[str]:
    match node:
        case ast.Call(
            func=ast.Name(id=called) | ast.Attribute(attr=called),
            args=[ast.Constant(value=str(target)), *_],
        ) if called in ("import_module", "__import__", "namedAny"):
            yield target


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def imports_only_downwards(module: Module) -> Iterator[str]:
    if module.part and module.part not in LAYER_OF:
        yield f"dsched.{module.part} has no layer: give it one in LAYERS"
        return
    for target in module.imports:
        if target.startswith("."):
            yield f"relative import of {target}"
        elif is_within(target, "dsched"):
            yield from judge_import(module.part, target)


def judge_import(part: str, target: str) -> Iterator[str]:
    below = (target.split(".") + [""])[1]
    below = REEXPORTED.get(below, below)
    if below in ("", "__version__") or below == part:
        return
    if below not in LAYER_OF:
        yield f"dsched.{below} has no layer: give it one in LAYERS"
    elif not part:
        if below not in REEXPORTED.values():
            yield f"the package dsched imports {target}; it only passes on {sorted(REEXPORTED)}"
    elif part == "testing":
        if below in ("tap", "cli"):
            yield f"testing imports {target}"
    elif LAYER_OF[below] >= LAYER_OF[part] or (part, below) in NEVER:
        yield f"{part} imports {target}"


def stays_pure(module: Module) -> Iterator[str]:
    if module.part not in PURE:
        return
    for target in module.imports:
        if target.split(".")[0] in IMPURE_MODULES:
            yield f"pure package imports {target}"
    for node in module.nodes():
        if isinstance(node, ast.Name | ast.Attribute):
            dotted = module.dotted(node)
            if dotted.startswith("random.") and not is_within(dotted, "random.Random"):
                yield f"pure package uses {dotted}; randomness is an argument"
            if dotted.startswith("datetime.") and dotted.rpartition(".")[2] in WALL_CLOCK:
                yield f"pure package uses {dotted}; now is an argument"
        if isinstance(node, ast.Call):
            called = module.dotted(node.func)
            if called in ("random.Random", "random.SystemRandom") and not node.args:
                yield f"pure package calls {called} without a seed"
            if called in ("open", "print", "input"):
                yield f"pure package calls {called}"
            if called == "hash" and module.part == "engine":
                yield "engine calls hash, which differs from process to process"


def owns_what_it_imports(module: Module) -> Iterator[str]:
    for target in module.imports:
        package = target.split(".")[0]
        if package not in OWNERS:
            if package not in ("dsched", "") and package not in sys.stdlib_module_names:
                yield f"{package} has no owner: give it one in OWNERS"
        elif not is_within(module.name, OWNERS[package]):
            yield f"imports {target}, which belongs to {OWNERS[package]}"
    if module.name == REACTOR_OWNER:
        return
    if any(is_within(target, REACTOR) for target in module.imports):
        yield "imports the global reactor"
    elif any(module.dotted(node) == REACTOR for node in module.nodes()):
        yield "uses the global reactor"


def avoids_danger(module: Module) -> Iterator[str]:
    for target in module.imports:
        if target.split(".")[0] in DANGEROUS_MODULES:
            yield f"imports {target}"
    for node in module.nodes():
        if (dotted := module.dotted(node).removeprefix("builtins.")) in DANGEROUS_NAMES:
            yield f"uses {dotted}"
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                    yield "passes shell="


RULES = (imports_only_downwards, stays_pure, owns_what_it_imports, avoids_danger)
Rule = Callable[[Module], Iterator[str]]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> list[Path]:
    return sorted(path for path in (ROOT / "dsched").rglob("*.py") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    modules = [parse(name_of(path), path.read_text(encoding="utf-8")) for path in sources()]
    assert modules
    assert [f"{module.name}: {sentence}" for module in modules for sentence in rule(module)] == []


def test_modules_are_small_and_well_named() -> None:
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
    assert [name for name in lines if VAGUE_NAMES & set(name.split("."))] == []


def test_packages_are_packages_and_the_plugin_folders_are_not() -> None:
    folders = {path.parent for path in sources()}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
    # With one of these, the plugins vanish or Twisted itself can no longer be imported.
    assert [str(path) for path in (ROOT / "twisted").rglob("__init__.py")] == []


def test_the_plugin_module_holds_two_service_makers_and_nothing_else() -> None:
    [plugin] = (ROOT / "twisted").rglob("*.py")
    first, *rest = ast.parse(plugin.read_text(encoding="utf-8")).body
    assert ast.unparse(first) == "from twisted.application.service import ServiceMaker"
    assert [type(node) for node in rest] == [ast.Assign, ast.Assign]
    assert all(ast.unparse(node.value.func) == "ServiceMaker" for node in rest)  # type: ignore[attr-defined]


BAD = [
    # order of the layers
    (imports_only_downwards, "dsched.model.task", "from dsched.engine import ring"),
    (imports_only_downwards, "dsched.errors", "import dsched.model"),
    (imports_only_downwards, "dsched.store.sqlite", "def f():\n    from dsched.core.journal import Journal"),
    (imports_only_downwards, "dsched.web.api", "from dsched import cli"),
    (imports_only_downwards, "dsched.core.service", "from dsched import JobContext"),
    (imports_only_downwards, "dsched.triggers.cron", "from dsched.wire.header import Header"),
    (imports_only_downwards, "dsched.core.server", "import typing\nif typing.TYPE_CHECKING:\n    import dsched.web"),
    (imports_only_downwards, "dsched.core.server", "from dsched.worker.client import Client"),
    (imports_only_downwards, "dsched.worker.client", "from dsched.core.server import Server"),
    (imports_only_downwards, "dsched.worker.client", "from dsched.engine.wheel import Wheel"),
    (imports_only_downwards, "dsched.engine.wheel", "from dsched.clock import Clock"),
    (imports_only_downwards, "dsched.worker.session", "from dsched.testing import SimClock"),
    (imports_only_downwards, "dsched.testing.clock", "from dsched.cli.main import main"),
    (imports_only_downwards, "dsched.core.server", "from . import journal"),
    (imports_only_downwards, "dsched.novelty", "import json"),
    (imports_only_downwards, "dsched.web.api", "from dsched.novelty import x"),
    (imports_only_downwards, "dsched", "from dsched.core import server"),
    (imports_only_downwards, "dsched.store", "import importlib\nimportlib.import_module('dsched.web')"),
    # purity
    (stays_pure, "dsched.engine.ring", "import time"),
    (stays_pure, "dsched.engine.ring", "def f():\n    from os import path"),
    (stays_pure, "dsched.wire.framing", "from twisted.internet.protocol import Protocol"),
    (stays_pure, "dsched.model.ids", "import uuid"),
    (stays_pure, "dsched.engine.retry", "import random\nrandom.random()"),
    (stays_pure, "dsched.engine.retry", "import random as r\ndelay = r.uniform"),
    (stays_pure, "dsched.engine.retry", "from random import choice\nchoice([1])"),
    (stays_pure, "dsched.engine.retry", "from random import Random\nRandom()"),
    (stays_pure, "dsched.triggers.cron", "import datetime\ndatetime.datetime.now()"),
    (stays_pure, "dsched.triggers.cron", "from datetime import datetime as dt, UTC\ndt.now(UTC)"),
    (stays_pure, "dsched.triggers.cron", "from datetime import date\nfirst = date.today"),
    (stays_pure, "dsched.triggers.cron", "from datetime import datetime\ndatetime.utcnow()"),
    (stays_pure, "dsched.engine.ring", "def f(key):\n    return hash(key)"),
    (stays_pure, "dsched.model.job", "open('x')"),
    # owners
    (owns_what_it_imports, "dsched.core.service", "import msgspec"),
    (owns_what_it_imports, "dsched.worker.ledger", "import sqlite3"),
    (owns_what_it_imports, "dsched.core.service", "from klein import Klein"),
    (owns_what_it_imports, "dsched.core.service", "import requests"),
    (owns_what_it_imports, "dsched.core.service", "from twisted.internet import reactor"),
    (owns_what_it_imports, "dsched.core.service", "def f():\n    import twisted.internet.reactor"),
    (owns_what_it_imports, "dsched.core.service", "from twisted.internet.reactor import callLater"),
    (owns_what_it_imports, "dsched.core.service", "from twisted import internet\ninternet.reactor.callLater(0, f)"),
    # danger
    (avoids_danger, "dsched.worker.handlers", "eval('1')"),
    (avoids_danger, "dsched.worker.handlers", "import builtins\nbuiltins.exec('1')"),
    (avoids_danger, "dsched.store.sqlite", "import pickle"),
    (avoids_danger, "dsched.config", "import yaml\nyaml.load(text)"),
    (avoids_danger, "dsched.config", "from yaml import load\nload(text)"),
    (avoids_danger, "dsched.worker.handlers", "import subprocess\nsubprocess.run('ls', shell=True)"),
    (avoids_danger, "dsched.worker.handlers", "import os\nos.system('ls')"),
]

GOOD = [
    ("dsched", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dsched.jobs import job"),
    ("dsched.web.api", "from klein import Klein\nfrom dsched import __version__\nfrom dsched.core import service"),
    ("dsched.engine.retry", "from random import Random\ndef delay(rng: Random) -> float:\n    return rng.random()"),
    ("dsched.engine.retry", "import random\ndef delay(rng: random.Random) -> float:\n    return rng.uniform(0, 1)"),
    ("dsched.triggers.cron", "from datetime import datetime\ndef f(now: datetime) -> int:\n    return now.year"),
    ("dsched.engine.routing", "def pick(random, datetime):\n    return random.choice(datetime.now)"),
    ("dsched.model.job", "class Job:\n    def __hash__(self) -> int:\n        return hash(self.name)"),
    ("dsched.wire.encoding", "import msgspec\nfrom dsched.model.task import Task"),
    ("dsched.tap", "from twisted.internet import reactor"),
    ("dsched.store.sqlite", "import sqlite3\nsqlite3.connect('x').execute('select 1')"),
    ("dsched.testing.cluster", "from dsched.core.server import Server\nfrom dsched.worker.client import Client"),
    ("dsched.worker.handlers", "import subprocess\nsubprocess.run(['ls'], shell=False)"),
]


@pytest.mark.parametrize(("rule", "name", "source"), BAD)
def test_a_rule_finds_what_breaks_it(rule: Rule, name: str, source: str) -> None:
    assert list(rule(parse(name, source)))


@pytest.mark.parametrize(("name", "source"), GOOD)
def test_the_rules_leave_good_code_alone(name: str, source: str) -> None:
    assert [sentence for rule in RULES for sentence in rule(parse(name, source))] == []
