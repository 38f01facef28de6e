"""Somebody else in the same database, who locks rows against the order in which cores do."""

import random
import threading
import time
from contextlib import closing
from typing import Any

from dsched.store.mysql.address import parse_url
from dsched.store.mysql.connection import connect
from dsched.store.mysql.faults import DRIVER_ERRORS, code_of
from dsched.testing.mariadb import MariaDbServer

__all__ = ["LockThief"]

DEADLOCK, LOCK_WAIT = 1213, 1205
_WEIGHT = 2000
"""Rows that the thief has changed when it meets a core: the server rolls back the smaller of the two."""
_POLL_S = 0.02
_LOCK_WAIT_S = 2.3
"""Just longer than a core waits for a lock."""
_WAITS = 0.04
"""So many of the meetings are waits for a lock, which take a hundred times as long."""
_VICTIMS = (
    "SELECT job_id FROM schedule_job WHERE status = 'RUNNING' FOR UPDATE",
    "SELECT run_id FROM run WHERE status = 'RUNNING' FOR UPDATE",
    "UPDATE schedule_job SET priority = priority WHERE status IN ('RUNNING', 'DISPATCHED')",
)


class LockThief(threading.Thread):
    """Makes deadlocks and waits of about `share` of the transactions of a database's cores, until `stop`.

    `transactions` is how many batches cores have committed since it began; `deadlocks` and `lock_waits` are errors
    that they got: all that the server counted but for the thief's own.
    """

    def __init__(self, server: MariaDbServer, database: str, share: float, rng: random.Random) -> None:
        super().__init__(name="lock-thief", daemon=True)
        self.transactions = 0
        self.deadlocks = 0
        self.lock_waits = 0
        self.error: Exception | None = None
        self._settings = parse_url(server.url(database), {})
        self._share = share
        self._rng = rng
        self._stopping = threading.Event()
        self._hold_s = 0.0
        self._own = {DEADLOCK: 0, LOCK_WAIT: 0}
        self._before = (0, 0)
        self._leader = (0, 0)

    def hold(self, hold_s: float) -> None:
        """Keep the locks for so long the next time."""
        self._hold_s = hold_s

    def stop(self) -> None:
        """Wait until all locks are gone; raises what went wrong."""
        self._stopping.set()
        self.join()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Watch what the cores do, and be in their way whenever too few of their transactions have failed."""
        try:
            with (
                closing(connect(self._settings, timeout_s=60.0)) as thief,
                closing(connect(self._settings, timeout_s=60.0)) as watch,
            ):
                watch.autocommit(True)
                self._prepare(thief)
                self._before = self._failures(watch)
                while not self._stopping.is_set():
                    self._count(watch)
                    if self._hold_s or self.deadlocks + self.lock_waits < self._share * self.transactions:
                        self._meet(thief)
                    else:
                        time.sleep(_POLL_S)
                self._count(watch)
        except Exception as error:
            self.error = error

    def _prepare(self, thief: Any) -> None:
        cursor = thief.cursor()
        cursor.execute("CREATE TABLE IF NOT EXISTS thief (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
        cursor.execute(f"INSERT IGNORE INTO thief SELECT seq, 0 FROM seq_1_to_{_WEIGHT}")
        thief.commit()

    def _meet(self, thief: Any) -> None:
        hold_s, self._hold_s = self._hold_s, 0.0
        cursor = thief.cursor()
        level = self._rng.choice(("READ COMMITTED", "REPEATABLE READ"))
        try:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            cursor.execute("UPDATE thief SET n = n + 1")
            cursor.execute(self._rng.choice(_VICTIMS))
            if hold_s or self._rng.random() < _WAITS:
                self._stopping.wait(hold_s or _LOCK_WAIT_S)
            else:
                # Until a core has its leader row and waits for what is locked here.
                time.sleep(self._rng.uniform(0.01, 0.06))
                cursor.execute("SELECT epoch FROM leader FOR UPDATE")
        except DRIVER_ERRORS as error:
            if code_of(error) not in self._own:
                raise
            self._own[code_of(error)] += 1
        finally:
            thief.rollback()

    def _count(self, watch: Any) -> None:
        deadlocks, waits = self._failures(watch)
        self.deadlocks = deadlocks - self._before[0] - self._own[DEADLOCK]
        self.lock_waits = waits - self._before[1] - self._own[LOCK_WAIT]
        cursor = watch.cursor()
        cursor.execute("SELECT epoch, batch FROM leader")
        epoch, batch = cursor.fetchone()
        last_epoch, last_batch = self._leader
        if last_epoch:
            self.transactions += batch - last_batch if epoch == last_epoch else batch
        self._leader = (epoch, batch)

    def _failures(self, watch: Any) -> tuple[int, int]:
        cursor = watch.cursor()
        names = "('lock_deadlocks', 'lock_timeouts')"
        cursor.execute(f"SELECT name, count FROM information_schema.innodb_metrics WHERE name IN {names}")
        counts = dict(cursor.fetchall())
        return int(counts["lock_deadlocks"]), int(counts["lock_timeouts"])
