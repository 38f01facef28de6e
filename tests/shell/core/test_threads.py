"""The pools of threads for the store, with a real reactor behind them."""

import threading
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, DeferredList
from twisted.trial.unittest import TestCase

from dsched.core.threads import PoolThreads

LIMIT_S = 30


class PoolThreadsTests(TestCase):
    """What the core relies on."""

    timeout = LIMIT_S

    def pool(self, size: int) -> PoolThreads:
        """Return a pool that is stopped after the test."""
        threads = PoolThreads(reactor, "test", size)
        threads.start()
        self.addCleanup(threads.stop)
        return threads

    async def test_answers_and_errors_come_back(self) -> None:
        threads = self.pool(1)
        self.assertEqual(await threads.run(divmod, 7, 2), (3, 1))
        with self.assertRaises(ZeroDivisionError):
            await threads.run(divmod, 7, 0)

    async def test_one_thread_keeps_the_order(self) -> None:
        threads = self.pool(1)
        seen: list[int] = []
        await DeferredList([threads.run(seen.append, number) for number in range(50)])
        self.assertEqual(seen, list(range(50)))

    async def test_one_that_hangs_holds_up_nobody_else(self) -> None:
        """Case B087."""
        threads = self.pool(3)
        free = threading.Event()
        stuck = threads.run(free.wait, LIMIT_S)
        answers: Any = await DeferredList([threads.run(abs, -number) for number in range(100)])
        self.assertEqual([answer for _, answer in answers], list(range(100)))
        free.set()
        self.assertTrue(await stuck)

    async def test_what_is_given_up_while_it_waits_is_never_begun(self) -> None:
        threads = self.pool(1)
        free = threading.Event()
        begun: list[str] = []
        stuck = threads.run(free.wait, LIMIT_S)
        waiting = [threads.run(begun.append, "given up") for _ in range(3)]
        last = threads.run(begun.append, "wanted")
        for each in waiting:
            each.cancel()
            with self.assertRaises(CancelledError):
                await each
        free.set()
        await stuck
        await last
        self.assertEqual(begun, ["wanted"])
