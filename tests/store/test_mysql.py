"""What is particular to MySQL and MariaDB: lost connections, restarts, hangs, deadlocks, answers that never come.

The server is real. Tests that hurt it start one of their own.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from twisted.logger import LogLevel, capturedLogs, formatEvent

from dsched.engine.changes import Batch, DueRow
from dsched.errors import BatchRefused, ConfigError, EpochLost, StoreUnavailable
from dsched.model.rows import LeaderRow
from dsched.store.mysql import MySqlSettings, MySqlStore, parse_url
from dsched.store.mysql.connection import TlsMode, connect
from dsched.store.paging import JOBS, RUNS, TASKS, Condition
from dsched.testing.mariadb import Databases, MariaDbServer
from dsched.testing.tcp_proxy import TcpProxy
from tests.store.plans import asked


def opened(url: str, **options: Any) -> MySqlStore:
    store = MySqlStore(parse_url(url, os.environ), **{"lock_wait_s": 1, **options})
    store.open()
    return store


@pytest.fixture
def store(mysql_url: str) -> Iterator[MySqlStore]:
    store = opened(mysql_url)
    yield store
    store.close()


@pytest.fixture
def leader(store: MySqlStore, leader_of: Any) -> Any:
    return leader_of(store)


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    """Return a server that may be hurt; whoever does so starts it again."""
    with MariaDbServer() as server:
        yield server


@pytest.fixture
def own(server: MariaDbServer) -> str:
    """Return a database on the server that may be hurt."""
    return server.create_database()


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a certificate of loopback that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{name}.pem", folder / f"{name}-key.pem"
    paths[0].write_bytes(signed.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    return paths


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Return certificates and their keys: the server's, and one of somebody else."""
    folder = tmp_path_factory.mktemp("tls")
    return {name: self_signed(folder, name) for name in ("server", "other")}


@pytest.fixture(scope="module")
def tls_server(certificates: dict[str, tuple[Path, Path]]) -> Iterator[MariaDbServer]:
    """Return a server that offers TLS."""
    certificate, key = certificates["server"]
    with MariaDbServer(options=[f"--ssl-cert={certificate}", f"--ssl-key={key}"]) as server:
        yield server


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run in a thread; the list gets what is returned or raised."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


# -- opening


def test_nothing_works_before_open_and_after_close(mysql_url: str) -> None:
    store = MySqlStore(parse_url(mysql_url, os.environ))
    with pytest.raises(StoreUnavailable, match="closed"):
        store.leader()
    for _ in range(2):
        store.open()
        assert store.leader().epoch == 0
        store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            store.leader()


def test_settings_are_those_promised(store: MySqlStore, leader: Any) -> None:
    names = "@@sql_mode, @@time_zone, @@character_set_client, @@collation_connection, @@autocommit, @@lock_wait_timeout"
    for connections in (store._readers, store._writers):
        with connections.lend():
            cursor = connections.mine().cursor()
            cursor.execute(f"SELECT {names}")
            mode, *rest = cursor.fetchone()
            connections.mine().rollback()
        assert "STRICT_ALL_TABLES" in mode and "NO_BACKSLASH_ESCAPES" not in mode
        assert rest == ["+00:00", "utf8mb4", "utf8mb4_bin", 0, 1]
    with pytest.raises(StoreUnavailable, match="READ ONLY"), store.reading() as execute:
        execute("DELETE FROM job")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"user": "nobody-there", "password": b"hush-hush"}, "user, password"),
        ({"database": "no_such_database"}, "CREATE DATABASE"),
        ({"host": "no-such-host.invalid"}, "no host of that name"),
    ],
)
def test_what_waiting_cannot_help_is_a_wrong_setting(mysql_url: str, changed: dict[str, Any], says: str) -> None:
    store = MySqlStore(replace(parse_url(mysql_url, os.environ), **changed))
    with pytest.raises(ConfigError, match=says) as caught:
        store.open()
    assert "hush" not in str(caught.value)


def test_a_server_that_is_down_is_waited_for() -> None:
    with pytest.raises(StoreUnavailable, match="refused"):
        MySqlStore(MySqlSettings("127.0.0.1", 1, "u", b"secret", "d", "off")).open()


