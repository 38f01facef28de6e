"""Store URLs of MySQL and MariaDB."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from dsched.errors import ConfigError
from dsched.store.mysql.connection import MySqlSettings, TlsMode

__all__ = ["PASSWORD_VARIABLE", "parse_url"]

PASSWORD_VARIABLE: Final = "DSCHED_STORE_PASSWORD"
_FORM: Final = "mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE"
_PARAMETERS: Final = ("tls", "ca", "cert", "key", "password_file")
_MODES: Final[tuple[TlsMode, ...]] = get_args(TlsMode)
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def parse_url(url: str, environ: Mapping[str, str]) -> MySqlSettings:
    """Read `mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE?tls=…&ca=…&cert=…&key=…&password_file=…`.

    The password may also be the content of a file, or in the environment as DSCHED_STORE_PASSWORD. Names and passwords
    may be percent-encoded. Without `tls` the certificate is verified if there is a `ca`; else TLS is not used on
    loopback, and elsewhere if the server offers it. A `ca` that nothing would be checked against is refused. Raises
    `ConfigError`, which says what is allowed and never repeats the URL, for the password may be anywhere in one that is
    wrong.
    """
    parts = urlsplit(url)
    try:
        port = 3306 if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not port:
        text = "the port must be a number from 1 to 65535; in a password, / ? # @ are written %2F %3F %23 %40"
        raise ConfigError(f"store: {text}; a URL is {_FORM}")
    user = unquote(parts.username or "")
    database = unquote(parts.path[1:])
    wrong = [
        what
        for what, is_wrong in (
            ("the user", not user or "\0" in user),
            ("the host", not parts.hostname),
            ("the database", not 0 < len(database) <= 64 or any(c in database for c in "/\\.`\0")),
            ("what follows a #", bool(parts.fragment)),
        )
        if is_wrong
    ]
    if wrong:
        raise ConfigError(f"store: {' and '.join(wrong)} cannot be used; a URL is {_FORM}")
    given = _parameters(parts.query)
    # On loopback there is nobody to hide from.
    default = "verify" if "ca" in given else "off" if parts.hostname in _LOOPBACK and "cert" not in given else "prefer"
    tls = given.get("tls") or default
    mode = next((mode for mode in _MODES if mode == tls), None)
    if mode is None:
        raise ConfigError(f"store: tls must be one of {', '.join(_MODES)}")
    if tls == "off" and set(given) & {"ca", "cert", "key"}:
        raise ConfigError("store: ca, cert and key need TLS, which tls=off turns off")
    if tls != "verify" and "ca" in given:
        raise ConfigError(f"store: with tls={tls} nothing is checked against ca: use tls=verify, or leave ca out")
    if "key" in given and "cert" not in given:
        raise ConfigError("store: key needs cert, the certificate that it belongs to")
    return MySqlSettings(
        parts.hostname or "", port, user, _password(parts.password, given.get("password_file"), environ), database,
        mode, given.get("ca"), given.get("cert"), given.get("key"),
    )  # fmt: skip


def _parameters(query: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise ConfigError(f"store: unknown parameter; a mysql:// URL takes {', '.join(_PARAMETERS)}")
        if not value or name in given:
            raise ConfigError(f"store: the parameter {name} must be given once, and not be empty")
        given[name] = value
    return given


def _password(plain: str | None, path: str | None, environ: Mapping[str, str]) -> bytes:
    from_environ = environ.get(PASSWORD_VARIABLE)
    if plain is not None and path is not None:
        raise ConfigError("store: there are two passwords, one in the URL and one in password_file; keep one")
    if plain is not None:
        return unquote(plain).encode()
    if path is not None:
        try:
            return Path(path).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise ConfigError(f"store: password_file {path} cannot be read: {error.strerror}") from None
    return (from_environ or "").encode()
