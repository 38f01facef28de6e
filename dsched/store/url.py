"""Store URLs: `sqlite:///PATH`, `mysql://…` and `memory:`."""

import os
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from dsched.errors import ConfigError
from dsched.store.interface import Store
from dsched.store.memory import MemoryStore
from dsched.store.mysql import MySqlStore, parse_url
from dsched.store.sqlite import SqliteStore

__all__ = ["open_store"]

_ALLOWED = "sqlite:///PATH (four slashes before an absolute path)"
_KINDS = f"{_ALLOWED} or mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE"


def open_store(url: str, environ: Mapping[str, str] = os.environ) -> Store:
    """Return the store that `url` names, not opened yet.

    `sqlite:///relative.db`, `sqlite:////absolute.db`, both with `?synchronous=FULL` (the default: a commit survives a
    power cut) or `NORMAL` (only a crash); `mysql://…` as in `dsched.store.mysql.address`, its password perhaps from
    `environ`; `memory:` forgets everything with the process and is for tests and simulation. Raises `ConfigError`,
    which says what is allowed and repeats no password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # whose text may hold a password
        raise ConfigError(f"store: not a URL; use {_KINDS}") from None
    if parts.scheme == "sqlite":
        return _sqlite(url)
    if parts.scheme == "memory" and url == "memory:":
        return MemoryStore()
    if parts.scheme == "mysql":
        return MySqlStore(parse_url(url, environ))
    raise ConfigError(f"store: unknown kind {parts.scheme[:20]!r}; use {_KINDS}")


def _sqlite(url: str) -> SqliteStore:
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.netloc or not path or parts.fragment or not url.startswith("sqlite:///"):
        raise ConfigError(f"store: an SQLite URL is {_ALLOWED}, not {url!r}")
    if path == ":memory:" or "\0" in path:
        raise ConfigError(f"store: SQLite needs a file, two connections share it; use {_ALLOWED}")
    synchronous = "FULL"
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "synchronous":
            raise ConfigError(f"store: unknown parameter {name!r}; SQLite takes synchronous=FULL or synchronous=NORMAL")
        if value.upper() not in ("FULL", "NORMAL"):
            raise ConfigError(f"store: synchronous must be FULL or NORMAL, not {value!r}")
        synchronous = value.upper()
    return SqliteStore(path, synchronous=synchronous, url=url)
