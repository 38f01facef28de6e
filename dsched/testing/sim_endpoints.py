"""Endpoints and listening ports of the simulated network, for code that speaks Twisted's endpoint interfaces."""

import errno
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import (
    CannotListenError,
    ConnectingCancelledError,
    ConnectionRefusedError,
    DNSLookupError,
    NoProtocol,
    TimeoutError,
)
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from dsched.testing.sim_clock import SimCall
from dsched.testing.sim_node import CrashKind, Life, SimNode
from dsched.testing.sim_transport import SimTransport

if TYPE_CHECKING:
    from dsched.testing.sim_network import SimNetwork

__all__ = ["SimClientEndpoint", "SimPort", "SimServerEndpoint"]

# When a connection request without an answer is repeated, in seconds after the first (as Linux does).
_REPEATS_S = (1.0, 3.0, 7.0, 15.0, 31.0, 63.0)


@implementer(IStreamServerEndpoint)
class SimServerEndpoint:
    """Listens for one life of a node."""

    def __init__(self, network: "SimNetwork", node: SimNode, host: str, port: int) -> None:
        self._network = network
        self._node = node
        self._owner = node.reactor
        self._host = host
        self._port = port

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """Listen; fail with `CannotListenError` when the port is taken or the address is another machine's."""
        port = SimPort(self._network, self._node, self._owner, self._host, self._port, protocolFactory)
        try:
            port.startListening()
        except CannotListenError:
            return fail()
        return succeed(port)


@implementer(IListeningPort)
class SimPort:
    """A listening port of one life of a node."""

    log = Logger()

    def __init__(
        self, network: "SimNetwork", node: SimNode, owner: Life, host: str, number: int, factory: IProtocolFactory
    ) -> None:
        self.node = node
        self.owner = owner
        self._network = network
        self._host = host
        self._number = number
        self._factory: Any = factory
        self._listening = False

    def startListening(self) -> None:
        """Listen; raise `CannotListenError` when the port is taken or the address is another machine's."""
        if not self.owner.alive:
            return
        if self._host != self.node.ip:
            cause = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            raise CannotListenError(self._host, self._number, cause)
        self._number = self._network.bind(self, self._host, self._number)
        self._listening = True
        self.owner.resources[self] = None
        self._network.trace.record("listen", node=self.node.name, port=self._number)
        self._factory.doStart()

    def stopListening(self) -> Deferred[None]:
        """Stop; the Deferred fires at the next turn. Connections not yet accepted are reset."""
        done: Deferred[None] = Deferred()
        if self._listening:
            self._listening = False
            self._network.unbind(self._host, self._number)
            self.owner.resources.pop(self, None)
            self._network.trace.record("stop listening", node=self.node.name, port=self._number)
        self.owner.callLater(0, self._stopped, done)
        return done

    def getHost(self) -> IPv4Address:
        """Return the address, with the real number where 0 was asked for."""
        return IPv4Address("TCP", self._host, self._number)

    def accept(self, transport: SimTransport) -> None:
        """Build a protocol for a connection that has arrived."""
        if not self._listening:
            transport.refuse()
            return
        transport.connection.record("accept", transport)
        try:
            protocol = self._factory.buildProtocol(transport.getPeer())
        except Exception:
            self.log.failure("could not build a protocol")
            protocol = None
        if protocol is None:
            transport.refuse()
        else:
            transport.attach(protocol)

    def life_ended(self, kind: CrashKind) -> None:
        """The listening process is gone."""
        self._listening = False
        self._network.unbind(self._host, self._number)

    def _stopped(self, done: Deferred[None]) -> None:
        self._factory.doStop()
        done.callback(None)