def test_a_user_who_may_not_make_tables_is_told(server: MariaDbServer, own: str) -> None:
    server.execute(
        f"CREATE USER '{own}'@'127.0.0.1' IDENTIFIED BY 'pä''ss\\\\word'",
        f"GRANT SELECT, INSERT, UPDATE ON {own}.* TO '{own}'@'127.0.0.1'",
    )
    with pytest.raises(ConfigError, match="GRANT ALL"):
        opened(server.url(own, own, "pä'ss\\word"))
    server.execute(f"GRANT ALL ON {own}.* TO '{own}'@'127.0.0.1'")
    opened(server.url(own, own, "pä'ss\\word")).close()
    # Once the schema is there, rights on rows are enough.
    server.execute(
        f"REVOKE ALL ON {own}.* FROM '{own}'@'127.0.0.1'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {own}.* TO '{own}'@'127.0.0.1'",
    )
    store = opened(server.url(own, own, "pä'ss\\word"))
    assert store.take_leadership(store.leader(), "a", "b", "c") is not None
    store.close()


@pytest.mark.parametrize(
    ("demand", "tls", "doubt"),
    [
        ("SSL", "off", "or the server may demand TLS: tls=require"),
        ("X509", "off", "or the server may demand TLS: tls=require"),
        ("X509", "require", "or the server may demand a certificate: cert=PATH"),
    ],
)
def test_who_is_refused_for_a_lack_of_tls_is_told_that_it_may_be_that(
    tls_server: MariaDbServer, demand: str, tls: TlsMode, doubt: str
) -> None:
    name = tls_server.create_database()
    tls_server.execute(f"CREATE USER '{name}'@'127.0.0.1' REQUIRE {demand}")
    settings = replace(parse_url(tls_server.url(name, name), {}), tls=tls)
    store = MySqlStore(settings)
    for call in (store.versions, store.open):
        with pytest.raises(ConfigError, match=f"user, password.*, {doubt} \\["):
            call()


def test_a_ca_is_what_the_server_is_verified_with(
    tls_server: MariaDbServer, certificates: dict[str, tuple[Path, Path]]
) -> None:
    url = tls_server.url(tls_server.create_database())
    opened(f"{url}?ca={certificates['server'][0]}").close()
    with pytest.raises(ConfigError, match="certificate does not pass"):
        opened(f"{url}?ca={certificates['other'][0]}")


@pytest.mark.skipif(find_spec("nacl") is not None, reason="the driver understands this login then")
def test_a_login_that_needs_a_package_is_named(server: MariaDbServer, own: str) -> None:
    server.execute(
        "INSTALL SONAME 'auth_ed25519'",
        f"CREATE USER '{own}'@'127.0.0.1' IDENTIFIED BY 'hush-hush'",
        f"GRANT ALL ON {own}.* TO '{own}'@'127.0.0.1'",
    )
    running = opened(server.url(own, own, "hush-hush"))
    server.execute(f"ALTER USER '{own}'@'127.0.0.1' IDENTIFIED VIA ed25519 USING PASSWORD('hush-hush')")
    try:
        store = MySqlStore(parse_url(server.url(own, own, "hush-hush"), {}))
        for call in (store.versions, store.open):
            with pytest.raises(ConfigError, match="login that this driver does not know .*pynacl") as caught:
                call()
            assert "hush" not in str(caught.value)
        server.kill_connections(own)
        with pytest.raises(StoreUnavailable, match="pynacl"):
            running.leader()
    finally:
        server.execute("UNINSTALL SONAME 'auth_ed25519'")
    running.close()


# -- lost connections


def test_all_calls_succeed_after_all_connections_were_cut(
    databases: Databases, store: MySqlStore, leader: Any, rows: Any, mysql_url: str
) -> None:
    """Case B083: all connections are killed."""
    leader.commit(jobs_new=[rows.job()])
    gates = [threading.Barrier(4) for _ in range(3)]
    answers: list[Any] = []

    def work() -> None:
        store.job("census")
        for gate in gates:
            gate.wait(30)  # everybody has a connection; the other thread cuts them all
            gate.wait(30)
            try:
                answers.append(store.job("census"))
            except Exception as error:
                answers.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number, gate in enumerate(gates, 1):
        gate.wait(30)
        cut(databases, mysql_url)
        gate.wait(30)
        leader.commit(jobs_new=[rows.job(f"another-{number}")])
    for thread in threads:
        thread.join(30)
    assert answers == [rows.job()] * 9  # and the three commits


