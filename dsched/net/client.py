"""The calling end: one connection to any of several cores, made again and again until it is stopped."""

import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.endpoints import HostnameEndpoint, clientFromString
from twisted.internet.interfaces import IAddress, IDelayedCall, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure

from dsched.clock import Clock
from dsched.errors import ProtocolError
from dsched.net.outbox import HIGH_WATER
from dsched.net.protocol import FramedProtocol, FrameHandler
from dsched.wire.framing import Frame

__all__ = ["ReconnectingClient", "core_endpoint"]

STOP_TIMEOUT_S = 1.0
MAX_CORES = 64

_HOST_PORT = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[0-9A-Fa-f:.]+\]):)?(?P<port>\d{1,5})")


def core_endpoint(reactor: Any, address: str) -> IStreamClientEndpoint:
    """Return the endpoint for `PORT` (on loopback), `HOST:PORT`, or a Twisted client string; ValueError otherwise."""
    match = _HOST_PORT.fullmatch(address)
    if match is None:
        endpoint: IStreamClientEndpoint = clientFromString(reactor, address)
        return endpoint
    host = (match["host"] or "127.0.0.1").strip("[]")
    return HostnameEndpoint(reactor, host, int(match["port"]))


class _PeerFactory(Factory):
    noisy = False

    def __init__(self, make_peer: Callable[[], FramedProtocol]) -> None:
        self._make_peer = make_peer

    def buildProtocol(self, addr: IAddress | None) -> FramedProtocol:
        return self._make_peer()


