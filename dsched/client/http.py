"""A synchronous client: plain calls in, the API's JSON out, and the errors of `dsched.errors`."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from dsched import errors
from dsched.errors import DschedError, InvalidValue, NotFound, Unreachable
from dsched.wire.encoding import dump_strict

__all__ = ["Client"]

Json = dict[str, Any]

_CLASSES: dict[str, type[DschedError]] = {
    kind.code: kind for name in errors.__all__ if issubclass(kind := getattr(errors, name), DschedError)
}
_JSON = {"Content-Type": "application/json"}
_PAGE = 1000
_WAIT_S = 300


class Client:
    """Talk to the core at `url` (such as `http://127.0.0.1:8081`).

    Raises `InvalidValue` for a `url` that is none. Every call may raise `InvalidValue` for what cannot be sent (its
    field is the argument, or a path inside it), `Unreachable` (the core did not answer within `timeout_s`: what was
    asked may have happened all the same, so repeat it with the same key), and the class of `dsched.errors` whose code
    the core answered. Not to be shared between threads. Proxies named in the environment are not used for loopback.
    `transport` replaces the network.
    """

    def __init__(self, url: str, timeout_s: float = 30.0, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = _checked_url(url)
        self._timeout_s = timeout_s
        self._http = httpx.Client(
            base_url=self.url, timeout=timeout_s, trust_env=not _is_loopback(self.url), transport=transport
        )

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- jobs

    def create_job(self, definition: Mapping[str, Any]) -> Json:
        """Create a job from its definition and return it with all defaults filled in."""
        return self._json("POST", "/api/v1/jobs", body=definition)

    def job(self, name: str) -> Json:
        """Return one job."""
        return self._json("GET", f"/api/v1/jobs/{_part(name, 'name')}")

    def delete_job(self, name: str) -> None:
        """Delete a job; its waiting runs are cancelled."""
        self._call("DELETE", f"/api/v1/jobs/{_part(name, 'name')}")

    def iter_jobs(self, **filters: str) -> Iterator[Json]:
        """Yield every job."""
        return self._pages("/api/v1/jobs", filters)

    # -- runs

    def trigger(
        self, name: str, *, params: Any = None, sharding_total: int | None = None, key: str | None = None
    ) -> Json:
        """Ask for one run of a job and return it; the same `key` gives the same run."""
        body = {"params": params, "sharding_total": sharding_total, "key": key}
        given = {field: value for field, value in body.items() if value is not None}
        return self._json("POST", f"/api/v1/jobs/{_part(name, 'name')}/trigger", body=given)

    def create_runs(self, runs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Ask for many runs, all or none of them; return their ids in the same order."""
        ids: list[str] = self._json("POST", "/api/v1/runs", body={"runs": list(runs)})["ids"]
        return ids

    def run(self, run_id: str, *, wait_s: float = 0) -> Json:
        """Return one run: when it has ended, or after `wait_s` as it stands."""
        wait = _whole_seconds(wait_s)
        return self._json(
            "GET", f"/api/v1/runs/{_part(run_id, 'run_id')}", query={"wait": str(wait)} if wait else {}, extra_s=wait
        )

    def runs(self, *, limit: int = 100, cursor: str | None = None, **filters: str) -> Json:
        """Return one page of runs: `{"items": […], "next": cursor or null}`.

        It may have fewer than `limit`, or none, and yet a `next`: a page looks at a bounded part of history.
        """
        query = {**filters, "limit": str(limit), **({"cursor": cursor} if cursor else {})}
        return self._json("GET", "/api/v1/runs", query=query)

    def iter_runs(self, **filters: str) -> Iterator[Json]:
        """Yield every run, newest first; filters `job`, `status`, `group`, `since`, `until`."""
        return self._pages("/api/v1/runs", filters)

    def cancel_run(self, run_id: str) -> Json:
        """Ask for the end of a run."""
        return self._json("POST", f"/api/v1/runs/{_part(run_id, 'run_id')}/cancel", body={})

    # -- tasks

    def tasks(self, run_id: str) -> list[Json]:
        """Return all tasks of a run by shard item."""
        return list(self.iter_tasks(run_id))

    def iter_tasks(self, run_id: str, **filters: str) -> Iterator[Json]:
        """Yield the tasks of a run by shard item."""
        return self._pages(f"/api/v1/runs/{_part(run_id, 'run_id')}/tasks", filters)

    def iter_all_tasks(self, **filters: str) -> Iterator[Json]:
        """Yield the tasks of all runs, newest first; filters `job`, `status`, `worker`, `since`, `until`."""
        return self._pages("/api/v1/tasks", filters)

    def task(self, task_id: str) -> Json:
        """Return one task with its attempts."""
        return self._json("GET", f"/api/v1/tasks/{_part(task_id, 'task_id')}")

    def stats(self, *, hours: int = 24, job: str | None = None) -> Json:
        """Return how many tasks ended within the last hours: in all, by hour, by job; and how many are open."""
        return self._json("GET", "/api/v1/stats", query={"hours": str(hours), **({"job": job} if job else {})})

    # -- the cluster

    def workers(self) -> list[Json]:
        """Return the workers that are online; raises `NotLeader` where the core does not lead."""
        workers: list[Json] = self._call("GET", "/workers")
        return workers

    def pending(self) -> Json:
        """Return how many tasks have not ended, by state; raises `NotLeader` where the core does not lead."""
        return self._json("GET", "/jobs/pending")

    def status(self) -> Json:
        """Return the role, the epoch and the figures of the core; None for those that only the leader has."""
        return self._json("GET", "/status")

    def is_ready(self) -> bool:
        """Tell whether the core leads, or follows, with a store; False too while it cannot be reached."""
        try:
            self._call("GET", "/readyz")
        except DschedError:
            return False
        return True

    def leads(self) -> bool:
        """Tell whether the core leads and can be reached."""
        try:
            return self.status()["role"] == "leader" and self.is_ready()
        except DschedError:
            return False

    # -- how

    def _pages(self, path: str, filters: Mapping[str, str]) -> Iterator[Json]:
        query = {**filters, "limit": str(_PAGE)}
        while True:
            page = self._json("GET", path, query=query)
            yield from page["items"]
            if not page["next"]:
                return
            query["cursor"] = page["next"]

    def _json(
        self, method: str, path: str, *, body: Any = None, query: Mapping[str, str] | None = None, extra_s: float = 0
    ) -> Json:
        answer: Json = self._call(method, path, body=body, query=query, extra_s=extra_s)
        return answer

    def _call(
        self, method: str, path: str, *, body: Any = None, query: Mapping[str, str] | None = None, extra_s: float = 0
    ) -> Any:
        content = None if body is None else dump_strict(body)
        for name, value in (query or {}).items():
            _check_text(value, name)
        try:
            response = self._http.request(
                method,
                path,
                content=content,
                headers=None if content is None else _JSON,
                params=query or None,
                timeout=self._timeout_s + extra_s,
            )
        except httpx.InvalidURL as error:
            raise InvalidValue("", f"cannot be sent as a URL: {error}") from None
        except httpx.HTTPError as error:
            raise Unreachable(f"no answer from the core at {self.url}: {error}", url=self.url) from error
        if response.status_code >= 400:
            raise _error(response)
        try:
            return response.json() if response.content else None
        except ValueError:
            raise _not_ours(response) from None