def cut(databases: Databases, url: str) -> None:
    name = parse_url(url, os.environ).database
    query = f"SELECT id FROM information_schema.processlist WHERE db = '{name}' AND id <> connection_id()"
    ids = databases.execute(url, query)
    assert ids
    databases.execute(url, *(f"KILL CONNECTION {number}" for (number,) in ids))


def test_an_idle_connection_that_the_server_closed_is_replaced(store: MySqlStore, leader: Any, rows: Any) -> None:
    """Case B083: the server's wait_timeout."""
    for connections in (store._readers, store._writers):
        with connections.lend():
            connections.mine().cursor().execute("SET SESSION wait_timeout = 1")
            connections.mine().rollback()
    time.sleep(1.5)
    leader.commit(jobs_new=[rows.job()])
    assert store.job("census") == rows.job()


def test_a_connection_that_is_lost_in_a_transaction_has_it_repeated(
    databases: Databases, store: MySqlStore, leader: Any, rows: Any, mysql_url: str
) -> None:
    runs = 0

    def work(execute: Any) -> int:
        nonlocal runs
        runs += 1
        execute("UPDATE leader SET renewal = renewal + 1")
        if runs == 1:
            cut(databases, mysql_url)
        execute("UPDATE leader SET last_id = last_id + 7")
        return runs

    before = store.leader()
    assert store._runner.write(work) == 2
    after = store.leader()
    assert (after.renewal, after.last_id) == (before.renewal + 1, before.last_id + 7)


def test_a_connection_that_is_always_lost_means_unavailable(
    databases: Databases, store: MySqlStore, mysql_url: str
) -> None:
    def work(execute: Any) -> None:
        execute("UPDATE leader SET renewal = renewal + 1")
        cut(databases, mysql_url)
        execute("SELECT 1")

    before = store.leader()
    with pytest.raises(StoreUnavailable):
        store._runner.write(work)
    assert store.leader() == before


def test_one_thread_never_holds_two_connections_at_once(store: MySqlStore) -> None:
    """Case B087: nobody asks for a second connection while holding one."""
    with store.reading() as execute:
        execute("SELECT 1")
        with pytest.raises(RuntimeError, match="connection already"):
            store.leader()
    assert store.leader().epoch == 0


def test_any_exception_leaves_no_transaction(store: MySqlStore, leader: Any, rows: Any) -> None:
    with pytest.raises(TypeError):
        leader.commit(jobs_new=[rows.job()], runs_new=[5])
    assert store.job("census") is None
    leader.commit(jobs_new=[rows.job()])


# -- the server dies, hangs, refuses


def test_the_server_may_be_killed_between_transactions(
    server: MariaDbServer, own: str, leader_of: Any, rows: Any
) -> None:
    store = opened(server.url(own))
    leader = leader_of(store)
    leader.commit(jobs_new=[rows.job("a")])
    server.kill()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            leader.commit(jobs_new=[rows.job("b")])
        with pytest.raises(StoreUnavailable):
            store.leader()
    server.start()
    assert store.leader().batch == 1
    leader.commit(jobs_new=[rows.job("b")])
    assert [job.name for job in store.jobs(10, None, {}).items] == ["a", "b"]
    store.close()


def test_the_server_may_be_killed_during_transactions(
    server: MariaDbServer, own: str, leader_of: Any, rows: Any
) -> None:
    """Case B083: a restart in the middle of transactions, never two rows."""
    store = opened(server.url(own))
    leader = leader_of(store)
    rng = random.Random(11)
    acknowledged = 0
    for _ in range(3):
        killer = threading.Timer(rng.uniform(0.02, 0.2), server.kill)
        killer.start()
        with pytest.raises(StoreUnavailable):
            while True:
                number = leader.number + 1
                tasks = [rows.task(number * 100 + item, f"census~{number}", item) for item in range(30)]
                leader.commit(runs_new=[rows.run(f"census~{number}")], tasks_new=tasks)
                acknowledged = leader.number
        killer.join()
        server.start()
        stored = store.leader().batch
        assert stored in (acknowledged, acknowledged + 1)
        assert len(store.load_active().runs) == stored
        assert len(store.load_active().tasks) == 30 * stored
        leader.number = stored
    store.close()


