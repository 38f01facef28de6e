"""People's programs in a simulation: they ask, and ask again with the same key until they know."""

import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dsched.core.service import CoreService
from dsched.engine.definition import RunRequest
from dsched.errors import BatchRefused, Conflict, DschedError, NotFound, NotLeader, StoreUnavailable
from dsched.model.ids import requested_run_id
from dsched.model.run import RunState
from dsched.testing.cluster import SimCluster
from dsched.testing.invariants import Invariants
from dsched.testing.sim_node import SimNode
from dsched.testing.workload import JobPlan, Request, RequestKind
from dsched.wire.encoding import dump_strict

__all__ = ["Clients"]

PATIENCE_S = 15.0
LOST_ANSWERS = 0.03
LOOKS = 20
_RANK = {RunState.PENDING.value: 0, RunState.RUNNING.value: 1}

Ask = Callable[[CoreService], Coroutine[Any, Any, Any]]


class _Call:
    """One request until its answer is known."""

    __slots__ = ("ask", "conflict", "core", "keyed", "on_answer", "tries", "what")

    def __init__(self, what: str, ask: Ask, on_answer: Callable[[Any], None], core: int, keyed: bool) -> None:
        self.what = what
        self.ask = ask
        self.on_answer = on_answer
        self.core = core
        self.keyed = keyed
        self.tries = 0
        self.conflict: Callable[[], None] | None = None


