"""An engine on a bench: a store in memory, a clock that is moved by hand, workers that are lists of messages.

`EngineBench` does what the core's shell does around an engine (commit, then act), at once and in the same turn, so
that a test says one event and looks at what became of it.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from dsched.engine.backlog import Page
from dsched.engine.changes import Ack, Answer, Batch, Close, Effect, Key, RunEnded, Send
from dsched.engine.definition import RunRequest
from dsched.engine.engine import Engine
from dsched.engine.session import Session
from dsched.engine.settings import EngineSettings
from dsched.engine.split import split
from dsched.errors import BatchRefused
from dsched.model.instant import Moment
from dsched.model.rows import ParkedRun, RunRow, TaskRow
from dsched.model.task import OPEN
from dsched.store.memory import MemoryStore
from dsched.wire.encoding import Raw, decoder
from dsched.wire.framing import FrameDecoder
from dsched.wire.header import MessageType
from dsched.wire.messages import (
    FEATURES,
    Cancel,
    Error,
    Heartbeat,
    PlainRequest,
    Register,
    RegisterAck,
    Request,
    ResponseIn,
    ResumeAck,
    ResumeIn,
    RunningAttempt,
    Started,
    StartedMany,
    decode_cancel,
    decode_error,
    decode_heartbeat,
    decode_register_ack,
    decode_request,
    decode_resume_ack,
)

__all__ = ["BenchWorker", "EngineBench", "response"]

_decode_plain = decoder(PlainRequest)


class BenchWorker:
    """One connection of a worker, driven by hand. It keeps all that it was sent, decoded."""

    def __init__(self, bench: "EngineBench", worker_id: str, session_id: int, incarnation: str | None) -> None:
        self.bench = bench
        self.worker_id = worker_id
        self.session_id = session_id
        self.incarnation = incarnation
        self.received: list[Any] = []
        self.acks: list[tuple[str, int]] = []
        self.close_reason: str | None = None
        self.writable = True
        self._decoder = FrameDecoder()

    @property
    def plain(self) -> bool:
        """Tell whether it registered without features."""
        return self.incarnation is None

    @property
    def session(self) -> Session:
        """Return the engine's side of this connection; KeyError when it has none."""
        return self.bench.engine.membership.sessions[self.session_id]

    def take(self, data: bytes) -> None:
        """Take what the core sent."""
        for kind, _, body in self._decoder.feed(data):
            self.received.append(_decode(MessageType(kind), body, self.plain))
        assert self._decoder.error is None and not self._decoder.buffered

    def of(self, kind: type) -> list[Any]:
        """Return the messages of one type that came."""
        return [message for message in self.received if type(message) is kind]

    @property
    def requests(self) -> list[Any]:
        """Return the dispatches that came, oldest first."""
        return self.of(PlainRequest if self.plain else Request)

    @property
    def task_ids(self) -> list[str]:
        """Return the tasks that came, oldest first."""
        return [request.task_id for request in self.requests]

    @property
    def cancels(self) -> list[Cancel]:
        """Return the cancels that came."""
        return self.of(Cancel)

    # -- what a worker does

    def resume(
        self, slots: int = 1, handlers: Sequence[str] = ("work",), group: str = "default",
        running: Sequence[RunningAttempt] = (), results: Sequence[ResponseIn] = (), *, last: bool = True,
    ) -> "BenchWorker":  # fmt: skip
        """Say what it offers and what it still has."""
        message = ResumeIn(
            group, slots, handlers=list(handlers), running=list(running), results=list(results), last=last
        )  # fmt: skip
        self.bench.tell(self.bench.engine.resume, self.session_id, message)
        return self

    def start(self, *requests: Request) -> None:
        """Say that handlers run."""
        started = [Started(request.task_id, request.job_id, request.attempt) for request in requests]
        self.bench.tell(self.bench.engine.started, self.session_id, StartedMany(started))

    def answer(self, request: Any, **fields: Any) -> None:
        """Send a result; `fields` are those of RESPONSE."""
        self.send(response(request, **fields))

    def send(self, *responses: ResponseIn) -> None:
        """Send results that came together."""
        self.bench.tell(self.bench.engine.results, self.session_id, responses)

    def succeed(self, request: Any, data: bytes = b"null", **fields: Any) -> None:
        """Send a success."""
        self.answer(request, success=True, data=Raw(data), **fields)

    def fail(self, request: Any, message: str = "broken", **fields: Any) -> None:
        """Send a failure."""
        self.answer(request, success=False, message=message, **fields)

    def reject(self, request: Request) -> None:
        """Send the attempt back, not started."""
        self.answer(request, success=False, outcome="REJECTED")

    def beat(self) -> None:
        """Send any frame."""
        self.bench.tell(self.bench.engine.seen, self.session_id)

    def drain(self) -> None:
        """Take nothing new any more."""
        self.bench.tell(self.bench.engine.draining, self.session_id)

    def close(self) -> None:
        """Lose the connection."""
        self.bench.workers.pop(self.session_id, None)
        self.bench.tell(self.bench.engine.closed, self.session_id)