def test_a_server_that_hangs_means_unavailable_in_time_and_recovers(
    server: MariaDbServer, own: str, leader_of: Any, rows: Any
) -> None:
    store = opened(server.url(own), reader_s=0.5, writer_s=1.0)
    leader = leader_of(store)
    leader.commit(jobs_new=[rows.job("a")])
    store.job("a")
    server.freeze()
    try:
        started_s = time.monotonic()
        # The second time it is a new connection that hangs.
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="timed out"):
                store.job("a")
            with pytest.raises(StoreUnavailable, match="timed out"):
                leader.commit(jobs_new=[rows.job("b")])
        assert time.monotonic() - started_s < 10
    finally:
        server.resume()
    resumed_s = time.monotonic()
    while True:
        try:
            assert store.leader().batch == 1
            leader.commit(jobs_new=[rows.job("b")])
            break
        except StoreUnavailable:
            assert time.monotonic() - resumed_s < 5
    assert store.job("b") == rows.job("b")
    store.close()


def test_a_read_only_server_means_unavailable_and_passes(
    server: MariaDbServer, own: str, leader_of: Any, rows: Any
) -> None:
    server.execute(
        f"CREATE USER '{own}'@'127.0.0.1'", f"GRANT ALL ON {own}.* TO '{own}'@'127.0.0.1'"
    )  # root would write all the same
    store = opened(server.url(own, own))
    leader = leader_of(store)
    server.execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreUnavailable, match="read-only"):
            leader.commit(jobs_new=[rows.job()])
        assert store.job("census") is None
    finally:
        server.execute("SET GLOBAL read_only = 0")
    leader.commit(jobs_new=[rows.job()])
    store.close()


def test_too_many_connections_mean_unavailable(server: MariaDbServer, own: str) -> None:
    server.execute(
        f"CREATE USER '{own}'@'127.0.0.1' WITH MAX_USER_CONNECTIONS 1", f"GRANT ALL ON {own}.* TO '{own}'@'127.0.0.1'"
    )
    settings = parse_url(server.url(own, own), {})
    with closing(connect(settings, timeout_s=5.0)), pytest.raises(StoreUnavailable, match="max_user_connections"):
        MySqlStore(settings).open()


def test_a_login_that_is_refused_later_means_unavailable(server: MariaDbServer, own: str, leader_of: Any) -> None:
    server.execute(f"CREATE USER '{own}'@'127.0.0.1'", f"GRANT ALL ON {own}.* TO '{own}'@'127.0.0.1'")
    store = opened(server.url(own, own))
    server.execute(f"ALTER USER '{own}'@'127.0.0.1' IDENTIFIED BY 'changed'")
    server.kill_connections(own)
    with pytest.raises(StoreUnavailable, match="Access denied"):
        store.leader()
    server.execute(f"ALTER USER '{own}'@'127.0.0.1' IDENTIFIED BY ''")
    assert store.leader().epoch == 0
    store.close()


# -- locks


