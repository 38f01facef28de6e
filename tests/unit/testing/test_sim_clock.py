import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from dsched.clock import Clock
from dsched.testing.sim_clock import EPOCH_S, Livelock, SimReactor, WallClock
from dsched.testing.sim_node import Life, SimNode
from dsched.testing.trace import Trace


def reactor_for(seed: int = 1, **options: Any) -> SimReactor:
    return SimReactor(random.Random(seed), **options)


def node_of(reactor: SimReactor, name: str = "a", **options: Any) -> SimNode:
    return SimNode(reactor, Trace(reactor.seconds), name, "10.0.0.2", **options)


class SimReactorTests(SynchronousTestCase):
    def test_interfaces(self) -> None:
        reactor = reactor_for()
        verifyObject(IReactorTime, reactor)
        verifyObject(IReactorTime, node_of(reactor).reactor)
        verifyObject(IDelayedCall, reactor.callLater(1, list))

    def test_a_timer_that_arms_another_sees_its_own_deadline(self) -> None:
        reactor = reactor_for()
        fired: list[float] = []

        def tick() -> None:
            fired.append(reactor.seconds())
            reactor.callLater(1, tick)

        reactor.callLater(1, tick)
        reactor.run_for(3.5)
        self.assertEqual(fired, [1.0, 2.0, 3.0])
        self.assertEqual(reactor.seconds(), 3.5)

    def test_ties_are_shuffled_by_the_seed(self) -> None:
        def order(seed: int, **options: Any) -> list[Any]:
            reactor = reactor_for(seed, **options)
            seen: list[Any] = []
            for number in range(8):
                reactor.callLater(1, seen.append, number)
            reactor.run_for(1)
            return seen

        self.assertEqual(order(1), order(1))
        self.assertGreater(len({tuple(order(seed)) for seed in range(20)}), 15)
        self.assertEqual(order(1, shuffle_ties=False), list(range(8)))

    def test_calls_move_and_are_taken_back(self) -> None:
        reactor = reactor_for()
        seen: list[Any] = []
        later = reactor.callLater(1, seen.append, "later")
        later.delay(4)
        sooner = reactor.callLater(9, seen.append, "sooner")
        sooner.reset(2)
        gone = reactor.callLater(1, seen.append, "gone")
        gone.cancel()
        self.assertEqual(reactor.getDelayedCalls(), [sooner, later])
        reactor.run_for(10)
        self.assertEqual(seen, ["sooner", "later"])
        self.assertRaises(AlreadyCalled, later.cancel)
        self.assertRaises(AlreadyCancelled, gone.reset, 1)

    def test_many_cancelled_calls_are_swept(self) -> None:
        reactor = reactor_for()
        seen: list[Any] = []
        for number in range(5_000):
            call = reactor.callLater(60, seen.append, number)
            if number % 1_000:
                call.cancel()
        self.assertLess(len(reactor._heap), 2_500)
        reactor.run_for(60)
        self.assertEqual(sorted(seen), [0, 1_000, 2_000, 3_000, 4_000])

    def test_calls_from_threads_come_next_and_in_order(self) -> None:
        reactor = reactor_for()
        seen: list[Any] = []
        for number in range(5):
            reactor.callLater(0, seen.append, "timer")
            reactor.callFromThread(seen.append, number)
        reactor.run_for(0)
        self.assertEqual(seen[:5], [0, 1, 2, 3, 4])

    def test_advance_to_next_goes_no_further(self) -> None:
        reactor = reactor_for()
        seen: list[Any] = []
        for delay in (1, 1, 2):
            reactor.callLater(delay, seen.append, delay)
        self.assertTrue(reactor.advance_to_next())
        self.assertEqual((seen, reactor.seconds()), ([1, 1], 1.0))
        self.assertTrue(reactor.advance_to_next())
        self.assertFalse(reactor.advance_to_next())

    def test_run_until(self) -> None:
        reactor = reactor_for()
        seen: list[Any] = []
        reactor.callLater(5, seen.append, 1)
        self.assertTrue(reactor.run_until(lambda: bool(seen), 60))
        self.assertEqual(reactor.seconds(), 5.0)
        self.assertFalse(reactor.run_until(lambda: len(seen) > 1, 60))
        self.assertEqual(reactor.seconds(), 65.0)

    def test_livelock_names_the_busiest(self) -> None:
        reactor = reactor_for(step_limit=5_000)
        clock = Clock(reactor)

        def spin_for_ever() -> None:
            clock.call_later(0, spin_for_ever)

        spin_for_ever()
        error = self.assertRaises(Livelock, reactor.run_for, 1)
        self.assertIn("spin_for_ever", str(error))

    def test_an_exception_is_logged_and_time_goes_on(self) -> None:
        reactor = reactor_for()
        seen: list[Any] = []
        reactor.callLater(1, lambda: 1 / 0)
        reactor.callLater(2, seen.append, 2)
        reactor.run_for(3)
        self.assertEqual(seen, [2])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_hooks_run_after_each_step_and_end_the_run(self) -> None:
        reactor = reactor_for()
        steps: list[float] = []
        reactor.after_step.append(lambda: steps.append(reactor.seconds()))
        reactor.callLater(1, int)
        reactor.callLater(2, int)
        reactor.run_for(3)
        self.assertEqual(steps, [1.0, 2.0])

        def broken() -> None:
            raise AssertionError("I7")

        reactor.after_step.append(broken)
        reactor.callLater(1, int)
        self.assertRaises(AssertionError, reactor.run_for, 3)

    def test_simulated_code_cannot_advance_time(self) -> None:
        reactor = reactor_for()
        reactor.callLater(1, reactor.run_for, 1)
        reactor.run_for(2)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_looping_call_over_a_day(self) -> None:
        reactor = reactor_for()
        ticks: list[float] = []
        loop = LoopingCall(lambda: ticks.append(reactor.seconds()))
        loop.clock = reactor
        loop.start(30, now=False)
        reactor.run_for(86_400)
        self.assertEqual(ticks, [30.0 * number for number in range(1, 2_881)])
        loop.stop()
        self.assertEqual(reactor.getDelayedCalls(), [])

    def test_clock_wrapper_and_its_loops(self) -> None:
        reactor = reactor_for()
        node = node_of(reactor)
        clock = Clock(node.reactor, wall=node.wall.seconds)
        ticks: list[float] = []

        def tick() -> None:
            ticks.append(clock.monotonic())
            if len(ticks) == 2:
                raise ValueError("one bad tick")

        clock.every(30, tick, name="beat")
        reactor.run_for(3_600)
        self.assertEqual(len(ticks), 120)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        clock.stop()
        self.assertEqual(node.reactor.getDelayedCalls(), [])


