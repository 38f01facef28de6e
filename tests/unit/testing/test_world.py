"""Whole runs: the same seed gives the same run, in this process and in others. As a program, prints one digest."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from twisted.application.internet import ClientService, backoffPolicy
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory, connectionDone
from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dsched.clock import Clock
from dsched.testing.sim_node import CrashKind, SimNode
from dsched.testing.sim_threads import FailAfter, Hang, SimThreads, ThreadFault
from dsched.testing.world import SimWorld


class Server(Factory["ServerLine"]):
    """What the server's protocols share."""

    noisy = False

    def __init__(self, rows: list[bytes], threads: SimThreads) -> None:
        self.rows = rows
        self.threads = threads
        self.protocol = ServerLine


class Client(Factory["ClientLine"]):
    """What the client's protocols share."""

    noisy = False

    def __init__(self, name: str, clock: Clock, answers: list[bytes]) -> None:
        self.name = name.encode()
        self.clock = clock
        self.answers = answers
        self.protocol = ClientLine


class ServerLine(LineReceiver):
    """Stores each line in a thread and answers when that is done."""

    delimiter = b"\n"
    factory: Server

    def lineReceived(self, line: bytes) -> None:
        Deferred.fromCoroutine(self.store(line))

    async def store(self, line: bytes) -> None:
        try:
            await self.factory.threads.run(self.factory.rows.append, line)
        except OSError:
            return
        self.sendLine(b"stored " + line)


class ClientLine(LineReceiver):
    """Says something now and then, and counts the answers."""

    delimiter = b"\n"
    factory: Client

    def connectionMade(self) -> None:
        self.loop = self.factory.clock.every(5, self.say, name="say", at_once=True)

    def say(self) -> None:
        self.sendLine(self.factory.name + b" %d" % self.factory.clock.wall_ms())

    def lineReceived(self, line: bytes) -> None:
        self.factory.answers.append(line)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.loop.stop()
        reason.trap(ConnectionDone, ConnectionLost)


def server_on(world: SimWorld, rows: list[bytes]) -> Callable[[SimNode], None]:
    def build(node: SimNode) -> None:
        factory = Server(rows, world.threads(node, "store"))
        draw = world.derive_rng(f"faults {node.lives}")
        faults: list[ThreadFault | None] = [FailAfter(OSError("answer lost")), Hang(3), None, None, None]
        factory.threads.hooks.append(lambda call: draw.choice(faults))
        factory.threads.start()
        world.network.listen(node, 8080).listen(factory)

    return build


def client_on(world: SimWorld, answers: list[bytes]) -> Callable[[SimNode], ClientService]:
    def build(node: SimNode) -> ClientService:
        factory = Client(node.name, Clock(node.reactor, wall=node.wall.seconds), answers)
        jitter = world.derive_rng(f"jitter {node.name} {node.lives}").random
        policy = backoffPolicy(0.5, 30.0, 2.0, jitter=jitter)
        endpoint = world.network.connect(node, "core:8080", timeout_s=5)
        service = ClientService(endpoint, factory, retryPolicy=policy, clock=node.reactor)
        service.startService()
        return service

    return build


def one_fault(world: SimWorld, nodes: list[SimNode], builds: dict[str, Callable[[SimNode], Any]]) -> None:
    rng = world.rng
    node = rng.choice(nodes)
    kind = rng.randrange(6)
    if kind == 0:
        node.crash(rng.choice(list(CrashKind)))
        world.reactor.callLater(rng.uniform(0, 60), lambda: node.alive or node.start(builds[node.name]))
    elif kind == 1:
        node.pause(rng.uniform(0.1, 120))
    elif kind == 2:
        world.network.partition(nodes[0], rng.choice(nodes[1:]), rng.choice(["both", "to", "from"]))
        world.reactor.callLater(rng.uniform(1, 90), world.network.heal)
    elif kind == 3:
        node.wall.step(rng.choice([-3_600_000, -1_000, 1_000, 86_400_000]))
    elif world.network.connections:
        connection = rng.choice(list(world.network.connections.values()))
        world.network.cut(connection) if kind == 4 else world.network.half_open(connection, connection.client.node)


def storm(seed: int, hours: float = 1.0) -> tuple[str, int, int]:
    """Run a core and three workers through faults; return the digest, the rows stored and the steps."""
    with SimWorld(seed) as world:
        rows: list[bytes] = []
        nodes = [world.node("core"), *(world.node(f"w{number}", skew_ms=number * 1_000) for number in range(3))]
        builds: dict[str, Callable[[SimNode], Any]] = {node.name: client_on(world, []) for node in nodes}
        builds["core"] = server_on(world, rows)
        for node in nodes:
            node.start(builds[node.name])
        for number in range(int(hours * 40)):
            world.reactor.callLater((number + 1) * 90, one_fault, world, nodes, builds)
        world.run_for(hours * 3_600)
        return world.trace.digest(), len(rows), world.reactor.steps


class StormTests(SynchronousTestCase):
    def test_same_seed_same_run(self) -> None:
        first, second, other = storm(1), storm(1), storm(2)
        self.assertEqual(first, second)
        self.assertNotEqual(first[0], other[0])
        self.assertGreater(min(first[1], other[1]), 500)

    def test_other_processes_with_other_hashes_agree(self) -> None:
        def digests(hash_seed: str) -> str:
            environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
            command = [sys.executable, __file__, *map(str, range(50))]
            return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

        first = digests("1")
        self.assertEqual(len(set(first.split())), 50)
        self.assertEqual(first, digests("2"))


class WorldTests(SynchronousTestCase):
    def test_a_broken_invariant_ends_the_run_with_its_story(self) -> None:
        with SimWorld(5, replay="make replay SEED=5") as world:
            node = world.node("core")
            seen: list[int] = []
            node.reactor.callLater(3, seen.append, 1)

            def invariant() -> None:
                assert not seen, "I2"

            world.invariants.append(invariant)
            error = self.assertRaises(AssertionError, world.run_for, 10)
            self.assertIn("seed 5", error.__notes__[0])
            self.assertIn("make replay SEED=5", error.__notes__[0])
            world.invariants.remove(invariant)

    def test_run_until(self) -> None:
        with SimWorld(5) as world:
            seen: list[int] = []
            world.node("core").reactor.callLater(3, seen.append, 1)
            world.run_until(lambda: bool(seen), 10)
            self.assertEqual(world.reactor.seconds(), 3.0)
            self.assertRaises(AssertionError, world.run_until, lambda: len(seen) > 1, 10)

    def test_names_are_unique(self) -> None:
        with SimWorld(5) as world:
            world.node("core")
            self.assertRaises(ValueError, world.node, "core")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        sys.stdout.write(storm(int(argument), hours=0.1)[0] + "\n")