def test_a_lock_that_goes_is_waited_for_and_one_that_stays_means_unavailable(
    mysql_url: str, leader_of: Any, rows: Any
) -> None:
    """Case B086: error 1205, at most 5 repetitions, with jitter."""
    pauses: list[float] = []
    store = opened(mysql_url, sleep=pauses.append, rng=random.Random(1))
    leader = leader_of(store)
    with closing(connect(parse_url(mysql_url, os.environ), timeout_s=30.0)) as other:
        other.cursor().execute("SELECT * FROM leader FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="Lock wait timeout"):
            leader.commit(jobs_new=[rows.job()])
        assert len(pauses) == 5 and pauses == sorted(pauses) and pauses[0] != pauses[1] / 2
        assert store.leader().batch == 0  # readers wait for nobody
        thread, outcome = in_thread(lambda: leader.commit(jobs_new=[rows.job()]))
        time.sleep(0.2)
        other.rollback()
        thread.join(30)
    assert outcome == [None]
    assert store.job("census") == rows.job()
    store.close()


def test_both_sides_of_a_deadlock_get_through(mysql_url: str, store: MySqlStore, leader: Any, rows: Any) -> None:
    """Two transactions lock two rows in opposite order; the server kills one of them, which goes again (case B086)."""
    leader.commit(jobs_new=[rows.job("a"), rows.job("b")])
    second = opened(mysql_url)
    meeting = threading.Barrier(2)
    runs = {"a": 0, "b": 0}

    def crossing(first: str, then: str) -> Callable[[Any], None]:
        def work(execute: Any) -> None:
            runs[first] += 1
            execute("UPDATE job SET updated_at = updated_at + 1 WHERE name = %s", (first,))
            if runs[first] == 1:
                meeting.wait(30)
            execute("UPDATE job SET updated_at = updated_at + 1 WHERE name = %s", (then,))

        return work

    for _ in range(2):
        runs.update(a=0, b=0)
        before = store.job("a").updated_at  # type: ignore[union-attr]
        threads = [
            in_thread(lambda: store._runner.write(crossing("a", "b"))),
            in_thread(lambda: second._runner.write(crossing("b", "a"))),
        ]
        for thread, _ in threads:
            thread.join(30)
        assert [outcome for _, outcome in threads] == [[None], [None]]
        assert sorted(runs.values()) == [1, 2]
        assert [store.job(name).updated_at for name in "ab"] == [before + 2] * 2  # type: ignore[union-attr]
    second.close()


class Contended:
    """A connection of the driver on which a part of all statements meet other transactions."""

    def __init__(self, connection: Any, rng: random.Random) -> None:
        self._connection = connection
        self._rng = rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self) -> Any:
        cursor = self._connection.cursor()
        execute = cursor.execute

        def contended(statement: bytes) -> Any:
            if self._rng.random() < 0.05:
                raise pymysql.err.OperationalError(self._rng.choice((1213, 1205)), "met another transaction")
            return execute(statement)

        cursor.execute = contended
        return cursor


def test_conflicts_of_every_twentieth_statement_lose_and_double_nothing(
    mysql_url: str, leader_of: Any, rows: Any
) -> None:
    """Case B086: the whole transaction goes again, and its caller learns nothing of it."""
    pauses: list[float] = []
    rng = random.Random(86)
    store = opened(mysql_url, sleep=pauses.append, rng=rng)
    leader = leader_of(store)
    mine = store._writers.mine
    store._writers.mine = lambda: Contended(mine(), rng)  # type: ignore[method-assign]
    for number in range(200):
        leader.commit(runs_new=[rows.run(f"census~{number}")], tasks_new=[rows.task(number + 1, f"census~{number}", 0)])
    assert len(pauses) > 10
    active = store.load_active()
    assert (len(active.runs), len(active.tasks), store.leader().batch) == (200, 200, 200)
    store.close()


# -- the answer to COMMIT is lost


@pytest.mark.parametrize("reaches", [True, False])
def test_an_unanswered_commit_is_found_out(
    databases: Databases, mysql_url: str, leader_of: Any, rows: Any, reaches: bool
) -> None:
    """The proxy loses the server's answer to COMMIT, or the client dies for the server just before it."""
    losing = threading.Event()
    settings = parse_url(mysql_url, os.environ)

    def on_request(data: bytes) -> bool:
        if not losing.is_set() or data[4:] != b"\x03COMMIT":
            return False
        losing.clear()
        if not reaches:
            cut(databases, mysql_url)
        return True

    with TcpProxy(urlsplit(mysql_url).port or 3306, on_request) as proxy:
        store = MySqlStore(replace(settings, host="127.0.0.1", port=proxy.port))
        store.open()
        leader = leader_of(store)
        losing.set()
        with pytest.raises(StoreUnavailable, match="COMMIT was lost"):
            leader.commit(jobs_new=[rows.job()])
        assert store.leader().batch == (1 if reaches else 0)
        assert store.job("census") == (rows.job() if reaches else None)
        leader.number = store.leader().batch
        leader.commit(jobs_new=[rows.job("next")])
        store.close()


