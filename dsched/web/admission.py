"""The one door: all that the head of a request can tell, judged before a byte of its body is kept."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.web.http_headers import Headers

from dsched.errors import InvalidValue, NotFound, TooLarge
from dsched.web.envelope import Refused
from dsched.web.routes import Body, Route, Routes, read_query

__all__ = ["AccessPolicy", "Admission", "Admitted", "Head", "LoopbackOnly"]

_LOCAL = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class Head:
    """First line and headers of a request. `length` is that of the body as declared, None when it comes in chunks."""

    method: bytes
    target: bytes
    version: bytes
    headers: Headers
    length: int | None


class AccessPolicy(Protocol):
    """Decides who may do what."""

    def check(self, head: Head, route: Route | None) -> None:
        """Raise `Refused` unless this request may use `route` (None: there is no such route)."""


class LoopbackOnly:
    """Lets everybody in: the listener is bound to loopback, so whoever gets here is on this machine."""

    def check(self, head: Head, route: Route | None) -> None:
        """Let the request in."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may send its body."""

    route: Route
    arguments: dict[str, str]
    query: dict[str, Any]


class Admission:
    """Judges heads, always in the same order: host, origin, access, path and method, media type, size, query.

    `hosts` are the names besides loopback under which this core is reached, `NAME` or `NAME:PORT`.
    """

    def __init__(self, routes: Routes, hosts: Iterable[str], access: AccessPolicy) -> None:
        self._routes = routes
        self._hosts = (*_LOCAL, *hosts)
        self._access = access
        self._allowed: dict[int, frozenset[bytes]] = {}

    def admit(self, head: Head, port: int) -> Admitted:
        """Let a request for the listener at `port` in; raises `Refused`, `NotFound`, `InvalidValue` or `TooLarge`."""
        allowed = self._allowed_at(port)
        _check_host(head, allowed)
        _check_origin(head, allowed)
        try:
            route, arguments = self._routes.find(head.method, head.target)
        except (Refused, NotFound):
            self._access.check(head, None)
            raise
        self._access.check(head, route)
        _check_media(head, route)
        _check_length(head, route)
        return Admitted(route, arguments, read_query(head.target, route.query))

    def _allowed_at(self, port: int) -> frozenset[bytes]:
        allowed = self._allowed.get(port)
        if allowed is None:
            names: set[str] = set()
            for host in self._hosts:
                if not host.startswith("[") and ":" in host or "]:" in host:
                    names.add(host)
                    continue
                names.add(f"{host}:{port}")
                if port == 80:
                    names.add(host)
            allowed = self._allowed[port] = frozenset(name.lower().encode("ascii") for name in names)
        return allowed


def _check_host(head: Head, allowed: frozenset[bytes]) -> None:
    """Refuse other names for this machine: a page of theirs, loaded under such a name, would be of our origin."""
    hosts = head.headers.getRawHeaders(b"Host", [])
    if len(hosts) != 1 or not hosts[0]:
        raise Refused(400, "bad_request", "exactly one Host header is needed")
    if hosts[0].lower() not in allowed:
        raise Refused(403, "host", "this core is not reached under that host name and port")


def _check_origin(head: Head, allowed: frozenset[bytes]) -> None:
    origins = head.headers.getRawHeaders(b"Origin")
    if origins is None:
        return
    scheme, _, host = origins[0].lower().partition(b"://")
    if len(origins) != 1 or scheme != b"http" or host not in allowed:
        raise Refused(403, "origin", "pages of another origin may not use this core")


def _check_media(head: Head, route: Route) -> None:
    transfer = head.headers.getRawHeaders(b"Transfer-Encoding")
    if transfer is not None and (head.version != b"HTTP/1.1" or [value.lower() for value in transfer] != [b"chunked"]):
        raise Refused(400, "bad_request", "the only transfer encoding taken is chunked, in HTTP/1.1")
    encoding = head.headers.getRawHeaders(b"Content-Encoding", [])
    if any(value.lower() != b"identity" for value in encoding):
        raise Refused(415, "unsupported_media_type", "a body is taken as it is, without Content-Encoding")
    if route.body is Body.NONE:
        return
    types = head.headers.getRawHeaders(b"Content-Type", [])
    if not types and head.length == 0 and route.body is Body.OPTIONAL:
        return
    if len(types) != 1 or not _is_json(types[0]):
        raise Refused(415, "unsupported_media_type", "Content-Type must be application/json")


def _is_json(content_type: bytes) -> bool:
    media, _, parameter = content_type.lower().partition(b";")
    name, _, value = parameter.strip().partition(b"=")
    charset = name == b"charset" and value.strip(b'"') in (b"utf-8", b"utf8")
    return media.strip() == b"application/json" and (not parameter.strip() or charset)


def _check_length(head: Head, route: Route) -> None:
    if head.length is not None and head.length > route.body_limit:
        raise TooLarge(f"a body for this path may have {route.body_limit} bytes", limit=route.body_limit)
    if route.body is Body.NONE and head.length != 0:
        raise InvalidValue("body", "this method takes none")
