"""Slots with real threads: batches, slow ones among quick ones, timeouts, cancels, exit."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from dsched.clock import Clock
from dsched.jobs import DoNotRetry, JobContext, declaration_of, job
from dsched.net.protocol import FramedProtocol
from dsched.wire.framing import FrameDecoder
from dsched.wire.messages import (
    FEATURES,
    Cancel,
    Heartbeat,
    MessageType,
    RegisterAck,
    Request,
    Response,
    ResumeAck,
    frame,
)
from dsched.worker.attempt import Attempt
from dsched.worker.handlers import HandlerRegistry
from dsched.worker.session import Session
from dsched.worker.settings import WorkerSettings
from dsched.worker.slots import Slots

PATIENCE_S = 60.0


def registry(**functions: Callable[[JobContext], Any]) -> HandlerRegistry:
    declarations = [declaration_of(job(name)(function)) for name, function in functions.items()]
    return HandlerRegistry(declaration for declaration in declarations if declaration)


def request(item: int, handler: str, attempt: int = 1, timeout: int = 60, params: str = "null") -> Request:
    return Request(
        job_id=item + 1,
        job_name="job",
        params=params,
        sharding_total=1,
        sharding_item=0,
        timeout=timeout,
        task_id=f"t{item}",
        retry_count=0,
        preload_keys=[],
        handler=handler,
        attempt=attempt,
        fence=1,
        epoch=1,
        run_id="r",
    )


class Report:
    """Collects what slots report, and lets a test wait for it."""

    def __init__(self) -> None:
        self.results: list[Response] = []
        self.started: list[Attempt] = []
        self.released: list[Response] = []
        self._waiters: list[tuple[Callable[[], bool], Deferred[None]]] = []

    def on_results(self, responses: list[Response]) -> None:
        self.results.extend(responses)
        self._check()

    def on_released(self, responses: list[Response]) -> None:
        self.released.extend(responses)
        self._check()

    def on_started(self, began: list[Attempt]) -> None:
        self.started.extend(began)
        self._check()

    def until(self, condition: Callable[[], bool]) -> Deferred[None]:
        waiter: Deferred[None] = Deferred()
        self._waiters.append((condition, waiter))
        self._check()
        return waiter.addTimeout(PATIENCE_S, reactor)

    def count(self, number: int) -> Deferred[None]:
        return self.until(lambda: len(self.results) >= number)

    def _check(self) -> None:
        for entry in list(self._waiters):
            condition, waiter = entry
            if condition():
                self._waiters.remove(entry)
                waiter.callback(None)

    def ends(self) -> dict[str, str | None]:
        return {result.task_id: result.outcome for result in self.results}


class ThreadCase(TestCase):
    """Slots whose handlers may block on `release`, an event that is set at the end."""

    def setUp(self) -> None:
        self.clock = Clock(reactor)
        self.report = Report()
        self.release = threading.Event()
        self.calls: list[str] = []
        self.addCleanup(self.release.set)

    def make(self, size: int, **more: Callable[[JobContext], Any]) -> Slots:
        def quick(ctx: JobContext) -> Any:
            self.calls.append(ctx.task_id)
            return ctx.params

        def block(ctx: JobContext) -> Any:
            self.release.wait(PATIENCE_S)
            return ctx.cancelled

        slots = Slots(
            size,
            "w",
            registry(quick=quick, block=block, **more),
            self.clock,
            on_started=self.report.on_started,
            on_results=self.report.on_results,
            on_released=self.report.on_released,
        )
        self.slots = slots
        self.addCleanup(self.finish)
        return slots

    async def finish(self) -> None:
        self.release.set()
        await self.slots.when_idle().addTimeout(PATIENCE_S, reactor)
        self.assertEqual(self.slots.busy, 0)
        self.slots.stop()

    def give(self, *requests: Request) -> None:
        for each in requests:
            self.assertIsNone(self.slots.take(each))
        self.slots.run_waiting()


class Threads(ThreadCase):
    """`def` handlers."""

    async def test_many_quick_ones_each_run_once_with_their_own_result(self) -> None:
        self.make(4)
        for first in range(0, 2000, 400):
            self.give(*(request(n, "quick", params=str(n)) for n in range(first, first + 400)))
            await self.report.count(first + 400)
        self.assertEqual(sorted(self.calls), sorted(f"t{n}" for n in range(2000)))
        self.assertEqual(
            {result.task_id: bytes(result.data) for result in self.report.results},
            {f"t{n}": str(n).encode() for n in range(2000)},
        )
        self.assertEqual(len(self.report.results), 2000)

    async def test_no_more_than_the_slots_run_at_the_same_time(self) -> None:
        running: set[int] = set()
        most = 0
        lock = threading.Lock()

        def busy(ctx: JobContext) -> None:
            nonlocal most
            with lock:
                running.add(threading.get_ident())
                most = max(most, len(running))
            self.release.wait(0.002)
            with lock:
                running.discard(threading.get_ident())

        self.make(3, busy=busy)
        self.give(*(request(n, "busy") for n in range(60)))
        await self.report.count(60)
        self.assertLessEqual(most, 3)

    async def test_coroutines_and_threads_share_the_slots(self) -> None:
        gate: Deferred[None] = Deferred()

        async def wait(ctx: JobContext) -> None:
            await gate

        self.make(2, wait=wait)
        self.give(request(0, "wait"), request(1, "block"), request(2, "quick"))
        await self.report.until(lambda: len(self.report.started) == 2)
        self.assertEqual((self.slots.busy, self.calls), (2, []))
        gate.callback(None)
        await self.report.until(lambda: "t2" in self.report.ends())
        self.assertNotIn("t1", self.report.ends())

    async def test_a_slow_one_does_not_hold_up_what_was_given_with_it(self) -> None:
        def some(ctx: JobContext) -> None:
            if ctx.params:
                self.release.wait(PATIENCE_S)

        self.make(2, some=some)
        # Now it counts as quick, so the next ones go to a thread together.
        for first in range(0, 100, 20):
            self.give(*(request(n, "some") for n in range(first, first + 20)))
            await self.report.count(first + 20)
        self.give(request(100, "some", params="true"), *(request(n, "some") for n in range(101, 150)))
        await self.report.count(149)
        self.assertNotIn("t100", self.report.ends())
        self.assertIn("t100", [began.request.task_id for began in self.report.started])

    async def test_what_a_thread_was_given_and_has_not_begun_can_be_cancelled_or_handed_back(self) -> None:
        self.make(1)
        self.give(*(request(n, "quick") for n in range(50)))
        await self.report.count(50)
        self.give(request(50, "block"))
        await self.report.until(lambda: len(self.report.started) == 1)
        self.give(*(request(n, "quick") for n in range(51, 60)))
        self.slots.cancel("t52", 1, "by hand")
        self.slots.hand_back("draining")
        ends = self.report.ends()
        self.assertEqual(ends["t52"], "CANCELLED")
        self.assertEqual([ends[f"t{n}"] for n in (51, 53, 59)], ["REJECTED"] * 3)
        self.assertEqual(len(self.calls), 50)

    async def test_whatever_a_handler_raises_is_the_end_of_its_attempt_only(self) -> None:
        def leave(ctx: JobContext) -> None:
            raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "never": DoNotRetry}[ctx.params]("x")

        self.make(1, leave=leave)
        self.give(
            request(0, "leave", params='"exit"'),
            request(1, "leave", params='"interrupt"'),
            request(2, "leave", params='"never"'),
            request(3, "quick", params="{"),
            request(4, "quick"),
        )
        await self.report.count(5)
        self.assertEqual(list(self.report.ends().values()), ["ERROR"] * 4 + ["SUCCESS"])
        self.assertEqual([result.retryable for result in self.report.results], [True, True, False, False, True])

    async def test_a_thread_that_outlives_its_timeout_keeps_its_slot_and_its_late_value_is_dropped(self) -> None:
        self.make(2)
        self.give(request(0, "block", timeout=1), request(1, "block"))
        await self.report.count(1)
        [result] = self.report.results
        self.assertEqual((result.task_id, result.outcome), ("t0", "TIMEOUT"))
        self.assertGreaterEqual(result.duration_ms or 0, 1000)
        self.assertEqual(self.slots.busy, 2)
        self.give(request(0, "quick", attempt=2), request(2, "quick"))
        self.assertEqual(self.calls, [])
        self.release.set()
        await self.report.count(4)
        await self.slots.when_idle()
        self.assertEqual(self.report.ends(), {"t0": "SUCCESS", "t1": "SUCCESS", "t2": "SUCCESS"})
        self.assertEqual(self.slots.attempts, {})

    async def test_a_thread_is_told_of_a_cancel_and_ends_as_cancelled(self) -> None:
        def polite(ctx: JobContext) -> None:
            while True:
                ctx.check_cancelled()

        self.make(1, polite=polite)
        self.give(request(0, "polite"))
        await self.report.until(lambda: bool(self.report.started))
        self.slots.cancel("t0", 1, "by hand")
        await self.report.count(1)
        [result] = self.report.results
        self.assertEqual((result.outcome, result.message), ("CANCELLED", "cancelled: by hand"))

    async def test_a_deep_result_is_refused_in_its_thread(self) -> None:
        def deep(ctx: JobContext) -> Any:
            value: Any = []
            for _ in range(100_000):
                value = [value]
            return value

        self.make(1, deep=deep)
        self.give(request(0, "deep"), request(1, "quick"))
        await self.report.count(2)
        self.assertEqual(self.report.ends(), {"t0": "ERROR", "t1": "SUCCESS"})


class Hogs(TestCase):
    """Jobs that take all slots and all of the interpreter cannot delay a beat (case B065)."""

    async def test_a_ping_is_answered_while_every_slot_computes(self) -> None:
        begun = threading.Semaphore(0)

        def hog(ctx: JobContext) -> None:
            begun.release()
            while not ctx.cancelled:
                pass

        clock = Clock(reactor)
        heard: list[int] = []
        pongs: list[Deferred[None]] = []

        class Peer:
            is_open = writable = True

            def send(self, data: bytes) -> None:
                heard.extend(received.type for received in FrameDecoder().feed(data))
                if pongs and MessageType.HEARTBEAT in heard:
                    heard.remove(MessageType.HEARTBEAT)
                    pongs.pop().callback(None)

        settings = WorkerSettings((("core", 1),), "w", slots=2)
        session = Session(settings, registry(hog=hog), clock, "i")
        session.start()
        self.addCleanup(session.stop)
        peer: Any = Peer()
        session.connected(peer)

        def say(*messages: Any) -> None:
            protocol.dataReceived(b"".join(map(frame, messages)))

        class Core:
            def frames_received(self, _: Any, frames: list[Any]) -> None:
                session.frames_received(peer, frames)

        core: Any = Core()
        protocol = FramedProtocol(core, clock)
        say(RegisterAck("w", list(FEATURES)), ResumeAck([], 1))
        say(request(0, "hog", timeout=0), request(1, "hog", timeout=0))
        for _ in range(2):
            self.assertTrue(begun.acquire(timeout=PATIENCE_S))
        for _ in range(5):
            pong: Deferred[None] = Deferred()
            pongs.append(pong)
            say(Heartbeat(ping=True))
            await pong.addTimeout(PATIENCE_S, reactor)
        # The reactor turns too, not only this call.
        await clock.sleep(0.0)
        self.assertEqual(session.slots.busy, 2)
        self.assertNotIn(MessageType.RESPONSE, heard)
        say(Cancel("t0", 1), Cancel("t1", 1))
        await session.slots.when_idle().addTimeout(PATIENCE_S, reactor)
        self.assertEqual(heard.count(MessageType.RESPONSE), 2)
        session.disconnected(peer, Exception("end"))


class Leaving(TestCase):
    """The end of the process."""

    def test_a_hung_handler_does_not_hold_up_the_exit(self) -> None:
        program = """
            import threading
            from twisted.internet import reactor
            from dsched.clock import Clock
            from dsched.jobs import declaration_of, job
            from dsched.wire.messages import Request
            from dsched.worker.handlers import HandlerRegistry
            from dsched.worker.slots import Slots

            @job("hang")
            def hang(ctx):
                reactor.callFromThread(reactor.stop)
                threading.Event().wait()

            slots = Slots(1, "w", HandlerRegistry([declaration_of(hang)]), Clock(reactor),
                          on_started=lambda began: None, on_results=lambda results: None,
                          on_released=lambda released: None)
            slots.take(Request(1, "j", "null", 1, 0, 30, "t", 0, [], "hang", 1, 1, 1, "r"))
            reactor.callWhenRunning(slots.run_waiting)
            reactor.run()
            slots.stop()
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 0)