def test_who_leads_waits_for_a_commit_that_is_still_under_way(mysql_url: str, leader_of: Any) -> None:
    """An answer that is given while the server has yet to decide would be wrong a moment later."""
    store = opened(mysql_url)
    leader = leader_of(store)
    with closing(connect(parse_url(mysql_url, os.environ), timeout_s=30.0)) as orphan:
        orphan.cursor().execute("UPDATE leader SET batch = batch + 1")
        store._runner.is_unsure = True
        thread, outcome = in_thread(store.leader)
        time.sleep(0.2)
        assert outcome == []
        orphan.commit()
        thread.join(30)
    assert [row.batch for row in outcome] == [1]
    assert not store._runner.is_unsure
    leader.number = 1
    leader.commit()
    store.close()


def test_a_core_that_stands_still_in_a_transaction_keeps_nobody_from_leading(mysql_url: str, leader_of: Any) -> None:
    """Its machine may be halted, or out of reach: no end of the connection tells the server."""
    paused, other = opened(mysql_url, pause_s=1), opened(mysql_url)
    leader_of(paused)
    seen = other.leader()
    holds, goes_on = threading.Event(), threading.Event()

    def stand_still(execute: Any) -> None:
        if execute("UPDATE leader SET batch = 1 WHERE epoch = 1").rowcount:
            holds.set()
            goes_on.wait(30)

    thread, outcome = in_thread(lambda: paused._runner.write(stand_still))
    assert holds.wait(30)
    try:
        taken = other.take_leadership(seen, "other", "there:1", "")
        assert taken is not None and (taken.epoch, taken.batch) == (2, 0)
    finally:
        goes_on.set()
        thread.join(30)
    assert [type(error) for error in outcome] == [StoreUnavailable]
    assert paused.leader() == taken
    paused.close()
    other.close()


# -- content


def test_row_counts_are_those_matched(store: MySqlStore, leader: Any, rows: Any) -> None:
    task = rows.task(1)
    leader.commit(tasks_new=[task])
    leader.commit(tasks_set=[task._replace(version=2)])
    assert store._runner.write(lambda run: run("UPDATE leader SET id = 1 WHERE id = 1").rowcount) == 1
    leader.commit(jobs_new=[rows.job(next_due=5)])
    leader.commit(dues=[DueRow("census", 1, 5)])


def test_a_null_byte_comes_back_equal(store: MySqlStore, leader: Any, rows: Any) -> None:
    """Case B069."""
    task = rows.task(1, params='{"a":"x\0y"}', result='"\0"', create_time="2026-11-30 21:22:47.000")
    leader.commit(tasks_new=[task])
    found = store.task(task.task_id)
    assert found == task
    assert found is not None and (len(found.params), len(found.result or "")) == (len(task.params), 3)


def test_a_batch_may_be_larger_than_a_packet(server: MariaDbServer, own: str, leader_of: Any, rows: Any) -> None:
    server.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        store = opened(server.url(own))
        leader = leader_of(store)
        tasks = [rows.task(number, item=number, params=chr(0x10000 + number) * 60_000) for number in range(1, 25)]
        leader.commit(runs_new=[rows.run()], tasks_new=tasks)
        done = [task._replace(result="'" * 200_000, version=2) for task in tasks]
        leader.commit(tasks_set=done)
        assert store.load_active().tasks == done
        with pytest.raises(BatchRefused, match="max_allowed_packet"):
            leader.commit(tasks_new=[rows.task(99, item=99, params="x" * 1_100_000)])
        leader.commit(jobs_new=[rows.job()])
        store.close()
    finally:
        server.execute("SET GLOBAL max_allowed_packet = 16777216")


@pytest.mark.parametrize(("packet", "warns"), [(1 << 20, True), (16 << 20, False)])
def test_a_server_that_takes_small_packets_only_is_warned_of(
    server: MariaDbServer, own: str, packet: int, warns: bool
) -> None:
    server.execute(f"SET GLOBAL max_allowed_packet = {packet}")
    try:
        with capturedLogs() as events:
            opened(server.url(own)).close()
    finally:
        server.execute("SET GLOBAL max_allowed_packet = 16777216")
    told = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
    assert told == (
        [f"the server takes packets of {packet} bytes: set its max_allowed_packet to 16777216 (16M) or more"]
        if warns
        else []
    )