def response(request: Any, **fields: Any) -> ResponseIn:
    """Return the RESPONSE that answers a dispatch."""
    if isinstance(request, Request):
        fields.setdefault("attempt", request.attempt)
        fields.setdefault("fence", request.fence)
    return ResponseIn(request.job_id, request.task_id, **fields)


def _decode(kind: MessageType, body: bytes, plain: bool) -> Any:
    decoders: dict[MessageType, Callable[[bytes], Any]] = {
        MessageType.REQUEST: _decode_plain if plain else decode_request,
        MessageType.REGISTER_ACK: decode_register_ack,
        MessageType.RESUME_ACK: decode_resume_ack,
        MessageType.HEARTBEAT: decode_heartbeat,
        MessageType.CANCEL: decode_cancel,
        MessageType.ERROR: decode_error,
    }
    message = decoders[kind](body)
    # Nothing but the plain protocol ever reaches a plain worker.
    assert not plain or isinstance(message, PlainRequest | RegisterAck), message
    assert isinstance(message, PlainRequest | RegisterAck | ResumeAck | Heartbeat | Cancel | Error), message
    return message


class EngineBench:
    """Feeds an engine and does at once what it decides. `refuse` may veto the content of a batch."""

    def __init__(self, *, seed: int = 0, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.store = MemoryStore()
        self.rng = random.Random(seed)
        self.mono_s = 1000.0
        self.wall_ms = 1_800_000_000_000
        self.refuse: Callable[[Batch], bool] = lambda batch: False
        self.workers: dict[int, BenchWorker] = {}
        self.answers: dict[Key, Answer] = {}
        self.ended: list[str] = []
        self.batches: list[Batch] = []
        self.paused = False
        self.no_pages = False
        self.refusals = 0
        self._last_session_id = 0
        self._last_token = 0
        self.restart()

    @property
    def now(self) -> Moment:
        """Return both clocks."""
        return Moment(self.mono_s, self.wall_ms)

    def restart(self, grace_s: float | None = None) -> None:
        """Begin a new term from what is stored; every connection is gone."""
        self.workers.clear()
        leader = self.store.take_leadership(self.store.leader(), "bench", "", "")
        assert leader is not None
        self.engine = Engine(self.settings, self.rng, self.now, leader)
        active = self.store.load_active()
        self.engine.load(
            active.jobs, active.runs, active.tasks, active.counts, self.now,
            self.settings.resume_grace_s if grace_s is None else grace_s,
        )  # fmt: skip
        self.engine.load_backlog(active.lanes, active.parked_jobs, active.newest_due)
        self.pump()

    # -- events

    def tell(self, event: Callable[..., Any], *args: Any) -> None:
        """Let something happen, and act on what is decided."""
        event(*args, self.now)
        self.pump()

    def advance(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end_s = self.mono_s + seconds
        while (deadline_s := self.engine.next_deadline_s()) is not None and deadline_s <= end_s:
            self._set(max(deadline_s, self.mono_s))
            self.tell(self.engine.advance)
        self._set(end_s)
        self.tell(self.engine.advance)

    def _set(self, mono_s: float) -> None:
        self.wall_ms += round(mono_s * 1000) - round(self.mono_s * 1000)
        self.mono_s = mono_s

    def register(self, worker_id: str, incarnation: str | None = "i1", host: str = "there") -> BenchWorker:
        """Connect and register a worker; without `incarnation` a plain one."""
        self._last_session_id += 1
        worker = BenchWorker(self, worker_id, self._last_session_id, incarnation)
        self.workers[worker.session_id] = worker
        features = None if incarnation is None else list(FEATURES)
        message = Register(worker_id, host, incarnation=incarnation, features=features)
        self.tell(self.engine.register, worker.session_id, host, message)
        return worker

    def worker(self, worker_id: str = "w1", slots: int = 1, incarnation: str = "i1", **resume: Any) -> BenchWorker:
        """Return a worker that is ready."""
        return self.register(worker_id, incarnation).resume(slots, **resume)

    def job(self, name: str = "job", **fields: Any) -> None:
        """Create a job whose handler is `work`."""
        body = {"name": name, "handler": "work", **fields}
        answer = self.ask(lambda token: self.engine.create_job(body, token, self.now))
        assert answer is None or answer.error is None

    def run(self, job: str = "job", **request: Any) -> str:
        """Request one run and return its id."""
        return self.request(RunRequest(job, request.get("params"), request.get("shards"), request.get("key")))[0].run_id

    def request(self, *requests: RunRequest) -> Sequence[RunRow]:
        """Request runs, with what the store knows of their keys, and return the answer."""
        keyed = [f"{request.job}~{request.key}" for request in requests if request.key is not None]
        stored = {row.run_id: row for row in self.store.runs_by_id(keyed)}
        answer = self.ask(lambda token: self.engine.request_runs(requests, stored, token, self.now))
        if answer is None:
            return []
        if answer.error is not None:
            raise answer.error
        rows: Sequence[RunRow] = answer.value
        return rows

    def run_later(self, *keys: str | None, job: str = "job") -> Key:
        """Request runs and return the token of the answer, which may come later."""
        requests = [RunRequest(job, None, None, key) for key in keys or (None,)]
        self.ask(lambda token: self.engine.request_runs(requests, {}, token, self.now))
        return f"request:{self._last_token}"

    def cancel(self, run_id: str) -> Answer | None:
        """Cancel a run."""
        return self.ask(lambda token: self.engine.cancel_run(run_id, token, self.now))

    def ask(self, decide: Callable[[Key], Any]) -> Answer | None:
        """Let a request be decided and return its answer, None where it waits for a commit."""
        self._last_token += 1
        token = f"request:{self._last_token}"
        decide(token)
        self.pump()
        return self.answers.get(token)

    # -- commit and act

    def pump(self) -> None:
        """Commit and act until nothing is left to do, unless `paused`."""
        while self._commit_next() or self.page():
            pass

    def _commit_next(self) -> bool:
        """Commit what there is, if anything."""
        if self.engine.has_changes() and not self.paused:
            batch, effects, units = self.engine.take_batch(self.now)
            if batch is not None:
                try:
                    self._commit(batch)
                except BatchRefused:
                    self._commit_parts(batch, effects, units)
                    return True
                self.engine.committed(batch)
                assert self.engine.open_counts() == dict(self.store.open_counts())
            self.act(effects)
            return True
        return False

    def page(self) -> bool:
        """Read the page that the engine wants next, if any, unless `no_pages`."""
        if self.no_pages or (page := self.engine.next_page()) is None:
            return False
        self.deliver(page, self.read(page))
        return True

    def take_in(self, run_id: str) -> None:
        """Take a run into memory that is parked, as for a cancel."""
        self.engine.backlog.begin_read()
        parked = self.store.parked_run(run_id)
        if parked is not None:
            self.engine.take_parked(parked, self.now)

    def read(self, page: Page) -> Sequence[ParkedRun]:
        """Return what the store has of a page now."""
        span = (page.after, page.last, page.tasks)
        if page.lane is None:
            return self.store.parked_of_job(page.job, *span)
        return self.store.parked(page.lane, *span)

    def deliver(self, page: Page, found: Sequence[ParkedRun]) -> None:
        """Give the engine what was read, run by run."""
        for parked in found:
            self.engine.paged_in(page, [parked], self.now)
        self.engine.page_ended(page, not found or found[-1].seq >= page.last, self.now)

    def _commit(self, batch: Batch) -> None:
        if self.refuse(batch):
            raise BatchRefused("the bench says so")
        self.store.commit(batch)
        self.batches.append(batch)

    def _commit_parts(self, batch: Batch, effects: Sequence[Effect], units: dict[str, Key]) -> None:
        number = batch.number - 1
        for part in split(batch, effects, units):
            part.batch.number = number + 1
            try:
                self._commit(part.batch)
            except BatchRefused as error:
                self.refusals += 1
                runs = {run_id: (self.store.run(run_id), self.tasks(run_id)) for run_id in part.run_ids()}
                jobs = {name: self.store.job(name) for name in part.job_names()}
                self.engine.refused(part, error, runs, jobs, self.now)
                continue
            number += 1
            self.act(part.effects)
        self.engine.renumber(number)
        self.engine.recount(self.store.open_counts(), self.store.lanes())

    def act(self, effects: Sequence[Effect]) -> None:
        """Do what a shell does with effects."""
        sent: set[int] = set()
        closing: list[Close] = []
        for effect in effects:
            if isinstance(effect, Send):
                worker = self.workers.get(effect.session_id)
                if worker is not None:
                    worker.take(effect.data)
                    sent.add(effect.session_id)
            elif isinstance(effect, Ack):
                worker = self.workers.get(effect.session_id)
                if worker is not None:
                    assert not worker.plain
                    worker.acks.append((effect.task_id, effect.attempt))
            elif isinstance(effect, Answer):
                assert effect.token not in self.answers, "answered twice"
                self.answers[effect.token] = effect
            elif isinstance(effect, RunEnded):
                self.ended.append(effect.run_id)
            else:
                closing.append(effect)
        for session_id in sent:
            self.engine.flushed(session_id, self.workers[session_id].writable, self.now)
        for close in closing:
            worker = self.workers.pop(close.session_id, None)
            if worker is not None:
                worker.close_reason = close.reason
                self.engine.closed(close.session_id, self.now)

    # -- looking

    def tasks(self, run_id: str) -> Sequence[TaskRow]:
        """Return the stored tasks of a run by shard item."""
        return self.store.tasks_of(run_id, 1000, None, {}).items

    def task(self, task_id: str) -> TaskRow:
        """Return a stored task."""
        row = self.store.task(task_id)
        assert row is not None, task_id
        return row

    def status(self, run_id: str) -> str:
        """Return the stored state of a run."""
        row = self.store.run(run_id)
        assert row is not None, run_id
        return row.status

    def open_statuses(self, run_ids: Sequence[str]) -> list[str]:
        """Return the states of all tasks of these runs that are not terminal."""
        return [row.status for run_id in run_ids for row in self.tasks(run_id) if row.status in OPEN]

    def outcomes(self, task_id: str) -> list[str]:
        """Return how the closed attempts of a task ended that did not end the task."""
        return [row.outcome for row in self.store.attempts(task_id)]

    def stale(self, task_id: str) -> int:
        """Return how much news of closed attempts was kept."""
        return sum(row.kind == "STALE" for row in self.store.logs(task_id))