class Clients:
    """All clients of one run. `accepted` holds the runs that were acknowledged; each must end."""

    def __init__(self, cluster: SimCluster, invariants: Invariants, rng: random.Random) -> None:
        self.accepted: dict[str, None] = {}
        self.answered = 0
        self.open_calls = 0
        self.stopped = False
        self._cluster = cluster
        self._world = cluster.world
        self._invariants = invariants
        self._rng = rng
        self._ranks: dict[str, int] = {}

    def schedule(self, jobs: Iterable[JobPlan], requests: Iterable[Request]) -> None:
        """Arm everything of the plan."""
        for job in jobs:
            self._later(job.create_at_s, self._create, job)
            if job.delete_at_s is not None:
                self._later(job.delete_at_s, self.delete, job.name)
        for request in requests:
            self._later(request.at_s, self._begin, request)

    def delete(self, name: str) -> None:
        """Delete a job."""
        self._call(f"delete {name}", lambda core: core.delete_job(name), lambda answer: None)

    # -- what is asked

    def _create(self, job: JobPlan) -> None:
        self._call(f"create {job.name}", lambda core: core.create_job(job.body), lambda answer: None)

    def _begin(self, request: Request) -> None:
        match request.kind:
            case RequestKind.TRIGGER:
                self._trigger(*request.runs[0])
            case RequestKind.BULK:
                self._bulk(request.runs)
            case RequestKind.CANCEL:
                self._cancel(_run_id(request))
            case RequestKind.LOOK:
                self._look(_run_id(request), LOOKS)

    def _trigger(self, job: str, key: str | None, body: dict[str, Any]) -> None:
        full = body if key is None else {**body, "key": key}

        def answered(answer: Any) -> None:
            if isinstance(answer, dict):
                self._stored(answer["id"], job, key, body)

        def refused() -> None:
            row = self._invariants.runs.get(requested_run_id(job, key or ""))
            if row is not None and row.request_hash == _hash_of(job, key, body):
                self._invariants.fail("I4", f"run {row.run_id} was asked for in the same words, and refused")

        self._call(
            f"trigger {job} {key}",
            lambda core: core.trigger(job, full),
            answered,
            keyed=key is not None,
            conflict=refused,
        )

    def _bulk(self, runs: tuple[tuple[str, str | None, dict[str, Any]], ...]) -> None:
        bodies = [{"job": job, **body, **({} if key is None else {"key": key})} for job, key, body in runs]

        def answered(answer: Any) -> None:
            if isinstance(answer, dict):
                for run_id, (job, key, body) in zip(answer["ids"], runs, strict=True):
                    self._stored(run_id, job, key, body)

        keyed = all(key is not None for _, key, _ in runs)
        self._call("bulk", lambda core: core.create_runs({"runs": bodies}), answered, keyed=keyed)

    def _cancel(self, run_id: str) -> None:
        def answered(answer: Any) -> None:
            row = self._invariants.runs.get(run_id)
            if isinstance(answer, dict) and (row is None or not row.cancel_requested):
                self._invariants.fail("I30", f"the cancel of {run_id} is acknowledged and not stored")

        def refused() -> None:
            row = self._invariants.runs.get(run_id)
            if row is None or row.finished_at is None:
                self._invariants.fail("I30", f"the cancel of {run_id} is refused, and it has not ended")

        self._call(f"cancel {run_id}", lambda core: core.cancel_run(run_id), answered, conflict=refused)

    def _look(self, run_id: str, left: int) -> None:
        if not left or self.stopped:
            return
        wait_s = self._rng.choice((0.0, self._rng.uniform(0, 10)))

        def answered(answer: Any) -> None:
            again_s = self._rng.uniform(1, 20)
            if isinstance(answer, dict):
                rank = _RANK.get(answer["status"], 2)
                if rank < self._ranks.get(run_id, 0):
                    self._invariants.fail("I28", f"run {run_id} is shown as {answer['status']} after a later state")
                self._ranks[run_id] = rank
                if rank == 2:
                    return
            self._later(again_s, self._look, run_id, left - 1)

        self._call(f"look {run_id}", lambda core: core.run(run_id, wait_s), answered)

    def _stored(self, run_id: str, job: str, key: str | None, body: dict[str, Any]) -> None:
        """A run is acknowledged: it must be stored, as it was asked for."""
        row = self._invariants.runs.get(run_id)
        if row is None:
            self._invariants.fail("I1", f"run {run_id} is acknowledged and not stored")
            return
        self.accepted[run_id] = None
        if key is None:
            return
        if run_id != requested_run_id(job, key) or row.request_hash != _hash_of(job, key, body):
            self._invariants.fail("I4", f"the answer for key {key} of {job} is run {run_id}, made for another body")

    # -- how

    def _later(self, delay_s: float, function: Callable[..., Any], *args: Any) -> None:
        self._world.reactor.callLater(delay_s, function, *args)

    def _call(
        self,
        what: str,
        ask: Ask,
        on_answer: Callable[[Any], None],
        *,
        keyed: bool = True,
        conflict: Callable[[], None] | None = None,
    ) -> None:
        self.open_calls += 1
        call = _Call(what, ask, on_answer, self._rng.randrange(len(self._cluster.cores)), keyed)
        call.conflict = conflict
        self._send(call)

    def _send(self, call: _Call) -> None:
        call.tries += 1
        number = call.tries
        node = self._cluster.cores[call.core]
        if not node.alive:
            self._again(call, 0.2)
            return
        node.reactor.call_io(self._rng.uniform(0.0001, 0.003), self._arrived, node, call, number)
        self._later(PATIENCE_S, self._impatient, call, number)

    def _arrived(self, node: SimNode, call: _Call, number: int) -> None:
        core = node.app
        if core is None:
            return
        Deferred.fromCoroutine(call.ask(core)).addBoth(self._answer_leaves, call, number)

    def _answer_leaves(self, answer: Any, call: _Call, number: int) -> None:
        value = answer.value if isinstance(answer, Failure) else answer
        if not isinstance(value, Exception):
            if not call.what.startswith("look"):
                call.on_answer(value)
        elif not isinstance(value, DschedError):
            self._invariants.fail("I1", f"{call.what} is answered with {value!r}")
        if self._rng.random() >= LOST_ANSWERS:
            self._later(self._rng.uniform(0.0001, 0.003), self._answered, call, number, value)

    def _answered(self, call: _Call, number: int, value: Any) -> None:
        if call.tries != number:
            return  # It has given up on this try.
        self._world.trace.record("answered", what=call.what, how=type(value).__name__)
        if isinstance(value, NotLeader):
            self._to_leader(call, value)
            return
        if isinstance(value, StoreUnavailable):
            self._again(call, 1.0)
            return
        call.tries += 1
        self.answered += 1
        self.open_calls -= 1
        if call.what.startswith("look") or isinstance(value, Exception):
            call.on_answer(value)
        if isinstance(value, Conflict) and call.conflict is not None:
            call.conflict()
        if isinstance(value, Exception) and not isinstance(value, Conflict | NotFound | BatchRefused):
            self._invariants.fail("I1", f"{call.what} is answered with {value!r}")

    def _impatient(self, call: _Call, number: int) -> None:
        if call.tries == number:
            self._again(call, 0.5)

    def _again(self, call: _Call, pause_s: float) -> None:
        call.tries += 1
        if self.stopped or not call.keyed and call.tries > 2:
            self.open_calls -= 1
            return  # Without a key nobody may ask twice.
        call.core = (call.core + 1) % len(self._cluster.cores)
        self._later(self._rng.uniform(0, 2 * pause_s), self._send, call)

    def _to_leader(self, call: _Call, error: NotLeader) -> None:
        address = (error.details.get("leader") or {}).get("address") or ""
        call.tries += 1
        call.core = (call.core + 1) % len(self._cluster.cores)
        for number, node in enumerate(self._cluster.cores):
            if address.startswith(f"{node.ip}:"):
                call.core = number
        self._later(self._rng.uniform(0, 1.0), self._send, call)


def _hash_of(job: str, key: str | None, body: dict[str, Any]) -> str:
    params = dump_strict(body["params"]).decode() if "params" in body else None
    return RunRequest(job, params, body.get("sharding_total"), key).body_hash()


def _run_id(request: Request) -> str:
    job, key, _ = request.runs[0]
    return requested_run_id(job, key or "")
