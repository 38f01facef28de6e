"""Workers that break the rules: a connection that is driven by hand, beside honest ones."""

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from dsched.clock import Clock
from dsched.testing.cluster import CORE_PORT, SimCluster
from dsched.testing.world import SimWorld
from dsched.wire.framing import FrameDecoder, encode_frame
from dsched.wire.messages import (
    FEATURES,
    HEARTBEAT_FRAME,
    Error,
    MessageType,
    Register,
    Request,
    Response,
    Resume,
    Started,
    StartedMany,
    decode_error,
    decode_request,
    frame,
    resume_frames,
)
from tests.sim.work import Work


class Stranger(Protocol):
    """Registers as `strange`, beats, and does else what the test says."""

    def __init__(self, clock: Clock, slots: int) -> None:
        self.requests: list[Request] = []
        self.errors: list[Error] = []
        self.acks = 0
        self.gone: Failure | None = None
        self.on_request: Callable[[Request], None] = lambda request: None
        self._clock = clock
        self._slots = slots
        self._decoder = FrameDecoder()

    def connectionMade(self) -> None:
        self.say(frame(Register("strange", incarnation="i", features=list(FEATURES))))
        self.say(*resume_frames(Resume(slots=self._slots, handlers=["work"])))
        self._loop = self._clock.every(10, self.say, HEARTBEAT_FRAME, name="beats")

    def say(self, *frames: bytes) -> None:
        assert self.transport is not None
        self.transport.write(b"".join(frames))

    def dataReceived(self, data: bytes) -> None:
        for received in self._decoder.feed(data):
            if received.type == MessageType.REQUEST:
                request = decode_request(received.body)
                self.requests.append(request)
                self.on_request(request)
            elif received.type == MessageType.ERROR:
                self.errors.append(decode_error(received.body))
            elif received.type == MessageType.RESULT_ACK:
                self.acks += 1

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.gone = reason
        self._loop.stop()


class StrangerFactory(Factory):
    noisy = False

    def __init__(self, stranger: Stranger) -> None:
        self._stranger = stranger

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return self._stranger


def beside(world: SimWorld, cluster: SimCluster, slots: int) -> Stranger:
    """Return a stranger that the core has taken for a worker."""
    node = world.node("strange")
    stranger = Stranger(Clock(node.reactor, wall=node.wall.seconds), slots)
    connected: Deferred[Any] = world.network.connect(node, f"core1:{CORE_PORT}").connect(StrangerFactory(stranger))
    world.run_for(1.0)
    assert connected.called
    assert "strange" in [worker["worker_id"] for worker in cluster.ask(listed)]
    return stranger


async def listed(core: Any) -> Any:
    return core.workers()


def test_a_result_that_is_cut_off_is_refused_by_name_and_fails_its_attempt_at_the_third() -> None:
    """Case B073: the length is right, and the JSON ends in its middle."""
    with SimWorld(73) as world:
        work = Work(0.1)
        cluster = SimCluster(world, work.handlers, workers=0)
        cluster.start()
        cluster.until_ready()
        stranger = beside(world, cluster, 2)
        cluster.ask(lambda core: core.create_job({"name": "work", "sharding_total": 2, "retries": 0}))
        run_id = cluster.ask(lambda core: core.trigger("work", {"key": "k"}))["id"]
        world.run_for(1.0)
        bad, good = sorted(stranger.requests, key=lambda request: request.task_id)
        stranger.say(frame(StartedMany([Started(bad.task_id, bad.job_id, 1), Started(good.task_id, good.job_id, 1)])))
        for number in range(1, 4):
            stranger.say(encode_frame(MessageType.RESPONSE, f'{{"taskId":"{bad.task_id}","succ'.encode()))
            world.run_for(1.0)
            assert [error.code for error in stranger.errors] == ["bad_result"] * number
            assert bad.task_id in stranger.errors[-1].message
            status = cluster.ask(lambda core: core.task(bad.task_id))["status"]
            assert status == ("FAILED" if number == 3 else "RUNNING")
            assert stranger.acks == (number == 3)
        stranger.say(frame(Response(good.job_id, good.task_id, True, data=1, attempt=1, fence=good.fence)))
        assert cluster.until_ended(run_id)["counts"] == {"FAILED": 1, "SUCCESS": 1}
        assert stranger.gone is None


def test_a_worker_that_never_reads_is_dropped_and_its_tasks_run_elsewhere() -> None:
    """Case B094: it beats, and reads nothing of what it is sent."""
    with SimWorld(94) as world:
        work = Work(0.5)
        cluster = SimCluster(world, work.handlers, workers=3, slots=16)
        cluster.start()
        cluster.until_ready()
        stranger = beside(world, cluster, 1000)
        transport: Any = stranger.transport
        transport.pauseProducing()
        body = {"name": "work", "sharding_total": 500, "params": "x" * 100_000, "retries": 1}
        cluster.ask(lambda core: core.create_job(body))
        run_id = cluster.ask(lambda core: core.trigger("work", {}))["id"]
        world.run_for(1.0)
        [peer] = [peer for peer in cluster.cores[0].app._peers.connections.values() if not peer.writable]
        assert 0 < peer.unsent <= 4 * 1_048_576
        given = sum(row.target_worker == "strange" for row in cluster.store.tasks_of(run_id, 1000, None, {}).items)
        assert 0 < given < 60
        world.run_for(20.0)
        # All that is not stuck on the way to it is done by the others meanwhile.
        assert sum(work.ended.values()) == 500 - given
        world.run_for(40.0)
        assert not peer.is_open
        assert cluster.until_ended(run_id, 30.0)["counts"] == {"SUCCESS": 500}
        assert set(work.begun.values()) == {1}
        tasks = cluster.ask(lambda core: core.tasks(run_id, 500, None, {}))["items"]
        assert sum(len(task["attempts"]) == 2 for task in tasks) == given
