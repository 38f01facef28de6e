"""Where settings come from: options beat the environment, which beats the file, which beats the defaults.

Settings are frozen dataclasses, each kept beside the code that uses it; this module fills them in. Every problem that
is found is reported, not only the first one.
"""

import difflib
import ipaddress
import math
import re
import tomllib
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from dsched.errors import ConfigError

__all__ = ["TABLES", "Address", "CoreSettings", "read_settings", "variables_of"]

TABLES = ("core", "worker")
"""The tables that a file of settings may hold."""

_PREFIX = "DSCHED_"
# Variables of our tests, and those that Kubernetes sets in each pod for a service called `dsched`, or `dsched-NAME`.
_OF_SURROUNDINGS = re.compile(
    r"DSCHED_(TEST_.*|([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?"
    r"|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?))"
)
_LOOPBACK = "127.0.0.1"
_MOST_DAYS = 36_500
_HOST_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}")
_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(?:/[\x21-\x7e]*)?")


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address; `host` is empty where a Twisted endpoint string names no interface, which means all of them."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `PORT` (on loopback), `HOST:PORT`, `[HOST]:PORT` or a Twisted endpoint string `tcp:…`.

        Endpoint strings are read as a server's (`tcp:PORT:interface=HOST`) or as a client's (`tcp:HOST:PORT`). Raises
        `ValueError`, whose text is the reason.
        """
        kind, separator, rest = text.partition(":")
        if separator and kind in ("tcp", "tcp6"):
            return cls._from_endpoint(rest)
        if separator and kind in ("ssl", "tls", "unix", "systemd", "fd", "autobahn"):
            raise ValueError(f"endpoints of the kind {kind}: come in a later version; use tcp:")
        host, _, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("must be PORT, HOST:PORT, [IPV6]:PORT or tcp:…")
        elif not host and text.startswith(":"):
            raise ValueError("lacks the host before the colon")
        return cls(_named(host or _LOOPBACK), _port(port))

    @classmethod
    def _from_endpoint(cls, description: str) -> Self:
        plain: list[str] = []
        named: dict[str, str] = {}
        for part in _split_endpoint(description):
            name, separator, value = part.partition("=")
            if separator:
                named[name] = value
            else:
                plain.append(part)
        unknown = set(named) - {"host", "port", "interface", "backlog", "timeout", "bindAddress"}
        if unknown or len(plain) > 2:
            raise ValueError(f"is no endpoint string that dsched understands: tcp:{description}")
        port = named.get("port") or (plain[-1] if plain else "")
        host = named.get("interface") or named.get("host") or (plain[0] if len(plain) == 2 else "")
        return cls(_named(host), _port(port))

    @property
    def is_loopback(self) -> bool:
        """Tell whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _named(host: str) -> str:
    """Return the address of the one name that needs no resolver."""
    return _LOOPBACK if host.lower() == "localhost" else host


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise ValueError(f"must end with a port from 0 to 65535, not {text[:40]!r}")
    return int(text)


def _split_endpoint(description: str) -> list[str]:
    """Split at colons; a backslash takes the next character as it is, as in Twisted."""
    parts, part, characters = [], "", iter(description)
    for character in characters:
        if character == "\\":
            part += next(characters, "")
        elif character == ":":
            parts.append(part)
            part = ""
        else:
            part += character
    return [*parts, part]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What a core needs to know of its surroundings; `validate` before use.

    `advertise` and `admin_url` are what others are told; empty, they follow `listen` and `admin`.
    Runs that ended more than `history_days` days ago are deleted; 0 keeps them for ever.
    """

    listen: Address = Address(_LOOPBACK, 8080)
    admin: Address = Address(_LOOPBACK, 8081)
    store: str = "sqlite:///dsched.db"
    advertise: str = ""
    admin_url: str = ""
    history_days: int = 30

    def validate(self) -> Self:
        """Return self, or raise `ConfigError` with every problem."""
        problems = [
            f"--{name} {address}: dsched has no access control yet and listens on loopback only; use "
            f"{_LOOPBACK}:{address.port}, or put a tunnel in front; tokens come in a later version"
            for name, address in (("listen", self.listen), ("admin", self.admin))
            if not address.is_loopback
        ]
        problems += [
            f"--{name}: port 0 is no port that anybody could be told"
            for name, address in (("listen", self.listen), ("admin", self.admin))
            if not address.port
        ]
        if self.history_days > _MOST_DAYS:
            problems.append(f"--history-days must be at most {_MOST_DAYS}; 0 keeps history for ever")
        if self.listen == self.admin:
            problems.append(f"--listen and --admin are the same address, {self.listen}; give each its own port")
        if self.advertise and not _HOST_PORT.fullmatch(self.advertise):
            problems.append(f"--advertise must be HOST:PORT, not {self.advertise[:80]!r}")
        if self.admin_url and not _URL.fullmatch(self.admin_url):
            problems.append(f"--admin-url must be like http://HOST:PORT, not {self.admin_url[:80]!r}")
        if problems:
            raise ConfigError(*problems)
        return self

    @property
    def worker_address(self) -> str:
        """Where workers find this core, as `HOST:PORT`."""
        return self.advertise or str(self.listen)

    @property
    def url(self) -> str:
        """Where people find the HTTP side of this core."""
        return self.admin_url or f"http://{self.admin}"


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as it was given, and where."""

    value: object
    place: str


class _Problems(list[str]):
    """What is wrong, in the order in which it was found."""

    hint: ClassVar[str] = "did you mean"

    def unknown(self, place: str, name: str, known: Iterable[str], prefix: str = "") -> None:
        """Note a name that is not in `known`; all of them are written with `prefix` before them."""
        near = difflib.get_close_matches(name, list(known), n=1)
        hint = f"; {self.hint} {prefix}{near[0]}?" if near else ""
        self.append(f"{place}: there is no setting {prefix + name!r}{hint}")


