"""Whole runs: the same seed gives the same run, in this process and in others. As a program, prints one digest."""

import os
import subprocess
import sys

from twisted.application.internet import ClientService, backoffPolicy
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory
from twisted.protocols.basic import LineReceiver
from twisted.trial.unittest import SynchronousTestCase

from dsched.clock import Clock
from dsched.testing.sim_node import CrashKind
from dsched.testing.sim_threads import FailAfter, Hang
from dsched.testing.world import SimWorld


class ServerLine(LineReceiver):
    """Stores each line in a thread and answers when that is done."""

    delimiter = b"\n"

    def lineReceived(self, line):
        Deferred.fromCoroutine(self.store(line))

    async def store(self, line):
        try:
            await self.factory.threads.run(self.factory.rows.append, line)
        except OSError:
            return
        self.sendLine(b"stored " + line)


class ClientLine(LineReceiver):
    """Says something now and then, and counts the answers."""

    delimiter = b"\n"

    def connectionMade(self):
        self.loop = self.factory.clock.every(5, self.say, name="say", at_once=True)

    def say(self):
        self.sendLine(self.factory.name + b" %d" % self.factory.clock.wall_ms())

    def lineReceived(self, line):
        self.factory.answers.append(line)

    def connectionLost(self, reason):
        self.loop.stop()
        reason.trap(ConnectionDone, ConnectionLost)


def server_on(world, rows):
    def build(node):
        factory = Factory.forProtocol(ServerLine)
        factory.noisy = False
        factory.rows = rows
        factory.threads = world.threads(node, "store")
        draw = world.derive_rng(f"faults {node.lives}")
        faults = [FailAfter(OSError("answer lost")), Hang(3), None, None, None]
        factory.threads.hooks.append(lambda call: draw.choice(faults))
        world.network.listen(node, 8080).listen(factory)

    return build


def client_on(world, answers):
    def build(node):
        factory = Factory.forProtocol(ClientLine)
        factory.noisy = False
        factory.clock = Clock(node.reactor, wall=node.wall.seconds)
        factory.name = node.name.encode()
        factory.answers = answers
        jitter = world.derive_rng(f"jitter {node.name} {node.lives}").random
        policy = backoffPolicy(0.5, 30.0, 2.0, jitter=jitter)
        endpoint = world.network.connect(node, "core:8080", timeout_s=5)
        service = ClientService(endpoint, factory, retryPolicy=policy, clock=node.reactor)
        service.startService()
        return service

    return build


def one_fault(world, core, workers):
    rng = world.rng
    node = rng.choice([core, *workers])
    kind = rng.randrange(6)
    if kind == 0:
        node.crash(rng.choice(list(CrashKind)))
        rebuild = server_on(world, world.rows) if node is core else client_on(world, world.answers)
        world.reactor.callLater(rng.uniform(0, 60), lambda: node.alive or node.start(rebuild))
    elif kind == 1:
        node.pause(rng.uniform(0.1, 120))
    elif kind == 2:
        world.network.partition(core, rng.choice(workers), rng.choice(["both", "to", "from"]))
        world.reactor.callLater(rng.uniform(1, 90), world.network.heal)
    elif kind == 3:
        node.wall.step(rng.choice([-3_600_000, -1_000, 1_000, 86_400_000]))
    elif world.network.connections:
        connection = rng.choice(list(world.network.connections.values()))
        world.network.cut(connection) if kind == 4 else world.network.half_open(connection, connection.client.node)


def storm(seed, hours=1.0):
    """Run a core and three workers through faults; return the digest, the rows stored and the steps."""
    with SimWorld(seed) as world:
        world.rows, world.answers = [], []
        core = world.node("core")
        workers = [world.node(f"w{number}", skew_ms=number * 1_000) for number in range(3)]
        core.start(server_on(world, world.rows))
        for worker in workers:
            worker.start(client_on(world, world.answers))
        for number in range(int(hours * 40)):
            world.reactor.callLater((number + 1) * 90, one_fault, world, core, workers)
        world.run_for(hours * 3_600)
        return world.trace.digest(), len(world.rows), world.reactor.steps


class StormTests(SynchronousTestCase):
    def test_same_seed_same_run(self):
        first, second, other = storm(1), storm(1), storm(2)
        self.assertEqual(first, second)
        self.assertNotEqual(first[0], other[0])
        self.assertGreater(min(first[1], other[1]), 500)

    def test_other_processes_with_other_hashes_agree(self):
        def digests(hash_seed):
            environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
            command = [sys.executable, __file__, *map(str, range(8))]
            return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

        first = digests("1")
        self.assertEqual(len(set(first.split())), 8)
        self.assertEqual(first, digests("2"))


class WorldTests(SynchronousTestCase):
    def test_a_broken_invariant_ends_the_run_with_its_story(self):
        with SimWorld(5, replay="make replay SEED=5") as world:
            node = world.node("core")
            seen = []
            node.reactor.callLater(3, seen.append, 1)

            def invariant():
                assert not seen, "I2"

            world.invariants.append(invariant)
            error = self.assertRaises(AssertionError, world.run_for, 10)
            self.assertIn("seed 5", error.__notes__[0])
            self.assertIn("make replay SEED=5", error.__notes__[0])
            world.invariants.remove(invariant)

    def test_run_until(self):
        with SimWorld(5) as world:
            seen = []
            world.node("core").reactor.callLater(3, seen.append, 1)
            world.run_until(lambda: bool(seen), 10)
            self.assertEqual(world.reactor.seconds(), 3.0)
            self.assertRaises(AssertionError, world.run_until, lambda: len(seen) > 1, 10)

    def test_names_are_unique(self):
        with SimWorld(5) as world:
            world.node("core")
            self.assertRaises(ValueError, world.node, "core")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        sys.stdout.write(storm(int(argument))[0] + "\n")
