"""Read what people send: job definitions and requests for runs. Bad input is refused whole, with field and reason."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dsched.engine.routing import preload_keys
from dsched.engine.settings import EngineSettings
from dsched.errors import BadJson, InvalidValue, TooLarge
from dsched.model.ids import check_group, check_key, check_name
from dsched.model.job import Job
from dsched.model.limits import (
    MAX_PRELOAD_BYTES,
    MAX_SHARDS,
    check_description,
    check_preload_keys,
    check_priority,
    check_retries,
    check_seconds,
    check_sharding_total,
    check_tags,
    check_timeout,
)
from dsched.model.run import Snapshot
from dsched.triggers.spec import parse_trigger, trigger_spec
from dsched.wire.encoding import decode_any, dump_strict, encode

__all__ = ["RunRequest", "job_from_definition", "parse_job", "parse_run_request", "parse_run_requests", "snapshot_of"]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One wanted run: `params` as compact JSON text or None for the job's own, likewise `sharding_total`."""

    job: str
    params: str | None
    sharding_total: int | None
    key: str | None

    def body_hash(self) -> str:
        """Return what tells two bodies under one key apart."""
        text = encode([self.job, self.params, self.sharding_total])
        return hashlib.blake2b(text, digest_size=16).hexdigest()


def _mapping(value: object, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValue(field, "must be a JSON object")
    return value


def _only(value: Mapping[str, Any], known: frozenset[str] | set[str], where: str) -> None:
    for name in value:
        if name not in known:
            raise InvalidValue(f"{where}{name}", f"unknown field; known are {', '.join(sorted(known))}")


def _boolean(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue(field, "must be true or false")
    return value


def _only_value(supported: object) -> Callable[[object, str], Any]:
    def check(value: object, field: str) -> Any:
        if value != supported or isinstance(value, bool) != isinstance(supported, bool):
            raise InvalidValue(field, f"this version knows {encode(supported).decode()} only")
        return value

    return check


# Field, default, check. Fields whose other values later versions bring are here already, so that a definition written
# today keeps its meaning.
_FIELDS: dict[str, tuple[Any, Callable[[object, str], Any]]] = {
    "group": ("default", check_group),
    "timezone": ("UTC", _only_value("UTC")),
    "sharding_total": (1, check_sharding_total),
    "routing": ("consistent_hash", _only_value("consistent_hash")),
    "timeout": (30, check_timeout),
    "retries": (3, check_retries),
    "retry_backoff": (10, check_seconds),
    "misfire": ("once", _only_value("once")),
    "misfire_grace": (60, check_seconds),
    "overlap": ("allow", _only_value("allow")),
    "concurrency": (None, _only_value(None)),
    "priority": (0, check_priority),
    "preload_keys": ([], check_preload_keys),
    "tags": ([], check_tags),
    "description": ("", check_description),
    "enabled": (True, _boolean),
}
_JOB_FIELDS = frozenset(_FIELDS) | {"name", "handler", "params", "trigger"}


def encode_params(value: object, field: str, limit: int) -> str:
    """Return params as compact JSON text; raises `TooLarge` over `limit` bytes."""
    try:
        data = dump_strict(value)
    except BadJson as error:
        raise BadJson(f"{field}.{error.field}".rstrip(".").replace(".[", "[", 1), error.reason) from None
    if len(data) > limit:
        raise TooLarge(f"{field}: {len(data)} bytes encoded, at most {limit} are taken", field=field, limit=limit)
    return data.decode()


def parse_job(body: object, settings: EngineSettings, now_ms: int) -> Job:
    """Return the new job that `body` (the API shape) defines; raises `InvalidValue` or `TooLarge`."""
    given = _mapping(body, "")
    _only(given, _JOB_FIELDS, "")
    if "name" not in given:
        raise InvalidValue("name", "is required")
    name = check_name(given["name"])
    definition: dict[str, Any] = {"name": name}
    definition["handler"] = check_name(given.get("handler", name), "handler")
    params = encode_params(given.get("params"), "params", settings.params_bytes)
    definition["params"] = given.get("params")
    trigger = parse_trigger(given.get("trigger", {"type": "none"}), created_ms=now_ms)
    definition["trigger"] = trigger_spec(trigger)
    for field, (default, check) in _FIELDS.items():
        definition[field] = check(given[field], field) if field in given else default
    size = len(encode(preload_keys(definition["preload_keys"], MAX_SHARDS)))
    if size > MAX_PRELOAD_BYTES:
        problem = f"preload_keys: {size} bytes for one shard, at most {MAX_PRELOAD_BYTES} are sent"
        raise TooLarge(problem, field="preload_keys", limit=MAX_PRELOAD_BYTES)
    return _job(definition, params, trigger, version=1, created_ms=now_ms, updated_ms=now_ms)


def job_from_definition(text: str, version: int, created_ms: int, updated_ms: int, next_due_ms: int | None) -> Job:
    """Return the job that the store remembers."""
    definition = decode_any(text.encode())
    trigger = parse_trigger(definition["trigger"], created_ms=created_ms)
    params = dump_strict(definition["params"]).decode()
    job = _job(definition, params, trigger, version=version, created_ms=created_ms, updated_ms=updated_ms)
    job.next_due_ms = next_due_ms
    return job


def _job(
    definition: dict[str, Any], params: str, trigger: Any, *, version: int, created_ms: int, updated_ms: int
) -> Job:
    kept = {
        "version": version,
        "handler": definition["handler"],
        "group": definition["group"],
        "timeout": definition["timeout"],
        "retries": definition["retries"],
        "retry_backoff": definition["retry_backoff"],
        "priority": definition["priority"],
        "routing": definition["routing"],
        "preload_keys": definition["preload_keys"],
    }
    return Job(
        name=definition["name"],
        group=definition["group"],
        params=params,
        sharding_total=definition["sharding_total"],
        enabled=definition["enabled"],
        snapshot=snapshot_of(definition["name"], kept),
        trigger=trigger,
        definition=definition,
        definition_text=encode(definition).decode(),
        created_ms=created_ms,
        updated_ms=updated_ms,
    )


def snapshot_of(job: str, kept: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot that a run's row keeps as JSON."""
    return Snapshot(
        job=job,
        version=kept["version"],
        handler=kept["handler"],
        group=kept["group"],
        timeout_s=kept["timeout"],
        retries=kept["retries"],
        retry_backoff_s=kept["retry_backoff"],
        priority=kept["priority"],
        routing=kept["routing"],
        preload_keys=tuple(kept["preload_keys"]),
        text=encode(kept).decode(),
    )


_TRIGGER_BODY = frozenset({"params", "sharding_total", "key"})
_RUN_BODY = _TRIGGER_BODY | {"job"}


def parse_run_request(job: str, body: object, settings: EngineSettings) -> RunRequest:
    """Return the run that `POST /jobs/NAME/trigger` asks for; raises `InvalidValue` or `TooLarge`."""
    given = _mapping(body, "")
    _only(given, _TRIGGER_BODY, "")
    return _run_request(job, given, settings, "")


def parse_run_requests(body: object, settings: EngineSettings) -> list[RunRequest]:
    """Return the runs that `POST /runs` asks for, in order; refuses all if one is bad."""
    given = _mapping(body, "")
    _only(given, {"runs"}, "")
    runs = given.get("runs")
    if not isinstance(runs, list) or not runs:
        raise InvalidValue("runs", "must be a list of at least one run")
    if len(runs) > settings.runs_per_request:
        limit = settings.runs_per_request
        raise TooLarge(f"runs: {len(runs)} given, at most {limit} a request", field="runs", limit=limit)
    requests = []
    for index, item in enumerate(runs):
        try:
            if type(item) is not dict:
                raise InvalidValue("", "must be a JSON object")
            if not item.keys() <= _RUN_BODY:
                _only(item, _RUN_BODY, "")
            name = item.get("job")
            if not isinstance(name, str):
                raise InvalidValue("job", "must be the name of a job")
            requests.append(_run_request(name, item, settings, ""))
        except InvalidValue as error:
            raise InvalidValue(f"runs[{index}].{error.field}".rstrip("."), error.reason) from None
        except TooLarge as error:
            raise TooLarge(f"runs[{index}].{error.message}", **error.details) from None
    return requests


def _run_request(job: str, given: Mapping[str, Any], settings: EngineSettings, where: str) -> RunRequest:
    params = encode_params(given["params"], where + "params", settings.params_bytes) if "params" in given else None
    total = given.get("sharding_total")
    if "sharding_total" in given:
        total = check_sharding_total(total, where + "sharding_total")
    key = given.get("key")
    if key is not None:
        check_key(key, where + "key")
    return RunRequest(job, params, total, key)