def read_settings(
    table: str,
    schemas: tuple[type[Any], ...],
    *,
    options: Mapping[str, object],
    environ: Mapping[str, str],
    names: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
    others: Collection[str] | None = None,
) -> tuple[Any, ...]:
    """Return one valid instance of each of `schemas`, dataclasses whose fields are the settings.

    A setting is called as its field, unless `names` gives (field to name) another name. `options` maps names to values
    (None: not given); `config` among them, or `DSCHED_CONFIG`, names a TOML file, of which `table` is read. The
    environment has `DSCHED_NAME`. `defaults`, by field, add to those of the dataclasses. Raises one `ConfigError` with
    every problem: unknown keys of the file, values that cannot be read, and what `validate` of a dataclass refuses.
    Where `others` are given, the variables that somebody else reads, any other `DSCHED_…` is a problem too.
    """
    names = names or {}
    hints = {field: hint for schema in schemas for field, hint in _fields(schema)}
    known = {names.get(field, field): field for field in hints}
    problems = _Problems()
    given: dict[str, _Given] = {}
    path = options.get("config") or environ.get("DSCHED_CONFIG")
    if path:
        given.update(_from_file(Path(str(path)), table, known, problems))
    for name in known:
        variable = _variable(name)
        if variable in environ:
            given[name] = _Given(environ[variable], variable)
        if options.get(name) is not None:
            given[name] = _Given(options[name], f"--{name.replace('_', '-')}")
    if others is not None:
        _check_environment(environ, {*map(_variable, ("config", *known)), *others}, problems)
    values = dict(defaults or {})
    unread = set()
    for name, said in given.items():
        field = known[name]
        try:
            values[field] = _convert(hints[field], said.value)
        except ValueError as error:
            problems.append(f"{said.place}: {error}")
            unread.add(field)
    # What could not be read has its default now; judging that would only confuse.
    settings = tuple(
        _build(schema, values, problems) for schema in schemas if not unread & {field for field, _ in _fields(schema)}
    )
    if problems:
        raise ConfigError(*problems)
    return settings


def variables_of(schemas: Iterable[type[Any]], names: Mapping[str, str] | None = None) -> set[str]:
    """Return the variables of the environment that `read_settings` reads for these `schemas` and `names`."""
    names = names or {}
    return {_variable(names.get(field, field)) for schema in schemas for field, _ in _fields(schema)}


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def _check_environment(environ: Mapping[str, str], known: Collection[str], problems: _Problems) -> None:
    for variable in sorted(environ):
        if variable.startswith(_PREFIX) and variable not in known and not _OF_SURROUNDINGS.fullmatch(variable):
            names = sorted(name.removeprefix(_PREFIX) for name in known)
            problems.unknown("the environment", variable.removeprefix(_PREFIX), names, _PREFIX)


def _fields(schema: type[Any]) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(schema)
    for field in fields(schema):
        yield field.name, hints[field.name]


def _build(schema: type[Any], values: Mapping[str, object], problems: list[str]) -> Any:
    settings = schema(**{field: values[field] for field, _ in _fields(schema) if field in values})
    try:
        return settings.validate() if hasattr(settings, "validate") else settings
    except ConfigError as error:
        problems.extend(error.problems)
    return None


def _from_file(path: Path, table: str, known: Mapping[str, object], problems: _Problems) -> dict[str, _Given]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return {}
    except ValueError as error:
        problems.append(f"{path}: is not TOML: {error}")
        return {}
    for name in content:
        if name not in TABLES:
            problems.append(f"{path}: there is no table [{name}]; the tables are [core] and [worker]")
    section = content.get(table, {})
    if not isinstance(section, dict):
        problems.append(f"{path}: {table} must be a table")
        return {}
    given = {}
    for name, value in section.items():
        place = f"{path} [{table}]"
        if name in known:
            given[name] = _Given(value, f"{place} {name}")
        else:
            problems.unknown(place, name, known)
    return given


def _convert(hint: Any, value: object) -> object:
    """Turn what was given into what a field of type `hint` takes; raises `ValueError` with the reason."""
    if hint == tuple[str, int]:
        address = _convert(Address, value)
        return address.host, address.port  # type: ignore[attr-defined]
    if isinstance(hint, types.UnionType):
        [hint] = [choice for choice in typing.get_args(hint) if choice is not types.NoneType]
    if typing.get_origin(hint) is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise ValueError("must be a list")
        inner = typing.get_args(hint)[0]
        return tuple(_convert(inner, item.strip() if isinstance(item, str) else item) for item in items if item != "")
    if hint is bool:
        return _boolean(value)
    if hint in (int, float):
        return _number(hint, value)
    if hint is Address:
        # A bare port may be a number in the file.
        return Address.parse(str(value) if type(value) is int else _text(value))
    return hint(_text(value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    if not value.isprintable():
        raise ValueError("must not hold control characters")
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(str(value).lower())
    if word is None:
        raise ValueError(f"must be true or false, not {str(value)[:40]!r}")
    return word


def _number(kind: type[int] | type[float], value: object) -> int | float:
    what = "a whole number" if kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be {what}")
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        raise ValueError(f"must be {what}, not {str(value)[:40]!r}") from None
    if number != (value if not isinstance(value, str) else number) or not math.isfinite(number):
        raise ValueError(f"must be {what}, not {str(value)[:40]!r}")
    if number < 0:
        raise ValueError(f"must not be negative, and is {str(value)[:40]}")
    return number