@implementer(IStreamClientEndpoint)
class SimClientEndpoint:
    """Connects one life of a node."""

    def __init__(self, network: "SimNetwork", node: SimNode, host: str, port: int, timeout_s: float) -> None:
        self._network = network
        self._node = node
        self._owner = node.reactor
        self._host = host
        self._port = port
        self._timeout_s = timeout_s

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect; cancelling the Deferred gives the attempt up."""
        attempt = _Attempt(self._network, self._node, self._owner, self._host, self._port, protocolFactory)
        return attempt.start(self._timeout_s)


class _Attempt:
    """One attempt to connect: the request may be held back, repeated, refused, answered, or time out."""

    def __init__(
        self, network: "SimNetwork", node: SimNode, owner: Life, host: str, port: int, factory: IProtocolFactory
    ) -> None:
        self._network = network
        self._node = node
        self._owner = owner
        self._host = host
        self._port = port
        self._factory: Any = factory
        self._done: Deferred[IProtocol] = Deferred(self._cancel)
        self._repeats = iter(_REPEATS_S)
        self._started_s = network.seconds()
        self._timer: SimCall | None = None

    def start(self, timeout_s: float) -> Deferred[IProtocol]:
        """Send the first request."""
        if self._owner.alive:
            self._owner.resources[self] = None
            self._timer = self._owner.callLater(timeout_s, self._fail, TimeoutError())
            self._factory.doStart()
            if self._network.node_at(self._host) is None:
                self._owner.call_io(0, self._fail, DNSLookupError(f"no node has the address {self._host}"))
            else:
                self._request()
        return self._done

    def life_ended(self, kind: CrashKind) -> None:
        """The connecting process is gone; its timers went with it."""

    def _target(self) -> SimNode:
        port = self._network.port_at(self._host, self._port)
        target = self._network.node_at(self._host) if port is None else port.node
        assert target is not None
        return target

    def _request(self) -> None:
        if not self._waiting():
            return
        target = self._target()
        if self._network.is_blocked(self._node, target):
            self._repeat()
        else:
            self._network.call_later(self._network.latency_s(self._node, target), self._asked)

    def _asked(self) -> None:
        if not self._waiting():
            return
        port = self._network.port_at(self._host, self._port)
        target = self._target()
        if self._network.is_blocked(target, self._node) or (port is None and not target.powered):
            self._repeat()
            return
        delay_s = self._network.latency_s(target, self._node)
        if port is None:
            self._owner.call_io(delay_s, self._fail, ConnectionRefusedError())
        else:
            self._owner.call_io(delay_s, self._established, port)

    def _repeat(self) -> None:
        after_s = next(self._repeats, None)
        while after_s is not None and self._started_s + after_s < self._network.seconds():
            after_s = next(self._repeats, None)
        if after_s is not None:
            self._network.call_later(self._started_s + after_s - self._network.seconds(), self._request)

    def _established(self, port: SimPort) -> None:
        if not self._waiting():
            return
        self._finish()
        connection = self._network.establish(self._node, self._owner, port)
        transport = connection.client
        connection.record("connect", transport, port=self._port)
        try:
            protocol = self._factory.buildProtocol(transport.getPeer())
            if protocol is None:
                raise NoProtocol()
        except Exception:
            reason = Failure()
            transport.refuse()
            self._factory.doStop()
            self._done.errback(reason)
            return
        transport.on_lost = self._factory.doStop
        transport.attach(protocol)
        if not transport.disconnected:
            self._done.callback(protocol)

    def _fail(self, error: Exception) -> None:
        if self._waiting():
            self._finish()
            self._network.trace.record("no connection", node=self._node.name, port=self._port, why=type(error).__name__)
            self._factory.doStop()
            self._done.errback(error)

    def _cancel(self, done: Deferred[IProtocol]) -> None:
        self._finish()
        self._factory.doStop()
        done.errback(ConnectingCancelledError(IPv4Address("TCP", self._host, self._port)))

    def _waiting(self) -> bool:
        return self._owner.alive and self in self._owner.resources

    def _finish(self) -> None:
        self._owner.resources.pop(self, None)
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
