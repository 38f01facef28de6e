"""A whole simulated world from one seed: time, network, nodes, trace, and the checks that end a run."""

import gc
import random
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from dsched.testing.sim_clock import SimReactor
from dsched.testing.sim_network import SimNetwork
from dsched.testing.sim_node import SimNode
from dsched.testing.sim_pipe import Link
from dsched.testing.sim_threads import SimThreads
from dsched.testing.trace import ErrorWatch, Trace

__all__ = ["SimWorld", "UnhandledError"]

_T = TypeVar("_T")
_COLLECT_EVERY = 20_000  # steps


class UnhandledError(AssertionError):
    """An error was logged, or a Deferred failed, and nothing handled it."""


class SimWorld:
    """Owns everything of a run. Use it in a `with` block, or call `close`.

    Two worlds with the same seed and the same scenario have the same trace digest. `invariants` are called after
    each step; whatever they raise ends the run, with the seed and the last events as a note. Inside `run_for` and
    its kin the garbage collector runs at fixed steps only: it may run code.
    """

    def __init__(
        self,
        seed: int,
        *,
        shuffle_ties: bool = True,
        step_limit: int = 200_000,
        link: Link | None = None,
        replay: str | None = None,
    ) -> None:
        self.seed = seed
        self.replay = replay or f"SimWorld({seed})"
        self.rng = self.derive_rng("scenario")
        self.reactor = SimReactor(self.derive_rng("ties"), shuffle_ties=shuffle_ties, step_limit=step_limit)
        self.trace = Trace(self.reactor.seconds)
        self.network = SimNetwork(self.reactor, self.derive_rng("network"), self.trace, default_link=link)
        self.errors = ErrorWatch(self._is_ghost)
        self.nodes: dict[str, SimNode] = {}
        self.reactor.on_step = self.trace.note_step
        self.reactor.after_step.append(self._after_step)
        self._collect_at = _COLLECT_EVERY
        self._closed = False

    def __enter__(self) -> "SimWorld":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
            else:
                self._explain(error)
        finally:
            self.close()

    @property
    def invariants(self) -> list[Callable[[], None]]:
        """What is called after each step."""
        return self.reactor.after_step

    def derive_rng(self, name: str) -> random.Random:
        """Return a generator of its own for one purpose, so that the draws of one part do not move another's."""
        return random.Random(f"{self.seed}/{name}")

    def node(self, name: str, *, ip: str | None = None, skew_ms: int = 0, drift_ppm: float = 0.0) -> SimNode:
        """Add a node; nodes with the same `ip` are processes on one machine."""
        if name in self.nodes:
            raise ValueError(f"there is a node {name} already")
        number = len(self.nodes) + 1
        address = ip or f"10.0.{number // 250}.{number % 250 + 1}"
        node = SimNode(self.reactor, self.trace, name, address, skew_ms=skew_ms, drift_ppm=drift_ppm)
        self.nodes[name] = node
        self.network.add(node)
        return node

    def threads(
        self, node: SimNode, name: str = "threads", *, size: int = 1, delay_s: tuple[float, float] = (0.0002, 0.01)
    ) -> SimThreads:
        """Return a pool of simulated threads for the present life of `node`, not yet started."""
        rng = self.derive_rng(f"{node.name}/{node.lives}/{name}")
        return SimThreads(node, rng, self.trace, name=name, size=size, delay_s=delay_s)

    def run_for(self, seconds: float) -> None:
        """Run everything that comes due within `seconds`; raise for an unhandled error or a broken invariant."""
        self._run(lambda: self.reactor.run_for(seconds))

    def run_until(self, reached: Callable[[], bool], limit_s: float) -> None:
        """Run until `reached()`; raise `AssertionError` when that takes more than `limit_s` simulated seconds."""

        def run() -> None:
            if not self.reactor.run_until(reached, limit_s):
                raise AssertionError(f"not reached within {limit_s} simulated seconds")

        self._run(run)

    def check(self) -> None:
        """Raise `UnhandledError` if the run so far left any; collects garbage first, so that none hides there."""
        gc.collect()
        self._after_step()

    def describe(self) -> str:
        """Return what one needs to look at a failed run and to repeat it."""
        events = "\n".join(f"  {line}" for line in self.trace.tail(40))
        return (
            f"seed {self.seed}, step {self.reactor.steps}, t={self.reactor.seconds():.6f}, event {self.trace.count}; "
            f"repeat with {self.replay}; the last events were:\n{events}"
        )

    def close(self) -> None:
        """End all nodes without running their code, and drop everything; idempotent."""
        if self._closed:
            return
        self._closed = True
        self.errors.close()
        self.reactor.after_step.clear()
        # Suspended coroutines are closed now; one that waits in `finally` complains, and that is no news.
        report, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for node in self.nodes.values():
                node.forget()
            self.reactor.clear()
            self.network.connections.clear()
            gc.collect()
        finally:
            sys.unraisablehook = report

    def _run(self, run: Callable[[], _T]) -> _T:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return run()
        except Exception as error:
            self._explain(error)
            raise
        finally:
            if collecting:
                gc.enable()

    def _explain(self, error: BaseException) -> None:
        text = self.describe()
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)

    def _after_step(self) -> None:
        if self.reactor.steps >= self._collect_at:
            self._collect_at = self.reactor.steps + _COLLECT_EVERY
            gc.collect()
        if self.errors.errors:
            raise UnhandledError("\n".join(self.errors.errors))

    def _is_ghost(self) -> bool:
        current = self.reactor.current
        return current is not None and not current.alive
