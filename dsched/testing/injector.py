"""Does to a simulated cluster what the faults of a scenario say, and undoes it again."""

from collections.abc import Callable, Iterable
from typing import Any

from dsched.errors import StoreUnavailable
from dsched.model.rows import TaskRow
from dsched.model.task import OPEN, TaskState
from dsched.testing.cluster import SimCluster
from dsched.testing.coverage import Coverage
from dsched.testing.faults import STORE_KINDS, WAITING, WORKER_KINDS, Fault, FaultKind
from dsched.testing.invariants import Invariants
from dsched.testing.sim_network import Connection
from dsched.testing.sim_node import CrashKind, SimNode
from dsched.testing.sim_store import Refusal
from dsched.testing.sim_threads import Crash, FailAfter, FailBefore, Hang, ThreadCall, ThreadFault

__all__ = ["Injector"]

AIM_LIMIT_S = 600.0
ARMED_LIMIT_S = 30.0
_OPEN = frozenset(state.value for state in OPEN)
_K = FaultKind


class _Armed:
    """A fault of the store that waits for the next call of a core."""

    def __init__(self, fault: Fault, until_s: float) -> None:
        self.fault = fault
        self.until_s = until_s


class Injector:
    """Owns the faults of one run. Pass `hook` to the thread pools of the cores, `refusals` to their stores."""

    def __init__(self, cluster: SimCluster, invariants: Invariants, coverage: Coverage) -> None:
        self.refusals: list[Refusal] = []
        self.injected = 0
        self._cluster = cluster
        self._world = cluster.world
        self._invariants = invariants
        self.coverage = coverage
        self._aiming: list[Fault] = []
        self._armed: dict[str, list[_Armed]] = {}
        self._away_until_s: dict[str, float] = {}
        self._healed = False
        invariants.on_rows.append(self._rows_committed)

    def schedule(self, faults: Iterable[Fault]) -> None:
        """Arm every fault of the plan."""
        for fault in faults:
            self._later(fault.at_s, self._due, fault)

    def heal(self) -> None:
        """End every fault, bring every process back, and inject nothing more."""
        self._healed = True
        self._aiming.clear()
        self._armed.clear()
        self._away_until_s.clear()
        self.refusals.clear()
        self._world.network.heal()
        for node in (*self._cluster.cores, *self._cluster.workers):
            node.resume()
            self.restart(node)

    # -- when

    def _later(self, delay_s: float, function: Callable[..., Any], *args: Any) -> None:
        self._world.reactor.callLater(delay_s, function, *args)

    def _due(self, fault: Fault) -> None:
        if self._healed:
            return
        if fault.aim is None:
            self._strike(fault, fault.worker)
            return
        self._aiming.append(fault)
        self._later(AIM_LIMIT_S, self._aim_missed, fault)

    def _aim_missed(self, fault: Fault) -> None:
        if fault in self._aiming:
            self._aiming.remove(fault)
            self._strike(fault, fault.worker)

    def _rows_committed(self, node: SimNode, rows: Iterable[TaskRow]) -> None:
        if not self._aiming:
            return
        names = {worker.name: number for number, worker in enumerate(self._cluster.workers)}
        for row in rows:
            state = _state(row)
            for fault in [fault for fault in self._aiming if fault.aim == state]:
                self._aiming.remove(fault)
                self._later(fault.delay_s, self._strike, fault, names.get(row.target_worker or "", fault.worker))

    # -- what

    def _strike(self, fault: Fault, worker_number: int) -> None:
        if self._healed:
            return
        core = self._leader() if fault.at_leader else None
        core = core or self._cluster.cores[fault.core]
        worker = self._cluster.workers[worker_number]
        self._world.trace.record("fault", what=fault.kind.value, core=core.name, worker=worker.name)
        if fault.kind in STORE_KINDS:
            self._strike_store(fault, core)
        elif fault.kind in WORKER_KINDS:
            self._strike_worker(fault, core, worker)
        else:
            self._strike_core(fault, core)

    def _leader(self) -> SimNode | None:
        address = self._cluster.store.leader().address
        return next((node for node in self._cluster.cores if address.startswith(f"{node.ip}:")), None)

    def _hit(self, kind: FaultKind, node: SimNode | None) -> None:
        """Count a fault with the states of the tasks on the node that it hits; None: on all."""
        self.injected += 1
        rows: Iterable[TaskRow] = ()
        if node is None or node is self._leader():
            rows = (row for row in self._invariants.tasks.values() if row.status in _OPEN)
        elif node in self._cluster.workers:
            # What waits belongs to no worker: it may be held for this one.
            name = node.name
            rows = (
                row
                for row in self._invariants.tasks.values()
                if row.status in _OPEN and (row.status == TaskState.PENDING.value or row.target_worker == name)
            )
        self.coverage.hit(kind.value, {_state(row) for row in rows})

    # -- cores

    def _strike_core(self, fault: Fault, node: SimNode) -> None:
        kind, amount_s = fault.kind, fault.amount_s
        if kind in (_K.CORE_BEFORE_STORE, _K.CORE_AFTER_STORE):
            self._arm(fault, node)
            return
        if not node.alive:
            return
        if kind is _K.CORE_CLOCK:
            self._hit(kind, node)
            node.wall.step(round(amount_s * 1000))
        elif kind is _K.CORE_ISOLATED:
            self._hit(kind, node)
            self._world.network.isolate(node)
            self._later(amount_s, self._world.network.heal, node)
        elif kind is _K.CORE_PAUSE:
            if not node.paused:
                self._hit(kind, node)
                self._invariants.disturb(node.name, self._world.reactor.seconds() + amount_s)
                node.pause(amount_s)
        elif kind is _K.CORE_STOP:
            if not node.paused:
                self._hit(kind, node)
                self._stop(node, amount_s)
        else:
            self._hit(kind, node)
            self._crash(node, amount_s, _CRASHES[kind])

    def _stop(self, node: SimNode, amount_s: float) -> None:
        life = node.lives

        def stopped(_: object) -> None:
            if node.lives == life and node.alive:
                node.crash(CrashKind.CLOSE)

        node.app.stopService().addBoth(stopped)
        # Somebody who waits so long kills it.
        self._later(60.0 + amount_s, self._kill_life, node, life)
        self._later(60.0 + amount_s, self.restart, node)

    def _kill_life(self, node: SimNode, life: int) -> None:
        if node.lives == life:
            node.crash()

    def _crash(self, node: SimNode, amount_s: float, kind: CrashKind) -> None:
        node.crash(kind)
        self._later(amount_s, self.restart, node)

    def restart(self, node: SimNode) -> None:
        """Start a process that is dead."""
        if node.alive:
            return
        if node in self._cluster.cores:
            self._cluster.start_core(node)
        else:
            self._cluster.start_worker(node)

    # -- workers and what is between

    def _strike_worker(self, fault: Fault, core: SimNode, node: SimNode) -> None:
        kind, amount_s, network = fault.kind, fault.amount_s, self._world.network
        if not node.alive:
            return
        if kind in _CRASHES:
            self._hit(kind, node)
            self._crash(node, amount_s, _CRASHES[kind])
        elif kind is _K.WORKER_PAUSE:
            if not node.paused:
                self._hit(kind, node)
                node.pause(amount_s)
        elif kind is _K.WORKER_DRAINED:
            if not node.paused and hasattr(node.app, "stopService"):
                self._hit(kind, node)
                self._stop(node, amount_s)
        elif kind is _K.WORKER_CLOCK:
            self._hit(kind, node)
            node.wall.step(round(amount_s * 1000))
        elif kind is _K.WORKER_ISOLATED:
            self._hit(kind, node)
            network.isolate(node)
            self._later(amount_s, network.heal, node)
        elif kind in _PARTITIONS:
            self._hit(kind, node)
            network.partition(core, node, _PARTITIONS[kind])
            self._later(amount_s, network.heal, core, node)
        else:
            self._strike_connections(kind, amount_s, core, node)

    def _strike_connections(self, kind: FaultKind, amount_s: float, core: SimNode, node: SimNode) -> None:
        network = self._world.network
        connections = network.between(core, node)
        if connections:
            self._hit(kind, node)
        for connection in connections:
            if kind is _K.CUT:
                network.cut(connection)
            elif kind in (_K.HALF_OPEN_CORE, _K.HALF_OPEN_WORKER):
                network.half_open(connection, core if kind is _K.HALF_OPEN_CORE else node)
            else:
                network.stall(connection, core if kind is _K.STALL_TO_CORE else node)
                self._later(amount_s, self._release, connection)

    def _release(self, connection: Connection) -> None:
        self._world.network.release(connection)

    # -- the store

    def _strike_store(self, fault: Fault, node: SimNode) -> None:
        kind, now_s = fault.kind, self._world.reactor.seconds()
        if kind is _K.STORE_AWAY_ALL:
            self._hit(kind, None)
            for core in self._cluster.cores:
                self._away(core, now_s + fault.amount_s)
        elif kind is _K.STORE_AWAY:
            self._hit(kind, node)
            self._away(node, now_s + fault.amount_s)
        elif kind in (_K.STORE_REFUSES_NEW, _K.STORE_REFUSES_SET):
            refusal = Refusal(
                new=kind is _K.STORE_REFUSES_NEW,
                until_s=now_s + ARMED_LIMIT_S,
                on_hit=lambda: self._refused(kind, refusal, fault.amount_s),
            )
            self.refusals.append(refusal)
        else:
            self._arm(fault, node)

    def _refused(self, kind: FaultKind, refusal: Refusal, amount_s: float) -> None:
        refusal.until_s = self._world.reactor.seconds() + amount_s
        self._hit(kind, None)

    def _away(self, node: SimNode, until_s: float) -> None:
        self._away_until_s[node.name] = max(until_s, self._away_until_s.get(node.name, 0.0))
        self._invariants.disturb(node.name, until_s + 10.0)

    def _arm(self, fault: Fault, node: SimNode) -> None:
        until_s = self._world.reactor.seconds() + ARMED_LIMIT_S
        self._armed.setdefault(node.name, []).append(_Armed(fault, until_s))

    def hook(self, call: ThreadCall) -> ThreadFault | None:
        """Judge one call of a core to its store."""
        now_s = self._world.reactor.seconds()
        if now_s < self._away_until_s.get(call.node, 0.0):
            return FailBefore(StoreUnavailable("the store is away"))
        armed = self._armed.get(call.node)
        if not armed or call.pool != "writer" or call.function.endswith((".open", ".close")):
            return None
        first = armed.pop(0)
        if now_s > first.until_s:
            return None
        node = self._world.nodes[call.node]
        self._hit(first.fault.kind, node)
        return self._applied(first.fault, node, now_s)

    def _applied(self, fault: Fault, node: SimNode, now_s: float) -> ThreadFault:
        amount_s = fault.amount_s
        self._invariants.disturb(node.name, now_s + 10.0)
        match fault.kind:
            case _K.STORE_FAIL:
                return FailBefore(StoreUnavailable("the call failed"))
            case _K.STORE_LOST:
                return FailAfter(StoreUnavailable("the answer was lost"))
            case _K.STORE_HANG_BEFORE | _K.STORE_HANG_AFTER:
                self._invariants.disturb(node.name, now_s + amount_s + 10.0)
                return Hang(amount_s, before=fault.kind is _K.STORE_HANG_BEFORE)
            case _:
                self._later(amount_s, self.restart, node)
                return Crash(before=fault.kind is _K.CORE_BEFORE_STORE)


_CRASHES = {
    _K.CORE_RESET: CrashKind.RESET,
    _K.CORE_CLOSE: CrashKind.CLOSE,
    _K.CORE_SILENT: CrashKind.SILENT,
    _K.WORKER_KILLED: CrashKind.RESET,
    _K.WORKER_BOUNCED: CrashKind.CLOSE,
    _K.WORKER_SILENT: CrashKind.SILENT,
}
_PARTITIONS = {_K.PARTITION: "both", _K.PARTITION_TO_CORE: "from", _K.PARTITION_TO_WORKER: "to"}


def _state(row: TaskRow) -> str:
    return WAITING if row.status == TaskState.PENDING.value and row.not_before is not None else row.status