class ReconnectingClient:
    """Keeps one connection open and tells `handler` about it.

    After an attempt that failed, or a connection that ended, it waits a random time between 0 and
    `backoff_base_s × 2^n` (at most `backoff_cap_s`), where n counts full rounds over all cores without a success. The
    handler says what success is by calling `succeeded`, so a core that accepts and then closes is no success. An
    attempt that takes longer than `connect_timeout_s` has failed.
    """

    log = Logger()

    def __init__(
        self,
        endpoints: Mapping[str, IStreamClientEndpoint],
        handler: FrameHandler,
        clock: Clock,
        rng: Random,
        *,
        backoff_base_s: float = 0.5,
        backoff_cap_s: float = 30.0,
        connect_timeout_s: float = 10.0,
        high_water: int = HIGH_WATER,
    ) -> None:
        if not endpoints:
            raise ValueError("no core to connect to")
        self.failures = 0
        self._endpoints = list(endpoints.items())
        self._handler = handler
        self._clock = clock
        self._rng = rng
        self._backoff_base_s = backoff_base_s
        self._backoff_cap_s = backoff_cap_s
        self._connect_timeout_s = connect_timeout_s
        self._high_water = high_water
        self._index = 0
        self._next_index: int | None = None
        self._next: int | None = None
        self._wanted = False
        self._peer: FramedProtocol | None = None
        self._task: Deferred[None] | None = None
        self._gone: Deferred[None] | None = None
        self._stop_timer: IDelayedCall | None = None
        self._stop_waiters: list[Deferred[None]] = []

    @property
    def core(self) -> str:
        """Return the name of the core that is, or is to be, connected."""
        return self._endpoints[self._index][0]

    def start(self) -> None:
        """Connect now and stay connected until `stop`; idempotent, and allowed again after `stop`."""
        self._wanted = True
        if self._task is None:
            self._begin()

    def stop(self) -> Deferred[None]:
        """Stay away: cancel an attempt or a wait at once, close an open connection within 1 s.

        The Deferred fires when nothing is left: no connection, no timer, no later attempt.
        """
        self._wanted = False
        done: Deferred[None] = Deferred()
        self._stop_waiters.append(done)
        if self._peer is not None:
            self._clock.cancel(self._stop_timer)
            self._stop_timer = self._clock.call_later(STOP_TIMEOUT_S, self._peer.abort)
            self._peer.close()  # Last: a transport may lose its connection before this returns.
        elif self._task is not None:
            self._task.cancel()
        else:
            self._tell_stopped()
        return done

    def succeeded(self) -> None:
        """Count the present connection as good: the next wait is short again, and tries the same core first."""
        self.failures = 0

    def go_to(self, core: str, endpoint: IStreamClientEndpoint) -> None:
        """Try `core` next, at once: another core said that it leads. A core that is not known yet joins the rounds."""
        names = [name for name, _ in self._endpoints]
        if core not in names:
            self._endpoints.append((core, endpoint))
            names.append(core)
        self._next = names.index(core)

    def move_on(self) -> None:
        """Try the next core after the present connection, without a wait: this one does not answer."""
        self._next = (self._index + 1) % len(self._endpoints)

    def try_next(self, core: str, make_endpoint: Callable[[str], IStreamClientEndpoint]) -> None:
        """Try `core` after the present connection; it is made by `make_endpoint` and remembered when it is new."""
        names = [name for name, _ in self._endpoints]
        if core not in names:
            if len(names) >= MAX_CORES:
                return
            self._endpoints.append((core, make_endpoint(core)))
            names.append(core)
        self._next_index = names.index(core)

    # FrameHandler, between the protocol and the real handler.

    def connected(self, peer: FramedProtocol) -> None:
        if self._peer is not None or not self._wanted:
            # A host name with two addresses can win twice.
            peer.abort()
            return
        self._peer = peer
        self._handler.connected(peer)

    def frames_received(self, peer: FramedProtocol, frames: list[Frame]) -> None:
        self._handler.frames_received(peer, frames)

    def protocol_failed(self, peer: FramedProtocol, error: ProtocolError) -> None:
        self._handler.protocol_failed(peer, error)

    def disconnected(self, peer: FramedProtocol, reason: Exception) -> None:
        if peer is not self._peer:
            return
        self._peer = None
        self._clock.cancel(self._stop_timer)
        try:
            self._handler.disconnected(peer, reason)
        finally:
            if self._gone is not None:
                self._gone.callback(None)

    # The loop.

    def _begin(self) -> None:
        self.failures = 0
        task = self._task = Deferred.fromCoroutine(self._run())
        task.addBoth(self._ended)

    async def _run(self) -> None:
        while self._wanted:
            await self._connect_once()
            if self._next is not None:
                # One hop without a wait; a core that sends us on to itself, or in circles, is waited for as usual.
                self._index, self._next = self._next, None
                if self.failures <= len(self._endpoints):
                    continue
            if self._wanted:
                await self._clock.sleep(self._next_delay_s())

    async def _connect_once(self) -> None:
        """Return when a connection has ended, or could not be made."""
        core, endpoint = self._endpoints[self._index]
        self.failures += 1
        gone: Deferred[None] = Deferred()
        self._gone = gone
        attempt = maybeDeferred(endpoint.connect, _PeerFactory(self._make_peer))
        timeout = self._clock.call_later(self._connect_timeout_s, attempt.cancel)
        try:
            await attempt
        except Exception as error:
            self.log.info("no connection to core {core}: {error}", core=core, error=error)
        finally:
            self._clock.cancel(timeout)
        if self._peer is not None:
            await gone
        self._gone = None
        if self._next_index is not None:
            self._index, self._next_index = self._next_index, None
        elif self.failures:
            self._index = (self._index + 1) % len(self._endpoints)
        self._tell_stopped()

    def _make_peer(self) -> FramedProtocol:
        return FramedProtocol(self, self._clock, high_water=self._high_water)

    def _next_delay_s(self) -> float:
        rounds = min(self.failures // len(self._endpoints), 32)
        return self._rng.uniform(0.0, min(self._backoff_cap_s, self._backoff_base_s * 2**rounds))

    def _ended(self, result: Any) -> None:
        self._task = None
        if isinstance(result, Failure) and not result.check(CancelledError):
            self.log.failure("the connection loop to the cores failed", result)
        self._tell_stopped()

    def _tell_stopped(self) -> None:
        waiters, self._stop_waiters = self._stop_waiters, []
        for waiter in waiters:
            waiter.callback(None)