def test_a_statement_is_never_made_of_values(store: MySqlStore, leader: Any, rows: Any) -> None:
    for text in ("'", "\\", "\\'", "%s", "%(a)s", "%%", "/*", "--", ";", "\x1a", "') OR 1=1 -- ", "\\\0", "¿'"):
        job = rows.job("nasty", definition=text, group_name=text[:20])
        leader.commit(jobs_gone=["nasty"], jobs_new=[job])
        assert store.job("nasty") == job
        assert list(store.jobs(5, None, {"group": text[:20]}).items) == [job]
        leader.commit(jobs_set=[job._replace(definition=text + text, version=2)])
        assert store.job(text) is None


def test_names_differ_by_case_and_accent(store: MySqlStore, leader: Any, rows: Any) -> None:
    names = ["a", "A", "á", "ä", "ß", "ss"]
    leader.commit(jobs_new=[rows.job(name) for name in names])
    assert [store.job(name).name for name in names] == names  # type: ignore[union-attr]


# -- reads


def test_readers_see_whole_commits_only(store: MySqlStore, leader: Any, rows: Any) -> None:
    torn: list[Any] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            active = store.load_active()
            if len(active.tasks) != 20 * len(active.runs):
                torn.append((len(active.runs), len(active.tasks)))

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(30):
        run_id = f"census~{number:03}"
        tasks = [rows.task(number * 20 + item, run_id, item) for item in range(20)]
        leader.commit(runs_new=[rows.run(run_id)], tasks_new=tasks)
    done.set()
    thread.join(60)
    assert torn == []
    assert len(store.load_active().runs) == 30


def test_a_commit_waits_for_no_reader(store: MySqlStore, leader: Any, rows: Any) -> None:
    with store.reading() as execute:
        execute("SELECT count(*) FROM job").fetchall()
        thread, outcome = in_thread(lambda: leader.commit(jobs_new=[rows.job()]))
        thread.join(30)
        assert outcome == [None]
        assert execute("SELECT count(*) FROM job").fetchall() == ((0,),)
    assert store.job("census") == rows.job()


def test_a_query_that_hangs_holds_up_nobody_else(mysql_url: str, leader_of: Any, rows: Any) -> None:
    """Case B087: commits go on beside it."""
    store = opened(mysql_url, reader_s=1.0)
    leader = leader_of(store)
    leader.commit(jobs_new=[rows.job()])

    def hang() -> None:
        with store.reading() as execute:
            execute("SELECT sleep(120)")

    with ThreadPoolExecutor(store.readers) as pool:
        stuck = pool.submit(hang)
        answers = [pool.submit(store.job, "census") for _ in range(100)]
        leader.commit(jobs_new=[rows.job("meanwhile")])
        assert [answer.result(30) for answer in answers] == [rows.job()] * 100
        assert not stuck.done()
        with pytest.raises(StoreUnavailable, match="timed out"):
            stuck.result(30)
        assert pool.submit(store.job, "meanwhile").result(30) == rows.job("meanwhile")
    store.close()


def plan(store: MySqlStore, text: str, values: Any) -> list[tuple[Any, ...]]:
    with store.reading() as execute:
        return list(execute(f"EXPLAIN {text}", values).fetchall())


@pytest.fixture(scope="module")
def filled(databases: Databases) -> Iterator[MySqlStore]:
    """Return a store with so much history that a plan without an index would be absurd."""
    url = databases.fresh()
    store = opened(url)
    databases.execute(
        url,
        "INSERT INTO job SELECT concat('j', seq), concat('g', seq % 9), '{}', seq % 2, 1, NULL, 1, 1"
        " FROM seq_1_to_3000",
        "INSERT INTO run SELECT concat('j~', seq), concat('j', seq % 50), NULL,"
        " IF(seq > 19990, 'RUNNING', IF(seq % 9, 'SUCCESS', 'FAILED')), NULL, 'api', seq, 'h', NULL, NULL,"
        " concat('g', seq % 9), 0, 1, '{}', '{}', 1, 0, NULL, seq, NULL, NULL, 1 FROM seq_1_to_20000",
        "INSERT INTO schedule_job (job_id, task_id, job_name, params, sharding_total, sharding_item, timeout, status,"
        " run_id, fence, version) SELECT seq, concat('j~', seq, ':0'), 'j', '{}', 1, 0, 30,"
        " IF(seq > 19990, 'RUNNING', 'SUCCESS'), concat('j~', seq), seq, 3 FROM seq_1_to_20000",
        "ANALYZE TABLE job, run, schedule_job",
    )
    yield store
    store.close()
    databases.drop(url)


