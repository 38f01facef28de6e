"""What `@job` takes, what it refuses, and what a handler is told."""

import subprocess
import sys
from typing import Any

import pytest

from dsched.engine.definition import parse_job
from dsched.engine.settings import EngineSettings
from dsched.errors import InvalidValue
from dsched.jobs import Cancelled, JobContext, declaration_of, job


def test_a_function_stays_as_it_is() -> None:
    def double(ctx: JobContext) -> int:
        return int(ctx.params) * 2

    assert job("double")(double) is double
    assert double(JobContext(21)) == 42


def test_a_declaration_becomes_the_body_of_a_job() -> None:
    @job(
        "census",
        interval=30,
        sharding_total=10,
        timeout=60,
        retries=1,
        retry_backoff=2.5,
        group="blue",
        params={"path": "/"},
        preload_keys=["user:{item}{n}"],
        priority=-3,
        description="Counts.",
        tags=("a",),
        handler="count",
    )
    def census(ctx: JobContext) -> None: ...

    declaration = declaration_of(census)
    assert declaration is not None
    assert (declaration.name, declaration.handler, declaration.is_async) == ("census", "count", False)
    assert declaration.definition() == {
        "name": "census",
        "handler": "count",
        "group": "blue",
        "params": {"path": "/"},
        "trigger": {"type": "interval", "seconds": 30},
        "sharding_total": 10,
        "timeout": 60,
        "retries": 1,
        "retry_backoff": 2.5,
        "priority": -3,
        "preload_keys": ["user:{item}{n}"],
        "tags": ["a"],
        "description": "Counts.",
    }


def test_what_is_declared_a_core_takes() -> None:
    extremes: list[dict[str, Any]] = [
        {"interval": 0.1, "timeout": 0, "retries": 0, "retry_backoff": 0, "priority": -1_000, "sharding_total": 1},
        {"interval": 3653 * 86_400, "timeout": 30 * 86_400, "retries": 100, "retry_backoff": 86_400, "priority": 1_000,
         "sharding_total": 10_000, "tags": ["x" * 64] * 50, "preload_keys": ["k" * 256] * 100, "params": "x" * 262_142,
         "description": "x" * 4_096},
    ]  # fmt: skip
    for arguments in extremes:

        @job("extreme", **arguments)
        def extreme(ctx: JobContext) -> None: ...

        declaration = declaration_of(extreme)
        assert declaration is not None
        parse_job(declaration.definition(), EngineSettings(), 0)


def test_names_default_to_the_function() -> None:
    @job
    def one(ctx: JobContext) -> None: ...

    @job(timeout=0)
    async def two(ctx: JobContext) -> None: ...

    first, second = declaration_of(one), declaration_of(two)
    assert first is not None and second is not None
    assert (first.name, first.handler, first.is_async) == ("one", "one", False)
    assert (second.name, second.is_async, second.timeout_s) == ("two", True, 0)
    assert first.definition()["trigger"] == {"type": "none"}


class Adder:
    async def __call__(self, ctx: JobContext) -> None: ...


def test_an_object_with_an_async_call_is_async() -> None:
    declaration = declaration_of(job("adder")(Adder()))
    assert declaration is not None and declaration.is_async


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"handler": "a/b"}, "handler"),
        ({"group": "a b"}, "group"),
        ({"interval": 0}, "interval"),
        ({"interval": -1}, "interval"),
        ({"interval": True}, "interval"),
        ({"interval": "30"}, "interval"),
        ({"interval": float("nan")}, "interval"),
        ({"interval": float("inf")}, "interval"),
        ({"sharding_total": 0}, "sharding_total"),
        ({"sharding_total": 10_001}, "sharding_total"),
        ({"sharding_total": 1.0}, "sharding_total"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 0.5}, "timeout"),
        ({"timeout": 30 * 86_400 + 1}, "timeout"),
        ({"interval": 0.01}, "interval"),
        ({"interval": 0.1234}, "interval"),
        ({"retries": -1}, "retries"),
        ({"retries": False}, "retries"),
        ({"retries": 101}, "retries"),
        ({"retry_backoff": -0.1}, "retry_backoff"),
        ({"params": float("nan")}, "params"),
        ({"params": {"a": [1, {2}]}}, "params.a[1]"),
        ({"params": {1: 2}}, "params"),
        ({"params": "x" * 262_144}, "params"),
        ({"preload_keys": "key"}, "preload_keys"),
        ({"preload_keys": [1]}, "preload_keys[0]"),
        ({"tags": None}, "tags"),
        ({"priority": 1.5}, "priority"),
        ({"priority": 1_001}, "priority"),
        ({"tags": ["x" * 65]}, "tags[0]"),
        ({"description": "x" * 4_097}, "description"),
        ({"retry_backoff": 86_401}, "retry_backoff"),
        ({"description": None}, "description"),
    ],
)
def test_an_argument_that_cannot_be_is_named(arguments: dict[str, Any], field: str) -> None:
    def function(ctx: JobContext) -> None: ...

    with pytest.raises(InvalidValue) as caught:
        job(**arguments)(function)
    assert caught.value.field == field
    assert declaration_of(function) is None


def no_argument() -> None: ...
def two_arguments(ctx: JobContext, more: int) -> None: ...
def keyword_only(*, ctx: JobContext) -> None: ...
def generator(ctx: JobContext) -> Any:
    yield 1


async def async_generator(ctx: JobContext) -> Any:
    yield 1


@pytest.mark.parametrize(
    "thing", [no_argument, two_arguments, keyword_only, generator, async_generator, Adder, 3, "".join]
)
def test_only_a_function_of_one_argument_is_a_handler(thing: Any) -> None:
    with pytest.raises(InvalidValue):
        job("x")(thing)


def test_a_function_is_declared_once() -> None:
    def function(ctx: JobContext) -> None: ...

    job("one")(function)
    with pytest.raises(InvalidValue, match="already declared as job 'one'"):
        job("two")(function)


def test_a_context_has_what_a_test_gives_it() -> None:
    ctx = JobContext({"a": 1}, 2, 5, job="x", attempt=3)
    assert (ctx.params, ctx.sharding_item, ctx.sharding_total, ctx.attempt) == ({"a": 1}, 2, 5, 3)
    assert (ctx.due, ctx.deadline, ctx.cancelled) == (None, None, False)
    ctx.check_cancelled()
    ctx.cancel()
    assert ctx.cancelled
    with pytest.raises(Cancelled):
        ctx.check_cancelled()
    assert ctx.log.namespace == "dsched.job.x"


def test_a_module_of_jobs_does_not_load_twisted() -> None:
    program = "import sys, dsched.jobs; from dsched import job; sys.exit('twisted' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
