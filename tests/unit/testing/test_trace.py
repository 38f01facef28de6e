import gc
from collections.abc import Callable

from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from dsched.clock import Clock
from dsched.testing.trace import Trace
from dsched.testing.world import SimWorld, UnhandledError


class TraceTests(SynchronousTestCase):
    def test_digest_covers_events_and_steps(self) -> None:
        def digest(*items: str | int) -> str:
            trace = Trace(lambda: 1.5)
            for item in items:
                if isinstance(item, str):
                    trace.record(item, size=1)
                else:
                    trace.note_step(1.5, item)
            return trace.digest()

        self.assertEqual(digest("a", 1, "b"), digest("a", 1, "b"))
        self.assertEqual(len({digest("a", 1, "b"), digest("a", "b"), digest("a", "b", 1), digest("a", 2, "b")}), 4)

    def test_tail(self) -> None:
        trace = Trace(lambda: 2.0)
        for number in range(50):
            trace.record("event", number=number, name="x", data=b"\0")
        self.assertEqual(len(trace.tail()), 40)
        self.assertEqual(trace.tail(1), ["2.000000000 event number=49 name='x' data=b'\\x00'"])

    def test_objects_are_refused(self) -> None:
        trace = Trace(lambda: 0.0)
        self.assertRaises(TypeError, trace.record, "event", what=object())


class ErrorTests(SynchronousTestCase):
    log = Logger()

    def setUp(self) -> None:
        self.world = SimWorld(1)
        self.addCleanup(self.world.close)
        self.node = self.world.node("core")

    def test_an_exception_fails_the_run_and_tells_the_seed(self) -> None:
        self.world.trace.record("before")
        self.node.reactor.callLater(1, lambda: 1 / 0)
        error = self.assertRaises(UnhandledError, self.world.run_for, 5)
        self.assertIn("ZeroDivisionError", str(error))
        self.assertIn("seed 1, step 1, t=1.000000", error.__notes__[0])
        self.assertIn("before", error.__notes__[0])
        self.flushLoggedErrors(ZeroDivisionError)

    def test_a_logged_failure_fails_the_run(self) -> None:
        def handler() -> None:
            try:
                raise ValueError("x")
            except ValueError:
                self.log.failure("it failed")

        self.node.reactor.callLater(1, handler)
        self.assertRaises(UnhandledError, self.world.run_for, 5)
        self.flushLoggedErrors(ValueError)

    def test_a_deferred_that_nobody_handled_fails_the_run(self) -> None:
        self.node.reactor.callLater(1, lambda: fail(ValueError("lost")) and None)

        def run() -> None:
            self.world.run_for(5)
            self.world.check()

        self.assertRaises(UnhandledError, run)
        gc.collect()
        self.flushLoggedErrors(ValueError)

    def test_expected_failures_are_counted(self) -> None:
        self.world.errors.expect(ZeroDivisionError)
        self.node.reactor.callLater(1, lambda: 1 / 0)
        self.world.run_for(5)
        self.assertEqual(self.world.errors.expected_seen, 1)
        self.flushLoggedErrors(ZeroDivisionError)

    def test_code_of_a_crashed_node_does_not_count(self) -> None:
        def handler() -> None:
            self.node.crash()
            raise RuntimeError("runs on to its return")

        self.node.reactor.callLater(1, handler)
        self.world.run_for(5)
        self.flushLoggedErrors(RuntimeError)

    def test_closing_drops_suspended_code_in_silence(self) -> None:
        async def stubborn(sleep: Callable[[float], Deferred[None]]) -> None:
            try:
                await sleep(1e9)
            finally:
                await sleep(1)

        for crash in (False, True):
            world = SimWorld(1)
            node = world.node("core")
            node.start(lambda node: Deferred.fromCoroutine(stubborn(Clock(node.reactor).sleep)))
            world.run_for(10)
            if crash:
                node.crash()
            world.close()
