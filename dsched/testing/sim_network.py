"""A simulated network: endpoints that connect nodes through memory, and the faults that networks have.

Messages are lost only with their connection, as with TCP: a partition holds bytes back, a cut resets, a half-open end
is silent. All latencies and choices come from one random generator.
"""

import errno
import random
from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint

from dsched.testing.sim_clock import SimReactor
from dsched.testing.sim_endpoints import SimClientEndpoint, SimPort, SimServerEndpoint
from dsched.testing.sim_node import CrashKind, Life, SimNode
from dsched.testing.sim_pipe import Link, Pipe
from dsched.testing.sim_transport import Connection, SimTransport
from dsched.testing.trace import Trace

__all__ = ["Connection", "Link", "SimNetwork"]

_FIRST_PORT = 40_000
_PORTS = 20_000


class SimNetwork:
    """All nodes, ports, connections and faults. Addresses are `HOST:PORT`, the host a node's name or IP."""

    def __init__(
        self, reactor: SimReactor, rng: random.Random, trace: Trace, *, default_link: Link | None = None
    ) -> None:
        self.rng = rng
        self.trace = trace
        self.connections: dict[int, Connection] = {}
        self.default_link = default_link or Link()
        self.write_hooks: list[Callable[[SimTransport, bytes], None]] = []
        """Called with what a process hands to its kernel, before it does; a hook may crash the process."""
        self._reactor = reactor
        self._nodes: dict[str, SimNode] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._ports: dict[tuple[str, int], SimPort] = {}
        self._numbers = 0
        self._next_port = 0

    def seconds(self) -> float:
        """Return the simulated time."""
        return self._reactor.seconds()

    def call_later(self, delay_s: float, function: Callable[..., Any], *args: Any) -> None:
        """Arm an event of the network itself, which no crash takes back."""
        self._reactor.callLater(delay_s, function, *args)

    def latency_s(self, source: SimNode, target: SimNode) -> float:
        """Draw the latency of one packet."""
        return self.rng.uniform(*self.link(source, target).latency_s)

    def add(self, node: SimNode) -> None:
        """Connect a node to the network."""
        self._nodes[node.name] = node
        node.on_boot.append(self._booted)

    def listen(self, node: SimNode, address: str | int) -> IStreamServerEndpoint:
        """Return an endpoint that listens at `address` (a port, or `HOST:PORT`) for the present life of `node`."""
        host, port = self._split(node, address)
        return SimServerEndpoint(self, node, host, port)

    def connect(self, node: SimNode, address: str | int, timeout_s: float = 30.0) -> IStreamClientEndpoint:
        """Return an endpoint that connects the present life of `node` to `address`.

        It fails with `ConnectionRefusedError` when nobody listens there, `TimeoutError` when no answer comes in time.
        """
        host, port = self._split(node, address)
        return SimClientEndpoint(self, node, host, port, timeout_s)

    def set_link(self, a: SimNode, b: SimNode, link: Link) -> None:
        """Set how bytes travel between `a` and `b`, both ways, on connections made from now on."""
        self._links[a.name, b.name] = self._links[b.name, a.name] = link

    def link(self, source: SimNode, target: SimNode) -> Link:
        """Return how bytes travel from `source` to `target`."""
        return self._links.get((source.name, target.name), self.default_link)

    def is_blocked(self, source: SimNode, target: SimNode) -> bool:
        """Return whether a partition holds back what `source` sends to `target`."""
        return (source.name, target.name) in self._blocked

    def partition(self, a: SimNode, b: SimNode, direction: str = "both") -> None:
        """Hold back all bytes between two nodes: `both` ways, only `to` b, or only `from` b.

        Open connections stall; new ones time out.
        """
        if direction not in ("both", "to", "from"):
            raise ValueError(f"{direction!r} is not a direction: both, to or from")
        self.trace.record("partition", a=a.name, b=b.name, direction=direction)
        if direction != "from":
            self._blocked[a.name, b.name] = None
        if direction != "to":
            self._blocked[b.name, a.name] = None

    def isolate(self, node: SimNode) -> None:
        """Partition `node` from all others, both ways."""
        for other in self._nodes.values():
            if other is not node:
                self.partition(node, other)

    def heal(self, a: SimNode | None = None, b: SimNode | None = None) -> None:
        """End the partition between two nodes; or all of `a`'s; or all, and all stalls with them."""
        self.trace.record("heal", a=a.name if a else None, b=b.name if b else None)
        names = {node.name for node in (a, b) if node is not None}
        self._blocked = {pair: None for pair in self._blocked if not names.issubset(pair)}
        for connection in list(self.connections.values()):
            for pipe in self._pipes(connection):
                if not names:
                    pipe.stalled = False
                pipe.kick()

    def between(self, a: SimNode, b: SimNode) -> list[Connection]:
        """Return the open connections between two nodes, oldest first."""
        return [
            connection
            for connection in self.connections.values()
            if {connection.client.node.name, connection.server.node.name} == {a.name, b.name}
        ]

    def cut(self, connection: Connection) -> None:
        """Reset a connection in mid-stream: both ends get `ConnectionLost`, each after what still got through.

        An end that does not read learns it when it writes or reads again.
        """
        self.trace.record("cut", connection=connection.number)
        for pipe in self._pipes(connection):
            pipe.reset()

    def half_open(self, connection: Connection, gone: SimNode) -> None:
        """Let the end on node `gone` lose the connection while the other end learns nothing."""
        self.trace.record("half open", connection=connection.number, gone=gone.name)
        end = connection.client if connection.client.node is gone else connection.server
        if end.owner.alive:
            end.owner.call_io(0, end.lose_peer)

    def stall(self, connection: Connection, toward: SimNode | None = None) -> None:
        """Hold back what travels toward a node, or both ways, until `release` (or a general `heal`)."""
        self.trace.record("stall", connection=connection.number, toward=toward.name if toward else None)
        for pipe in self._pipes(connection):
            if toward is None or pipe.sink.node is toward:
                pipe.stalled = True

    def release(self, connection: Connection) -> None:
        """End a stall; what was held arrives in order."""
        self.trace.record("release", connection=connection.number)
        for pipe in self._pipes(connection):
            pipe.stalled = False
            pipe.kick()

    def port_at(self, host: str, port: int) -> SimPort | None:
        """Return who listens at an address."""
        return self._ports.get((host, port))

    def bind(self, port: SimPort, host: str, number: int) -> int:
        """Enter a listening port and return its number; raise `CannotListenError` when it is taken."""
        if number == 0:
            number = self._free_port()
        if (host, number) in self._ports:
            raise CannotListenError(host, number, OSError(errno.EADDRINUSE, "Address already in use"))
        self._ports[host, number] = port
        return number

    def unbind(self, host: str, number: int) -> None:
        """Take a listening port off; idempotent."""
        self._ports.pop((host, number), None)

    def node_at(self, host: str) -> SimNode | None:
        """Return a node with that IP; of several on one machine the first."""
        return next((node for node in self._nodes.values() if node.ip == host), None)

    def establish(self, node: SimNode, owner: Life, port: SimPort) -> Connection:
        """Make the connection that a client on `node` asked `port` for; the server learns of it after a latency."""
        self._numbers += 1
        connection = Connection(self, self._numbers)
        here = IPv4Address("TCP", node.ip, self._free_port())
        there = port.getHost()
        client = connection.client = SimTransport(connection, "client", node, owner, here, there)
        server = connection.server = SimTransport(connection, "server", port.node, port.owner, there, here)
        client.out = server.into = Pipe(self, client, server)
        server.out = client.into = Pipe(self, server, client)
        self.connections[connection.number] = connection
        owner.resources[client] = None
        if port.owner.alive:
            port.owner.resources[server] = None
            client.out.announce(port.accept)
        else:
            server.life_ended(CrashKind.RESET)
        return connection

    def _split(self, node: SimNode, address: str | int) -> tuple[str, int]:
        text = str(address)
        host, _, port = text.rpartition(":")
        if host in ("", "localhost", "127.0.0.1", "0.0.0.0"):
            host = node.ip
        named = self._nodes.get(host)
        return (host if named is None else named.ip), int(port)

    def _free_port(self) -> int:
        self._next_port += 1
        return _FIRST_PORT + self._next_port % _PORTS

    def _pipes(self, connection: Connection) -> tuple[Pipe, Pipe]:
        return connection.client.out, connection.server.out

    def _booted(self, node: SimNode) -> None:
        for connection in list(self.connections.values()):
            for pipe in self._pipes(connection):
                if pipe.sink.node is node:
                    pipe.answer_if_unknown()
