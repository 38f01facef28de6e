"""One term of leadership: an engine, its journal, the one timer, and everybody who waits for an answer.

A term is built from what the store has and thrown away whole: on any doubt the core drops its memory, closes all
sessions, so that workers bring their results again, and reads anew.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from dsched.clock import Clock
from dsched.core.journal import Journal
from dsched.core.paging import Paging
from dsched.core.threads import Threads
from dsched.engine.changes import Ack, Answer, Close, Effect, Key, RunEnded, Send
from dsched.engine.engine import Engine
from dsched.errors import DschedError, InvalidTransition, StoreUnavailable
from dsched.model.instant import Moment
from dsched.net.protocol import FramedProtocol
from dsched.store.interface import Store
from dsched.wire.messages import ResultAcks, frame

__all__ = ["Term"]

ANSWER_LIMIT_S = 5.0
"""How long a request waits for a store that is away."""
PAUSE_S = 1.0
"""A timer that is later than this tells that the process was stopped, not just busy."""
CATCH_UP_S = 0.5
"""How long frames that came during a pause may take to be read."""
CLOCK_STEP_MS = 1000.0
"""From here on a change of the difference between the two clocks is a step, unless it took so many seconds."""
WAITING_EVENTS = 100_000
WAITING_REQUESTS = 1_000


class Term:
    """Feeds events to the engine, commits, and acts. Reactor thread only.

    `peers` maps session ids to connections. `ended` fires with the reason when this term must end.
    """

    log = Logger()

    def __init__(
        self, engine: Engine, store: Store, writer: Threads, reader: Threads, clock: Clock,
        peers: dict[int, FramedProtocol],
    ) -> None:  # fmt: skip
        self.engine = engine
        self.ended: Deferred[Exception] = Deferred()
        self._clock = clock
        self._peers = peers
        self._answers: dict[Key, Deferred[Any]] = {}
        self._run_waiters: dict[str, list[Deferred[None]]] = {}
        self._next_token = 0
        self._timer: IDelayedCall | None = None
        self._timer_at_s = 0.0
        self._last_moment = clock.moment()
        self._is_over = False
        self._postponed: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._back: list[Deferred[None]] = []
        self.journal = Journal(engine, store, writer, reader, clock, self._act, self._end, self._store_away)
        self.paging = Paging(engine, store, reader, clock, self.tell, self._end)

    # -- events

    def tell(self, event: Callable[..., Any], *args: Any) -> None:
        """Let the engine decide on what happened: calls `event(*args, now)`.

        While the store is away nothing is decided: the event waits its turn.
        """
        if self._is_over:
            return
        if self.journal.is_away:
            if len(self._postponed) >= WAITING_EVENTS:
                self._end(DschedError("too much happened while the store was away"))
                return
            self._postponed.append((event, args))
            return
        try:
            event(*args, self._clock.moment())
        except Exception as error:
            self._doubt(error)
            return
        self.after_event()

    async def ask(self, decide: Callable[[Engine, Key, Moment], Any]) -> Any:
        """Return the answer to a request, once what it says is committed.

        `decide(engine, token, now)` raises what is wrong with the request. Raises `StoreUnavailable` when the store
        stays away; the fate of the request is then unknown.
        """
        await self._decidable()
        self._next_token += 1
        token = f"request:{self._next_token}"
        answer: Deferred[Any] = Deferred()
        self._answers[token] = answer
        try:
            decide(self.engine, token, self._clock.moment())
        except DschedError as error:
            self._answers.pop(token, None)
            if isinstance(error, InvalidTransition):
                self._doubt(error)
            raise
        except Exception as error:
            self._answers.pop(token, None)
            self._doubt(error)
            raise
        self.after_event()
        return await answer

    def after_event(self) -> None:
        """Commit what was decided, wait for the next deadline, and read what there is room for."""
        self.journal.flush()
        self._arm()
        self._read_on()

    def _read_on(self) -> None:
        if not self._is_over and not self.journal.is_away:
            self.paging.go_on()

    def wait_for_run(self, run_id: str) -> Deferred[None]:
        """Return a Deferred that fires when the run has ended or this term has; cancel it to give up."""
        waiter: Deferred[None] = Deferred(lambda _: self._give_up(run_id, waiter))
        self._run_waiters.setdefault(run_id, []).append(waiter)
        return waiter

    def _give_up(self, run_id: str, waiter: Deferred[None]) -> None:
        waiters = self._run_waiters.get(run_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._run_waiters[run_id]

    async def _decidable(self) -> None:
        if self._is_over:
            raise StoreUnavailable("this core has just lost its leadership or its memory; repeat with the same key")
        if not self.journal.is_away:
            return
        if len(self._back) >= WAITING_REQUESTS:
            raise StoreUnavailable("the store is away and many requests wait already; repeat with the same key")
        back: Deferred[None] = Deferred()
        self._back.append(back)
        await back

    # -- time

    def _arm(self) -> None:
        deadline_s = self.engine.next_deadline_s()
        if deadline_s is None or self._is_over or self.journal.is_away:
            return
        if self._timer is not None:
            if self._timer_at_s <= deadline_s:
                return  # It fires early and arms itself again: cheaper than to move it each time.
            self._clock.cancel(self._timer)
        self._timer_at_s = max(deadline_s, self._clock.monotonic())
        # Never nothing: what rounding leaves of a wait would be waited for again and again.
        self._timer = self._clock.call_later(max(0.000_001, deadline_s - self._clock.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._is_over or self.journal.is_away:
            return
        self._watch_wall_clock()
        late_s = self._clock.monotonic() - self._timer_at_s
        if late_s > PAUSE_S:
            # This process stood still. What its workers sent meanwhile waits in the sockets: hear them out first.
            self.log.warn("this core stood still for {late_s:.1f} s", late_s=late_s)  # noqa: G010
            self.engine.refresh_leases(self._clock.moment())
            self._timer_at_s = self._clock.monotonic() + CATCH_UP_S
            self._timer = self._clock.call_later(CATCH_UP_S, self._tick)
            return
        self.tell(self.engine.advance)

    def _watch_wall_clock(self) -> None:
        before, now = self._last_moment, self._clock.moment()
        self._last_moment = now
        elapsed_s = now.mono_s - before.mono_s
        step_ms = now.wall_ms - before.wall_ms - elapsed_s * 1000
        # One millisecond per second is more than any clock drifts, or is slewed by.
        if abs(step_ms) >= max(CLOCK_STEP_MS, elapsed_s):
            self.log.warn("the wall clock stepped {step_s:+.0f} s", step_s=step_ms / 1000)  # noqa: G010

    # -- effects

    def _act(self, effects: Sequence[Effect]) -> None:
        outgoing: dict[int, list[bytes]] = {}
        acks: dict[int, ResultAcks] = {}
        closing: list[Close] = []
        for effect in effects:
            if type(effect) is Send:
                outgoing.setdefault(effect.session_id, []).append(effect.data)
            elif type(effect) is Ack:
                told = acks.get(effect.session_id)
                if told is None:
                    told = acks[effect.session_id] = ResultAcks([], [])
                pair = (effect.task_id, effect.attempt)
                told.acks.append(pair)
                if effect.is_open:
                    told.open.append(pair)
            elif type(effect) is RunEnded:
                for waiter in self._run_waiters.pop(effect.run_id, ()):
                    waiter.callback(None)
            elif type(effect) is Answer:
                self._answer(effect)
            elif type(effect) is Close:
                closing.append(effect)
        for session_id, told in acks.items():
            outgoing.setdefault(session_id, []).insert(0, frame(told))
        for session_id, frames in outgoing.items():
            self._send(session_id, b"".join(frames))
        for close in closing:
            peer = self._peers.get(close.session_id)
            if peer is not None:
                self.log.info("closing session of {address}: {reason}", address=peer.address, reason=close.reason)
                peer.close()
        self._read_on()

    def _send(self, session_id: int, data: bytes) -> None:
        peer = self._peers.get(session_id)
        if peer is not None:
            peer.send(data)
            self.engine.flushed(session_id, peer.writable, self._clock.moment())

    def _answer(self, effect: Answer) -> None:
        answer = self._answers.pop(effect.token, None)
        if answer is None:
            return  # It was told 503 meanwhile.
        if effect.error is None:
            answer.callback(effect.value)
        else:
            answer.errback(effect.error)

    # -- the store goes and comes

    def _store_away(self, why: str | None) -> None:
        if why is not None:
            self.log.warn("the store is away ({why}): nothing is decided until it is back", why=why)  # noqa: G010
            self._clock.call_later(ANSWER_LIMIT_S, self._refuse_waiting)
            return
        self.log.info("the store is back")
        now = self._clock.moment()
        self.engine.refresh_leases(now)
        back, self._back = self._back, []
        postponed, self._postponed = self._postponed, deque()
        for event, args in postponed:
            self.tell(event, *args)
        for waiter in back:
            waiter.callback(None)
        self.tell(self.engine.advance)

    def _refuse_waiting(self) -> None:
        if not self.journal.is_away or self._is_over:
            return
        problem = "the store is away: whether this was done is unknown; repeat it with the same key"
        self._fail_all(StoreUnavailable(problem))
        self._clock.call_later(1.0, self._refuse_waiting)

    def _fail_all(self, error: Exception) -> None:
        answers, self._answers = self._answers, {}
        back, self._back = self._back, []
        waiting: Iterable[Deferred[Any]] = [*answers.values(), *back]
        for waiter in waiting:
            waiter.errback(error)

    # -- the end

    def _doubt(self, error: Exception) -> None:
        self.log.failure("the engine failed; this core drops its memory and reads again")
        self._end(error)

    def _end(self, error: Exception) -> None:
        if not self._is_over:
            self.stop(error)
            self.ended.callback(error)

    def stop(self, error: Exception) -> None:
        """End without a word to anybody but those who wait for answers."""
        self._is_over = True
        self.journal.stop()
        self.paging.stop()
        self._clock.cancel(self._timer)
        self._fail_all(StoreUnavailable(f"this core stopped to lead ({error}); repeat it with the same key"))
        waiters, self._run_waiters = self._run_waiters, {}
        for waiting in waiters.values():
            for waiter in waiting:
                waiter.callback(None)
