"""How routes are declared, found, and what each of them takes: path, query, body."""

import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote_to_bytes

from klein import Klein
from twisted.web.iweb import IRequest
from werkzeug.exceptions import MethodNotAllowed
from werkzeug.exceptions import NotFound as NoSuchPath

from dsched.errors import BadJson, InvalidValue, NotFound
from dsched.model.instant import parse_instant
from dsched.web.envelope import Refused
from dsched.wire.encoding import load_strict

if TYPE_CHECKING:
    from dsched.web.server import AdminRequest

__all__ = [
    "PAGE",
    "Body",
    "Call",
    "Handler",
    "Query",
    "Route",
    "Routes",
    "choice",
    "instant",
    "read_body",
    "read_query",
    "text",
]

Handler = Callable[..., Coroutine[Any, Any, Any]]
"""`handler(core, call, **path)`; returns something JSON-ready, or an `Answer`."""

Query = Mapping[str, Callable[[str], Any]]
"""The parameters that a route knows, each with the function that reads it (raises ValueError with the reason)."""

MIB = 1 << 20
_MOST_PARAMETERS = 32


class Body(Enum):
    """What a route expects behind the headers."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `ends_with_client`: nobody needs the operation once the client has left."""

    name: str
    method: str
    path: str
    status: int = 200
    body: Body = Body.NONE
    body_limit: int = MIB
    query: Query = field(default_factory=dict)
    ends_with_client: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler gets: the parameters of the query, read and checked, and the body (`{}` where there is none)."""

    query: Mapping[str, Any]
    body: dict[str, Any]

    def page(self) -> tuple[int, str | None, dict[str, str]]:
        """Return limit, cursor and filters of a list (see `PAGE`)."""
        filters = {name: value for name, value in self.query.items() if name not in PAGE}
        return self.query.get("limit", 100), self.query.get("cursor"), filters


class Routes:
    """The table of routes, kept by Klein, which finds them and calls them."""

    def __init__(self) -> None:
        self.klein = Klein()
        self.klein.url_map.merge_slashes = False
        self.by_name: dict[str, Route] = {}
        # The host is judged before anybody looks for a route.
        self._match = self.klein.url_map.bind("localhost").match

    def route(self, method: str, path: str, **settings: Any) -> Callable[[Handler], Handler]:
        """Declare a route: the decorated handler serves `method` (HEAD too, for GET) of `path`. See `Route`."""

        def declare(handler: Handler) -> Handler:
            route = Route(handler.__name__, method, path, **settings)

            def serve(request: "AdminRequest", **arguments: str) -> None:
                request.serve(route, handler, arguments)

            serve.__name__ = route.name
            self.klein.route(path, methods=[method], endpoint=route.name)(serve)
            self.by_name[route.name] = route
            return handler

        return declare

    def find(self, method: bytes, target: bytes) -> tuple[Route, dict[str, str]]:
        """Return the route of a request and what its path holds; raises `NotFound`, or `Refused` (400, 405)."""
        raw = target.partition(b"?")[0]
        try:
            path = unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            raise Refused(400, "bad_request", "the path is not UTF-8") from None
        # No name holds a slash, so an encoded one can only confuse somebody between us and the client.
        if not raw.startswith(b"/") or raw.startswith(b"//") or b"%2f" in raw.lower():
            raise NotFound("path", path[:200])
        try:
            # Methods are case-sensitive, and Werkzeug would take `get`.
            name, arguments = self._match(path, method.decode("ascii") if method.isupper() else "-")
        except NoSuchPath:
            raise NotFound("path", path[:200]) from None
        except MethodNotAllowed as error:
            allowed = ", ".join(sorted(error.valid_methods or ()))
            raise Refused(
                405,
                "method_not_allowed",
                f"this path takes {allowed}",
                headers=((b"Allow", allowed.encode("ascii")),),
                allowed=allowed,
            ) from None
        return self.by_name[name], dict(arguments)

    def run(self, route: Route, request: "AdminRequest", arguments: Mapping[str, str]) -> None:
        """Call the handler of `route`; the request answers itself."""
        self.klein.execute_endpoint(route.name, cast(IRequest, request), **arguments)


def read_query(target: bytes, known: Query) -> dict[str, Any]:
    """Read the parameters behind the question mark; raises `InvalidValue` naming the one that cannot be taken."""
    raw = target.partition(b"?")[2]
    if not raw:
        return {}
    try:
        pairs = parse_qsl(
            raw.decode(), keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except ValueError:
        raise InvalidValue("query", "is not a list of name=value in UTF-8") from None
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            reason = f"unknown parameter; this path takes {', '.join(sorted(known)) or 'none'}"
            raise InvalidValue(name[:80], reason)
        if name in values:
            raise InvalidValue(name, "given twice")
        try:
            values[name] = known[name](value)
        except ValueError as error:
            raise InvalidValue(name, str(error)) from None
    return values


def read_body(route: Route, data: bytes) -> dict[str, Any]:
    """Read the body of a request for `route`; raises `InvalidValue`."""
    if not data:
        if route.body is Body.REQUIRED:
            raise BadJson("", "the body is empty")
        return {}
    body = load_strict(data)
    if not isinstance(body, dict):
        raise InvalidValue("", "the body must be a JSON object")
    return body


def text(value: str) -> str:
    """Read a filter or a cursor: 1 to 512 printable characters."""
    if not 0 < len(value) <= 512 or not value.isprintable():
        raise ValueError("must be 1 to 512 printable characters")
    return value


def instant(value: str) -> str:
    """Read an RFC 3339 instant; the text goes on as it is."""
    try:
        parse_instant(value)
    except ValueError:
        if _is_instant("+".join(value.rsplit(" ", 1))):
            raise ValueError("must have its + written as %2B: in a URL a plain + stands for a space") from None
        raise
    return value


def _is_instant(value: str) -> bool:
    try:
        parse_instant(value)
    except ValueError:
        return False
    return True


def choice(*known: str) -> Callable[[str], str]:
    """Return a function that reads one of `known`."""

    def read(value: str) -> str:
        if value not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return value

    return read


def _limit(value: str) -> int:
    if not re.fullmatch("[0-9]{1,4}", value) or not 1 <= int(value) <= 1000:
        raise ValueError("must be a whole number from 1 to 1000")
    return int(value)


PAGE: Query = {"limit": _limit, "cursor": text}
"""The parameters of every list."""