def _part(name: str, field: str) -> str:
    _check_text(name, field)
    return quote(name, safe="")


def _check_text(value: object, field: str) -> None:
    if not isinstance(value, str):
        raise InvalidValue(field, f"must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(field, "lone surrogates are not allowed: text must be valid Unicode") from None


def _whole_seconds(wait_s: object) -> int:
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or wait_s != wait_s:
        raise InvalidValue("wait_s", f"must be a number of seconds, not {wait_s!r:.40}")
    return round(min(_WAIT_S, max(0, wait_s)))


def _checked_url(url: object) -> str:
    wanted = "must be like http://127.0.0.1:8081"
    if not isinstance(url, str):
        raise InvalidValue("url", f"{wanted}, not a {type(url).__name__}")
    try:
        httpx.URL(url)
        parts = urlsplit(url)
        # What the resolver would be asked for; it refuses some names without a word of which.
        host = (parts.hostname or "").encode("idna")
        usable = (
            parts.scheme in ("http", "https") and host and parts.port != 0 and not parts.query and not parts.fragment
        )
    except (ValueError, httpx.InvalidURL):  # Some of these texts repeat what may be a password.
        usable = False
    if not usable or not url.isprintable() or " " in url:
        raise InvalidValue("url", f"{wanted}, not {url.rpartition('@')[2][:80]!r}")
    return url.rstrip("/")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _not_ours(response: httpx.Response) -> Unreachable:
    return Unreachable(f"an answer that is not dsched's, with status {response.status_code}", url=str(response.url))


def _error(response: httpx.Response) -> DschedError:
    """Return the error that an answer tells of, as the class with the same code."""
    try:
        told = response.json()["error"]
        code, message, details = str(told["code"]), str(told["message"]), dict(told.get("details") or {})
    except (ValueError, KeyError, TypeError):
        return _not_ours(response)
    kind = _CLASSES.get(code, DschedError)
    if issubclass(kind, InvalidValue):
        return kind(str(details.get("field", "")), str(details.get("reason", message)))
    if kind is NotFound:
        return NotFound(str(details.get("kind", "thing")), str(details.get("id", "")))
    error = kind(message, **details)
    error.code = code
    return error