@pytest.mark.parametrize(
    ("listing", "filters", "index"),
    [
        (JOBS, {}, {"PRIMARY"}),
        (JOBS, {"group": "g1"}, {"job_group"}),
        (RUNS, {}, {"run_created"}),
        (RUNS, {"job": "j1"}, {"run_job"}),
        (RUNS, {"group": "g1"}, {"run_group"}),
        (RUNS, {"status": "RUNNING"}, {"run_status"}),
        (RUNS, {"status": "FAILED"}, {"run_status"}),
    ],
)
def test_lists_walk_an_index(filled: MySqlStore, listing: Any, filters: Any, index: set[str]) -> None:
    [row] = plan(filled, *asked(filled, listing, filters))
    assert row[5] in index, row
    assert "filesort" not in row[9] and "temporary" not in row[9], row


def test_tasks_of_a_run_walk_an_index(filled: MySqlStore) -> None:
    [row] = plan(filled, *asked(filled, TASKS, {}, None, (Condition("run_id", "=", "j~7"),)))
    assert row[5] == "schedule_job_run" and "filesort" not in row[9]


def test_open_tasks_are_counted_without_history(filled: MySqlStore) -> None:
    assert filled.open_counts() == {"RUNNING": 10}
    active = filled.load_active()
    assert (len(active.runs), len(active.tasks)) == (10, 10)
    from dsched.store.mysql.store import _OPEN_TASK

    [row] = plan(filled, f"SELECT status, count(*) FROM schedule_job WHERE {_OPEN_TASK} GROUP BY status", ())
    assert row[5] == "schedule_job_status" and int(row[8]) < 100 and "Using index" in row[9]
    seen = filled.leader()
    taken = filled.take_leadership(seen, "a", "b", "c")
    assert taken is not None and (taken.last_id, taken.last_fence) == (20000, 20000)


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the paths of a self-signed certificate for localhost and its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    cert, secret = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(cert), str(secret)


def test_tls(certificate: tuple[str, str], server: MariaDbServer) -> None:
    cert, key = certificate
    with pytest.raises(ConfigError, match="does not offer it"):
        opened(server.url(server.create_database()) + "?tls=require")
    with MariaDbServer(options=[f"--ssl-cert={cert}", f"--ssl-key={key}"]) as secure:
        url = secure.url(secure.create_database())
        for query, is_secure in (
            ("?tls=off", False),
            ("?tls=prefer", True),
            ("?tls=require", True),
            (f"?ca={cert}", None),
            ("?tls=verify", None),
        ):
            store = MySqlStore(parse_url(url + query, {}))
            if is_secure is None:
                # Made for localhost, and not for 127.0.0.1; or signed by nobody we know.
                with pytest.raises(ConfigError, match="certificate does not pass"):
                    store.open()
                continue
            store.open()
            with store.reading() as execute:
                assert bool(execute("SHOW STATUS LIKE 'Ssl_cipher'").fetchone()[1]) is is_secure
            store.close()
        store = MySqlStore(parse_url(url.replace("127.0.0.1", "localhost") + f"?ca={cert}", {}))
        store.open()
        assert store.leader().epoch == 0
        store.close()


# -- leadership


def test_two_who_take_the_lead_at_once_are_one(mysql_url: str) -> None:
    stores = [opened(mysql_url) for _ in range(4)]
    seen = stores[0].leader()
    threads = [in_thread(partial(store.take_leadership, seen, "o", "a", "u")) for store in stores]
    for thread, _ in threads:
        thread.join(30)
    taken = [outcome[0] for _, outcome in threads if outcome[0] is not None]
    assert [row.epoch for row in taken if isinstance(row, LeaderRow)] == [1] and len(taken) == 1
    with pytest.raises(EpochLost):
        stores[1].commit(Batch(2, 1, 0, 0))
    for store in stores:
        store.close()
