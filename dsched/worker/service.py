"""The worker as a Twisted service: it connects, works, and leaves in order."""

from collections.abc import Mapping
from random import Random

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger

from dsched.clock import Clock
from dsched.config import Address
from dsched.errors import ConfigError
from dsched.net.client import ReconnectingClient, core_endpoint
from dsched.worker.handlers import HandlerRegistry
from dsched.worker.ledger import Ledger
from dsched.worker.session import Session, SessionState
from dsched.worker.settings import WorkerSettings

__all__ = ["WorkerService"]

FLUSH_S = 5.0
RECONNECT_S = 3.0
"""Between two attempts to connect. A core that is back waits 5 s for a worker before it gives its work to others."""


class WorkerService(Service):
    """One worker. The incarnation is new for each instance, so an instance is started once.

    `endpoints` maps a name for the log to where a core may be; without it they are made from `settings.cores`. A
    `ledger` that has a file lets the next process of this id go on where this one ended.
    """

    log = Logger()

    def __init__(
        self,
        settings: WorkerSettings,
        clock: Clock,
        rng: Random,
        handlers: HandlerRegistry,
        endpoints: Mapping[str, IStreamClientEndpoint] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.settings = settings.validate()
        if not settings.worker_id:
            raise ConfigError("--id: a worker must have one")
        self._clock = clock
        self.session = Session(settings, handlers, clock, f"{rng.getrandbits(128):032x}", ledger=ledger)
        if endpoints is None:
            addresses = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in settings.cores)
            endpoints = {address: core_endpoint(clock.reactor, address) for address in addresses}
        self._client = ReconnectingClient(endpoints, self.session, clock, rng, backoff_cap_s=RECONNECT_S)
        self._answered: set[str] = set()  # The cores that have taken this worker once.
        self.session.on_ready = self._ready
        self.session.on_redirect = self._follow
        self.session.on_unanswered = self._leave_silent_core

    def startService(self) -> None:
        """Connect, and stay connected."""
        super().startService()
        self.session.start()
        self._client.start()

    def stopService(self) -> Deferred[None]:
        """Drain and leave; the Deferred fires when no connection and no timer is left.

        What has not begun goes back to the core; what runs has `drain_s` to finish; then results have 5 s to be
        confirmed. Without a connection nothing can be confirmed, so that wait falls away. A thread that still runs
        after that ends with the process, and the core gives its task to another worker.
        """
        super().stopService()
        return Deferred.fromCoroutine(self._leave())

    def _ready(self) -> None:
        self._answered.add(self._client.core)
        self._client.succeeded()

    def _leave_silent_core(self) -> None:
        if self.session.state is SessionState.REGISTERING and self._client.core not in self._answered:
            self.log.warn(  # noqa: G010
                "{core} does not answer REGISTER: this may not be its port for workers (8080 by default; 8081 is HTTP)",
                core=self._client.core,
            )
        self._client.move_on()

    def _follow(self, leader: str) -> None:
        """Go to the core that leads, once this one has closed the connection."""
        try:
            self._client.try_next(leader, lambda _: core_endpoint(self._clock.reactor, str(Address.parse(leader))))
        except ValueError as error:
            self.log.error("no core can be at {leader!r}: {error}", leader=leader, error=error)

    async def _leave(self) -> None:
        session = self.session
        session.drain("stopping")
        try:
            await self._clock.within(session.slots.when_idle(), self.settings.drain_s)
        except TimeoutError:
            count = sum(1 for _ in session.slots.unreported())
            self.log.warn("{count} attempts still run, asking them to stop", count=count)  # noqa: G010
            session.slots.ask_all_to_stop()
        try:
            await self._clock.within(session.when_flushed(), FLUSH_S)
        except TimeoutError:
            self.log.warn("{count} results were not confirmed", count=session.ledger.unconfirmed)  # noqa: G010
        await self._client.stop()
        session.stop()
