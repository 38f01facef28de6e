"""The core deletes old history by itself, in portions, while it leads."""

from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock as TwistedClock
from twisted.trial.unittest import SynchronousTestCase

from dsched.clock import Clock
from dsched.core.pruning import DAY_MS, FIRST_S, PASS_S, Pruner
from dsched.errors import EpochLost, StoreUnavailable
from dsched.store.interface import Pruned

NOW_MS = 500 * DAY_MS


class AtOnce:
    """Threads that are none."""

    def run(self, function: Any, *args: Any) -> Deferred[Any]:
        return maybeDeferred(function, *args)


class Recorder:
    """Has `left` portions of runs; each takes `takes_s`."""

    def __init__(self, reactor: TwistedClock) -> None:
        self.reactor = reactor
        self.left = 3
        self.takes_s = 0.0
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None

    def prune(self, before_ms: int, job: str | None, limit: int, after: str | None, *, epoch: int) -> Pruned:
        self.calls.append(("prune", before_ms, job, limit, after, epoch))
        if self.error is not None:
            raise self.error
        self.reactor.rightNow += self.takes_s
        self.left -= 1
        return Pruned(limit, limit, str(self.left) if self.left > 0 else None)

    def prune_rest(self, before_ms: int, rollups_before_ms: int, limit: int, *, epoch: int) -> Pruned:
        self.calls.append(("rest", before_ms, rollups_before_ms, epoch))
        return Pruned(0, 1, None)


class PrunerTests(SynchronousTestCase):
    """One pass, the next one, and what ends it."""

    def setUp(self) -> None:
        self.reactor = TwistedClock()
        self.clock = Clock(self.reactor, lambda: NOW_MS / 1000)
        self.store = Recorder(self.reactor)

    def start(self, days: int = 30) -> Pruner:
        store: Any = self.store
        threads: Any = AtOnce()
        return Pruner(store, threads, self.clock, 7, days)

    def pass_time(self, seconds: float) -> None:
        self.reactor.pump([0.05] * round(seconds / 0.05))

    def test_a_pass_goes_to_the_end_and_comes_again(self) -> None:
        self.start()
        self.assertEqual(self.store.calls, [])
        self.pass_time(FIRST_S + 5)
        before = NOW_MS - 30 * DAY_MS
        self.assertEqual([call[4] for call in self.store.calls[:3]], [None, "2", "1"])
        self.assertEqual({call[1] for call in self.store.calls}, {before})
        self.assertEqual(self.store.calls[3:], [("rest", before, NOW_MS - 400 * DAY_MS, 7)])
        self.pass_time(PASS_S)
        self.assertEqual(len(self.store.calls), 6)

    def test_counters_are_kept_as_long_as_history(self) -> None:
        self.start(days=450)
        self.pass_time(FIRST_S + 5)
        self.assertEqual(self.store.calls[-1][2], NOW_MS - 450 * DAY_MS)

    def test_slow_portions_get_smaller_and_pauses_longer(self) -> None:
        self.store.left = 1000
        self.store.takes_s = 1.0
        self.start()
        self.pass_time(FIRST_S + 0.1)
        self.assertEqual(len(self.store.calls), 1)
        self.pass_time(4.5)
        self.assertEqual(len(self.store.calls), 1)
        self.pass_time(60)
        self.assertEqual([call[3] for call in self.store.calls[:5]], [100, 50, 25, 12, 10])

    def test_quick_portions_get_larger(self) -> None:
        self.store.left = 1000
        self.start()
        self.pass_time(FIRST_S + 10)
        sizes = [call[3] for call in self.store.calls]
        self.assertEqual(sizes, sorted(sizes))
        self.assertEqual(max(sizes), 5000)

    def test_after_the_end_of_a_term_nothing_more_goes(self) -> None:
        self.store.left = 1000
        pruner = self.start()
        self.pass_time(FIRST_S + 1)
        pruner.stop()
        done = len(self.store.calls)
        self.pass_time(PASS_S * 2)
        self.assertEqual(len(self.store.calls), done)

    def test_who_does_not_lead_and_a_store_that_is_away_end_a_pass(self) -> None:
        for error in (EpochLost("epoch 7 does not lead"), StoreUnavailable("away")):
            self.store.error = error
            pruner = self.start()
            self.pass_time(FIRST_S + 1)
            self.assertEqual(len(self.store.calls), 1)
            self.pass_time(PASS_S)
            self.assertEqual(len(self.store.calls), 2)
            pruner.stop()
            self.store.calls.clear()
        self.assertEqual(self.flushLoggedErrors(), [])
