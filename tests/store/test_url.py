"""Store URLs."""

from pathlib import Path

import pytest

from dsched.errors import ConfigError
from dsched.store.memory import MemoryStore
from dsched.store.mysql import PASSWORD_VARIABLE, MySqlSettings, parse_url
from dsched.store.sqlite import SqliteStore
from dsched.store.url import open_store


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///dsched.db", Path("dsched.db").absolute()),
        ("sqlite:///a/b.db", Path("a/b.db").absolute()),
        ("sqlite:////var/lib/dsched.db", Path("/var/lib/dsched.db")),
        ("sqlite:////tmp/with%20space%3F%23.db", Path("/tmp/with space?#.db")),
        ("sqlite:////tmp/a.db?synchronous=NORMAL", Path("/tmp/a.db")),
        ("sqlite:////tmp/a.db?synchronous=full", Path("/tmp/a.db")),
    ],
)
def test_sqlite(url: str, path: Path) -> None:
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert (store.path, store.url) == (path, url)


def test_memory() -> None:
    assert isinstance(open_store("memory:"), MemoryStore)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://user:secret@host:3306", "the database cannot be used"),
        ("mysql://user:secret@/db", "the host cannot be used"),
        ("mysql://:secret@host/db", "the user cannot be used"),
        ("mysql://user:secret@host/a/b", "the database cannot be used"),
        ("mysql://user:sec/ret@host/db", "the port must be a number"),
        ("mysql://user:secret@host:99999/db", "the port must be a number"),
        ("mysql://user:x#secret@host/db", "%23"),
        ("mysql://user@host/db?password=secret", "takes tls, ca, cert, key, password_file"),
        ("mysql://user:secret@host/db?tls=maybe", "off, prefer, require, verify"),
        ("mysql://user:secret@host/db?tls=", "must be given once"),
        ("mysql://user:secret@host/db?tls=off&ca=x", "which tls=off turns off"),
        ("mysql://user:secret@host/db?tls=require&ca=x", "use tls=verify"),
        ("mysql://user:secret@host/db?tls=prefer&ca=x", "use tls=verify"),
        ("mysql://user:secret@host/db?key=x", "key needs cert"),
        ("mysql://user:secret@host/db?ca=/nowhere/ca.pem", "TLS files cannot be used"),
        ("mysql://user:secret@host/db?password_file=x", "two passwords"),
        ("mysql://user@host/db?password_file=/nowhere/secret-file", "cannot be read"),
        ("postgres://user:secret@host/db", "unknown kind 'postgres'"),
        ("dsched.db", "sqlite:///PATH"),
        ("", "sqlite:///PATH"),
        ("memory:x", "sqlite:///PATH"),
        ("http://[secret", "not a URL"),
        ("mysql://user:secret\u2100@host/db", "not a URL"),
        ("sqlite:dsched.db", "sqlite:///PATH"),
        ("sqlite://dsched.db", "sqlite:///PATH"),
        ("sqlite://host/dsched.db", "sqlite:///PATH"),
        ("sqlite:///", "sqlite:///PATH"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:///a%00b", "needs a file"),
        ("sqlite:///a.db#x", "sqlite:///PATH"),
        ("sqlite:///a.db?sync=FULL", "unknown parameter 'sync'"),
        ("sqlite:///a.db?synchronous=OFF", "must be FULL or NORMAL"),
        ("sqlite:///a.db?synchronous=", "must be FULL or NORMAL"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value).replace("secret-file", "")


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("mysql://u@h/d", ("h", 3306, "u", b"", "d", "prefer")),
        ("mysql://u:p%40%2F%23%3A%C3%A9@h:33/d", ("h", 33, "u", "p@/#:é".encode(), "d", "prefer")),
        ("mysql://a%40b@[2001:db8::1]:33/d%20e", ("2001:db8::1", 33, "a@b", b"", "d e", "prefer")),
        ("mysql://u@localhost/d", ("localhost", 3306, "u", b"", "d", "off")),
        ("mysql://u@127.0.0.1/d?tls=require", ("127.0.0.1", 3306, "u", b"", "d", "require")),
        ("mysql://u@h/d?ca=CA&cert=C&key=K", ("h", 3306, "u", b"", "d", "verify", "CA", "C", "K")),
        ("mysql://u@h/d?tls=verify&ca=CA", ("h", 3306, "u", b"", "d", "verify", "CA")),
    ],
)
def test_mysql(url: str, settings: tuple[object, ...]) -> None:
    assert parse_url(url, {}) == MySqlSettings(*settings)  # type: ignore[arg-type]


def test_a_password_comes_from_the_url_or_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes("dröwssap \n".encode())
    environ = {PASSWORD_VARIABLE: "from-environ"}
    assert parse_url("mysql://u:mine@h/d", environ).password == b"mine"
    assert parse_url(f"mysql://u@h/d?password_file={file}", environ).password == "dröwssap ".encode()
    assert parse_url("mysql://u@h/d", environ).password == b"from-environ"
    assert parse_url("mysql://u:@h/d", environ).password == b""


def test_what_is_shown_of_a_mysql_store_has_no_password() -> None:
    store = open_store("mysql://us%40er:secret@host:33/db?tls=require", {})
    assert store.url == "mysql://us%40er@host:33/db"
    assert "secret" not in repr(parse_url("mysql://user:secret@host/db", {}))
