from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dsched.core.threads import Threads
from dsched.testing.sim_node import SimNode
from dsched.testing.sim_threads import Crash, FailAfter, FailBefore, Hang, SimThreads, ThreadFault
from dsched.testing.world import SimWorld


class SimThreadsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.world = SimWorld(3)
        self.addCleanup(self.world.close)
        self.node = self.world.node("core")
        self.threads = self.world.threads(self.node, "store")
        self.threads.start()
        self.rows: list[int] = []

    def write(self, row: int) -> int:
        self.rows.append(row)
        return row

    def fault(self, fault: ThreadFault, at: int = 1) -> None:
        self.threads.hooks.append(lambda call: fault if call.number == at else None)

    def test_it_runs_at_once_and_answers_later(self) -> None:
        done = self.threads.run(self.write, 1)
        self.assertEqual(self.rows, [1])
        self.assertNoResult(done)
        self.world.run_for(1)
        self.assertEqual(self.successResultOf(done), 1)

    def test_an_exception_is_the_callers(self) -> None:
        done = self.threads.run(int, "x")
        self.world.run_for(1)
        self.failureResultOf(done, ValueError)

    def test_one_thread_runs_one_call_after_another(self) -> None:
        ends: list[Any] = []
        for number in range(5):
            self.threads.run(self.write, number).addCallback(ends.append)
        self.assertEqual(self.rows, [0])
        self.world.run_for(1)
        self.assertEqual((self.rows, ends), ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4]))

    def test_several_threads_answer_in_any_order(self) -> None:
        pool = self.world.threads(self.node, "jobs", size=8)
        pool.start()
        ends: list[Any] = []
        for number in range(8):
            pool.run(self.write, number).addCallback(ends.append)
        self.assertEqual(len(self.rows), 8)
        self.world.run_for(1)
        self.assertEqual(sorted(ends), list(range(8)))
        self.assertNotEqual(ends, list(range(8)))

    def test_it_is_the_cores_pool_of_threads(self) -> None:
        pool: Threads = self.world.threads(self.node, "writer")
        early = pool.run(self.write, 1)
        self.world.run_for(1)
        self.assertEqual(self.rows, [])
        pool.start()
        pool.start()
        second = pool.run(self.write, 2)
        pool.stop()
        late = pool.run(self.write, 3)
        self.world.run_for(1)
        self.assertEqual((self.successResultOf(early), self.successResultOf(second)), (1, 2))
        self.assertNoResult(late)
        self.assertEqual(self.rows, [1, 2])

    def test_failing_before_does_nothing(self) -> None:
        self.fault(FailBefore(OSError("gone away")))
        done = self.threads.run(self.write, 1)
        self.world.run_for(1)
        self.failureResultOf(done, OSError)
        self.assertEqual(self.rows, [])

    def test_failing_after_has_done_it(self) -> None:
        self.fault(FailAfter(OSError("answer lost")))
        done = self.threads.run(self.write, 1)
        self.world.run_for(1)
        self.failureResultOf(done, OSError)
        self.assertEqual(self.rows, [1])

    def test_hanging_holds_the_thread(self) -> None:
        for before in (False, True):
            self.rows.clear()
            self.fault(Hang(30, before=before), at=self.threads.calls + 1)
            first, second = self.threads.run(self.write, 1), self.threads.run(self.write, 2)
            self.world.run_for(29)
            self.assertEqual(self.rows, [] if before else [1])
            self.assertNoResult(first)
            self.world.run_for(2)
            self.assertEqual(self.successResultOf(first), 1)
            self.assertEqual(self.successResultOf(second), 2)

    def test_a_hang_may_last_for_ever(self) -> None:
        self.fault(Hang(float("inf")))
        done = self.threads.run(self.write, 1)
        self.world.run_for(1e6)
        self.assertNoResult(done)

    def test_crash_before_and_after(self) -> None:
        for before in (True, False):
            self.rows.clear()
            ends: list[Any] = []

            async def commit(threads: SimThreads, ends: list[Any] = ends) -> None:
                try:
                    ends.append(await threads.run(self.write, 1))
                finally:
                    ends.append("clean-up")

            def build(node: SimNode, commit: Callable[..., Any] = commit, before: bool = before) -> None:
                threads = self.world.threads(node, "store")
                threads.hooks.append(lambda call: Crash(before=before))
                threads.start()
                Deferred.fromCoroutine(commit(threads))

            self.node.start(build)
            self.world.run_for(60)
            self.assertFalse(self.node.alive)
            self.assertEqual((self.rows, ends), ([] if before else [1], []))

    def test_a_crash_takes_what_waits_for_a_thread(self) -> None:
        self.threads.run(self.write, 1)
        self.threads.run(self.write, 2)
        self.node.crash()
        self.threads.run(self.write, 3)
        self.world.run_for(60)
        self.assertEqual(self.rows, [1])

    def test_a_paused_node_gets_its_answer_late(self) -> None:
        done = self.threads.run(self.write, 1)
        self.node.pause(20)
        self.world.run_for(19)
        self.assertNoResult(done)
        self.world.run_for(2)
        self.assertEqual(self.successResultOf(done), 1)