class WallClockTests(SynchronousTestCase):
    def test_epoch_skew_step_and_drift(self) -> None:
        reactor = reactor_for()
        exact = WallClock(reactor.seconds)
        early = WallClock(reactor.seconds, skew_ms=-5_000)
        fast = WallClock(reactor.seconds, drift_ppm=200)
        reactor.run_for(10_000)
        self.assertEqual(exact.seconds(), EPOCH_S + 10_000)
        self.assertEqual(early.seconds(), EPOCH_S + 9_995)
        self.assertAlmostEqual(fast.seconds() - exact.seconds(), 2.0, places=5)
        exact.step(-3_600_000)
        self.assertEqual(exact.seconds(), EPOCH_S + 6_400)
        self.assertEqual(reactor.seconds(), 10_000.0)


class SimNodeTests(SynchronousTestCase):
    def test_a_crash_drops_timers_and_runs_no_clean_up(self) -> None:
        reactor = reactor_for()
        node = node_of(reactor)
        seen: list[Any] = []

        async def work(clock: Clock) -> None:
            try:
                await clock.sleep(5)
                seen.append("done")
            finally:
                seen.append("clean-up")

        def build(node: SimNode) -> Clock:
            clock = Clock(node.reactor)
            Deferred.fromCoroutine(work(clock))
            return clock

        node.start(build)
        reactor.callLater(1, node.crash)
        reactor.run_for(60)
        self.assertEqual(seen, [])
        self.assertIsNone(node.app)
        self.assertFalse(node.alive)

    def test_code_on_the_stack_of_a_crash_reaches_nothing(self) -> None:
        reactor = reactor_for()
        node = node_of(reactor)
        seen: list[Any] = []

        def handler(life: Life) -> None:
            node.crash()
            call = life.callLater(1, seen.append, "late")
            life.callFromThread(seen.append, "late")
            call.reset(2)
            call.cancel()

        node.reactor.callLater(1, handler, node.reactor)
        reactor.run_for(60)
        self.assertEqual(seen, [])
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_a_new_life_has_nothing_of_the_old(self) -> None:
        reactor = reactor_for()
        node = node_of(reactor)
        seen: list[Any] = []
        node.start(lambda node: node.reactor.callLater(10, seen.append, "old"))
        reactor.run_for(1)
        node.crash()
        node.start(lambda node: node.reactor.callLater(10, seen.append, "new"))
        reactor.run_for(60)
        self.assertEqual(seen, ["new"])
        self.assertEqual(node.lives, 2)

    def test_a_paused_node_runs_late(self) -> None:
        reactor = reactor_for()
        node, other = node_of(reactor), node_of(reactor, "b")
        seen: list[Any] = []
        for delay in (3, 1, 2, 70):
            node.reactor.callLater(delay, lambda delay=delay: seen.append((delay, reactor.seconds())))
        other.reactor.callLater(2, seen.append, "other")
        node.pause(60)
        reactor.run_for(59)
        self.assertEqual(seen, ["other"])
        reactor.run_for(60)
        self.assertEqual(seen, ["other", (1, 60.0), (2, 60.0), (3, 60.0), (70, 70.0)])

    def test_a_resumed_node_may_see_its_network_or_its_timers_first(self) -> None:
        orders = set()
        for seed in range(40):
            reactor = reactor_for(seed)
            node = node_of(reactor)
            seen: list[Any] = []
            node.reactor.callLater(1, seen.append, "timer")
            node.reactor.call_io(2, seen.append, "frame")
            node.reactor.callLater(3, seen.append, "timer")
            node.pause(10)
            reactor.run_for(10)
            orders.add(tuple(seen))
        self.assertEqual(
            orders, {("timer", "frame", "timer"), ("frame", "timer", "timer"), ("timer", "timer", "frame")}
        )

    def test_a_paused_node_can_crash(self) -> None:
        reactor = reactor_for()
        node = node_of(reactor)
        seen: list[Any] = []
        node.reactor.callLater(1, seen.append, 1)
        node.pause(5)
        reactor.run_for(2)
        node.crash()
        node.start(lambda node: node.reactor.callLater(1, seen.append, 2))
        reactor.run_for(1.5)
        self.assertEqual(seen, [2])
