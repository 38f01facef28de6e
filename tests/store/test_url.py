"""Store URLs."""

from pathlib import Path

import pytest

from dsched.errors import ConfigError
from dsched.store.memory import MemoryStore
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
        ("mysql://user:secret@host/db", "not in this version yet"),
        ("postgres://user:secret@host/db", "unknown kind 'postgres'"),
        ("dsched.db", "sqlite:///PATH"),
        ("", "sqlite:///PATH"),
        ("memory:x", "sqlite:///PATH"),
        ("http://[secret", "not a URL"),
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
    assert "secret" not in str(caught.value)
