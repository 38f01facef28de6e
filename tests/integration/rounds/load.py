"""People who ask for work all the time, and ask again with the same key whenever they got no answer."""

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from dsched.client import Client
from dsched.errors import DschedError, NotLeader, StoreUnavailable, Unreachable

__all__ = ["Load"]

JOBS = ("in_reactor", "in_thread")
WORK_S = (0.5, 4.0)
REPEAT_S = 0.1


class Load(threading.Thread):
    """Keeps about `level` tasks open by bulk requests to whichever core answers, until `stop`.

    While `insists` is set it asks whatever is open already.

    `answered` maps each key to its run id; `unexpected` holds what no core should have answered.
    """

    def __init__(self, urls: Sequence[str], prefix: str, level: int, rng: random.Random) -> None:
        super().__init__(name=f"load-{prefix}", daemon=True)
        self.answered: dict[str, str] = {}
        self.shards: dict[str, int] = {}
        self.repeated = 0
        self.unexpected: list[str] = []
        self.is_asking = threading.Event()
        self.insists = False
        self._clients = [Client(url, timeout_s=5.0) for url in urls]
        self._prefix = prefix
        self._level = level
        self._rng = rng
        self._stopping = threading.Event()
        self._bodies: list[list[dict[str, Any]]] = []

    def run(self) -> None:
        """Ask until told to stop; a request that is under way is asked to its end."""
        try:
            while not self._stopping.is_set():
                if not self.insists and self._is_full():
                    time.sleep(0.05)
                else:
                    self._ask(self._new_body())
        except DschedError as error:
            self.unexpected.append(f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """Wait for the last answer."""
        self._stopping.set()
        self.join()

    def ask_again(self) -> None:
        """Repeat some requests that were answered: the same key gives the same run."""
        for body in self._rng.sample(self._bodies, min(2, len(self._bodies))):
            self._ask(body)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def _is_full(self) -> bool:
        try:
            return bool(self._clients[0].pending()["pending"] >= self._level)
        except (Unreachable, NotLeader, StoreUnavailable):
            self._turn()
            return False

    def _new_body(self) -> list[dict[str, Any]]:
        body = []
        for _ in range(self._rng.choice((1, 10, 40))):
            shards = self._rng.choice((1, 1, 1, 4))
            params = {"work_s": round(self._rng.uniform(*WORK_S), 3)}
            key = f"{self._prefix}-{len(self.shards)}"
            self.shards[key] = shards
            body.append({"job": self._rng.choice(JOBS), "params": params, "sharding_total": shards, "key": key})
        self._bodies.append(body)
        return body

    def _ask(self, body: list[dict[str, Any]]) -> None:
        while True:
            self.is_asking.set()
            try:
                ids = self._clients[0].create_runs(body)
                break
            except (Unreachable, NotLeader, StoreUnavailable):
                self.repeated += 1
                self._turn()
                time.sleep(REPEAT_S)
            finally:
                self.is_asking.clear()
        for run, run_id in zip(body, ids, strict=True):
            if self.answered.setdefault(run["key"], run_id) != run_id:
                self.unexpected.append(f"key {run['key']} gave {self.answered[run['key']]} and then {run_id}")

    def _turn(self) -> None:
        self._clients.append(self._clients.pop(0))
