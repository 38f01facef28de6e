"""What a module of jobs imports: `job`, `JobContext`, and two exceptions.

    from dsched.jobs import JobContext, job

    @job("census", interval=30, sharding_total=10)
    def census(ctx: JobContext) -> dict:
        return {"files": count(ctx.params["path"], ctx.sharding_item, ctx.sharding_total)}

Nothing here starts anything or needs a reactor, so such a module stays importable, and its functions callable, in a
test or in a shell.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dsched.errors import InvalidValue
from dsched.model.ids import check_group, check_name
from dsched.model.limits import (
    MAX_PARAMS_BYTES,
    check_description,
    check_preload_keys,
    check_priority,
    check_retries,
    check_seconds,
    check_sharding_total,
    check_tags,
    check_timeout,
)
from dsched.triggers.spec import parse_trigger
from dsched.wire.encoding import dump_strict

if TYPE_CHECKING:
    from twisted.logger import Logger

__all__ = ["Cancelled", "DoNotRetry", "JobContext", "JobDeclaration", "declaration_of", "job"]

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE = "__dsched_job__"


class DoNotRetry(Exception):
    """Raised by a handler: this attempt failed, and another one would fail the same way."""


class Cancelled(Exception):
    """Raised by `JobContext.check_cancelled` when the work is no longer wanted."""


@dataclass(frozen=True, slots=True)
class JobDeclaration:
    """A job as its module declares it.

    A worker offers `function` under the name `handler`. The rest is a proposal: only `job apply`, `dev` and `demo`
    send it to a core, where people may edit it.
    """

    name: str
    handler: str
    function: Callable[..., Any] = field(repr=False)
    is_async: bool
    interval_s: float | None = None
    sharding_total: int = 1
    timeout_s: int = 30
    retries: int = 3
    retry_backoff_s: float = 10
    group: str = "default"
    params: Any = None
    preload_keys: tuple[str, ...] = ()
    priority: int = 0
    description: str = ""
    tags: tuple[str, ...] = ()

    def definition(self) -> dict[str, Any]:
        """Return the body that `POST /api/v1/jobs` takes; what is not declared is left to its default there."""
        trigger: dict[str, Any] = {"type": "none"}
        if self.interval_s is not None:
            trigger = {"type": "interval", "seconds": self.interval_s}
        return {
            "name": self.name,
            "handler": self.handler,
            "group": self.group,
            "params": self.params,
            "trigger": trigger,
            "sharding_total": self.sharding_total,
            "timeout": self.timeout_s,
            "retries": self.retries,
            "retry_backoff": self.retry_backoff_s,
            "priority": self.priority,
            "preload_keys": list(self.preload_keys),
            "tags": list(self.tags),
            "description": self.description,
        }


class JobContext:
    """What a handler is told about the attempt that it runs; all of it may be read from any thread.

    `params` is a JSON value, `due` and `deadline` are aware datetimes in UTC or None, `attempt` counts from 1. `fence`
    grows with every dispatch: store it with your own writes and refuse a lower one. In a test, make one with the
    fields that your handler reads.
    """

    __slots__ = (
        "_cancelled",
        "_log",
        "attempt",
        "deadline",
        "due",
        "fence",
        "job",
        "params",
        "run_id",
        "sharding_item",
        "sharding_total",
        "task_id",
        "worker_id",
    )

    def __init__(
        self,
        params: Any = None,
        sharding_item: int = 0,
        sharding_total: int = 1,
        *,
        job: str = "",
        run_id: str = "",
        task_id: str = "",
        attempt: int = 1,
        fence: int = 0,
        due: datetime | None = None,
        deadline: datetime | None = None,
        worker_id: str = "",
    ) -> None:
        self.params = params
        self.sharding_item = sharding_item
        self.sharding_total = sharding_total
        self.job = job
        self.run_id = run_id
        self.task_id = task_id
        self.attempt = attempt
        self.fence = fence
        self.due = due
        self.deadline = deadline
        self.worker_id = worker_id
        self._cancelled = False
        self._log: Logger | None = None

    @property
    def cancelled(self) -> bool:
        """Tell whether the work is no longer wanted: cancelled, timed out, or the core is out of reach for too long.

        Whatever the handler returns after that is not taken as its result.
        """
        return self._cancelled

    def cancel(self) -> None:
        """Set `cancelled`; for the worker, and for tests."""
        self._cancelled = True

    def check_cancelled(self) -> None:
        """Raise `Cancelled` when the work is no longer wanted; call it where the work can stop."""
        if self._cancelled:
            raise Cancelled(f"{self.task_id or 'the task'} is no longer wanted")

    @property
    def log(self) -> "Logger":
        """Return a Twisted logger named after the job: `ctx.log.info("read {path}", path=path)`."""
        if self._log is None:
            from twisted.logger import Logger

            self._log = Logger(namespace=f"dsched.job.{self.job}")
        return self._log


def declaration_of(candidate: object) -> JobDeclaration | None:
    """Return what `job` attached to a function, or None."""
    found = getattr(candidate, ATTRIBUTE, None)
    return found if isinstance(found, JobDeclaration) else None


@overload
def job(name: F, /) -> F: ...


@overload
def job(
    name: str | None = None,
    *,
    interval: float | None = None,
    sharding_total: int = 1,
    timeout: int = 30,
    retries: int = 3,
    retry_backoff: float = 10,
    group: str = "default",
    params: Any = None,
    preload_keys: Iterable[str] = (),
    priority: int = 0,
    description: str = "",
    tags: Iterable[str] = (),
    handler: str | None = None,
) -> Callable[[F], F]: ...


def job(name: Any = None, **options: Any) -> Any:
    """Declare a function as a job and return it unchanged.

    The function takes one argument, a `JobContext`, and returns JSON. `def` runs in a thread of the worker;
    `async def` runs in its reactor, where a coroutine that computes without awaiting holds up everything else there.

    `name` defaults to the function's; `handler`, the name that workers offer it under, to `name`. `interval` is in
    seconds (None: runs only on request), `timeout` in seconds (0: none), counted from the start of the function.
    `retries` come on top of the first attempt, the first of them after `retry_backoff` seconds.

    Raises `InvalidValue` naming the argument, when the module is imported.
    """
    if callable(name):
        return _declared(name, None, {})
    return functools.partial(_declared, name=name, options=options)


def _declared(function: F, name: str | None, options: Mapping[str, Any]) -> F:
    declaration = _declare(function, name, **options)
    _attach(function, declaration)
    return function


def _attach(function: Callable[..., Any], declaration: JobDeclaration) -> None:
    before = declaration_of(function)
    if before is not None:
        raise InvalidValue("job", f"this function is already declared as job {before.name!r}")
    try:
        setattr(function, ATTRIBUTE, declaration)
    except AttributeError:
        raise InvalidValue("job", f"cannot declare a {type(function).__name__}; wrap it in a def") from None


def _declare(
    function: Callable[..., Any],
    name: str | None,
    *,
    interval: float | None = None,
    sharding_total: int = 1,
    timeout: int = 30,
    retries: int = 3,
    retry_backoff: float = 10,
    group: str = "default",
    params: Any = None,
    preload_keys: Iterable[str] = (),
    priority: int = 0,
    description: str = "",
    tags: Iterable[str] = (),
    handler: str | None = None,
) -> JobDeclaration:
    _check_function(function)
    if name is None:
        name = getattr(function, "__name__", None)
    name = check_name(name)
    if len(dump_params(params)) > MAX_PARAMS_BYTES:
        raise InvalidValue("params", f"must be at most {MAX_PARAMS_BYTES} bytes of JSON")
    return JobDeclaration(
        name=name,
        handler=check_name(name if handler is None else handler, "handler"),
        function=function,
        is_async=_is_async(function),
        interval_s=None if interval is None else _check_interval(interval),
        sharding_total=check_sharding_total(sharding_total, "sharding_total"),
        timeout_s=check_timeout(timeout, "timeout"),
        retries=check_retries(retries, "retries"),
        retry_backoff_s=check_seconds(retry_backoff, "retry_backoff"),
        group=check_group(group),
        params=params,
        preload_keys=_check_texts(check_preload_keys, preload_keys, "preload_keys"),
        priority=check_priority(priority, "priority"),
        description=check_description(description, "description"),
        tags=_check_texts(check_tags, tags, "tags"),
    )


def dump_params(params: Any) -> bytes:
    """Encode params as compact JSON; raises `InvalidValue` that names the path inside them."""
    try:
        return dump_strict(params)
    except InvalidValue as error:
        raise InvalidValue(f"params.{error.field}" if error.field else "params", error.reason) from None


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _check_function(function: object) -> None:
    if not callable(function) or inspect.isclass(function):
        raise InvalidValue("job", f"declares functions, not {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidValue("job", "a generator cannot be a handler: return one JSON value")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some builtins have none; they show when they are called.
        return
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidValue("job", f"a handler takes one argument, the context; this one takes {signature}") from None


def _check_interval(seconds: object) -> float:
    try:
        parse_trigger({"type": "interval", "seconds": seconds}, created_ms=0)
    except InvalidValue as error:
        raise InvalidValue("interval", error.reason) from None
    assert isinstance(seconds, int | float)
    return seconds


def _check_texts(check: Callable[[object, str], list[str]], value: object, name: str) -> tuple[str, ...]:
    """Check what may be any iterable here, and must be a list where it is sent to."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidValue(name, f"must be a list of strings, not {value!r}")
    return tuple(check(list(value), name))
