"""What `twistd dsched-core` and `twistd dsched-worker` run: their options, and the services made of them.

The only importer of the global reactor. `makeService` runs before twistd forks, so it opens nothing.
"""

import atexit
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NoReturn
from urllib.parse import urlsplit

from twisted.application.service import IService, MultiService
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint
from twisted.internet.interfaces import IListeningPort, IStreamServerEndpoint
from twisted.logger import Logger
from twisted.python import usage
from twisted.python.failure import Failure

from dsched import __version__
from dsched.clock import Clock
from dsched.cluster.election import StoreElection
from dsched.cluster.identity import host_identity
from dsched.config import Address, CoreSettings, read_settings, variables_of
from dsched.core.service import CoreService
from dsched.core.threads import PoolThreads
from dsched.engine.settings import EngineSettings
from dsched.errors import ConfigError
from dsched.store.mysql import PASSWORD_VARIABLE
from dsched.store.url import open_store
from dsched.web.server import AdminSite, make_site
from dsched.worker.handlers import HandlerRegistry, load_handlers
from dsched.worker.ledger import Ledger
from dsched.worker.service import WorkerService
from dsched.worker.settings import WorkerSettings, generate_worker_id
from dsched.worker.state_dir import StateDir, default_state_dir

__all__ = ["CoreOptions", "CoreRole", "CoreRoleService", "Ending", "WorkerOptions", "WorkerRole", "WorkerRoleService"]

_SAME_SIGNAL_S = 0.1
_CORE = (CoreSettings, EngineSettings)
_WORKER = (WorkerSettings,)
_WORKER_NAMES = {"cores": "core", "worker_id": "id", "tags": "tag"}
_VARIABLES = variables_of(_CORE) | variables_of(_WORKER, _WORKER_NAMES) | {PASSWORD_VARIABLE}
"""Either role may find those of the other: both are often started from one environment."""


@contextmanager
def _refusing(role: str) -> Iterator[None]:
    """Turn what is wrong with the options into one line and exit code 2; twistd itself would exit with 0."""
    try:
        yield
    except (usage.UsageError, ConfigError) as error:
        sys.stderr.write(f"{role}: {' '.join(str(error).split())}\n")
        raise SystemExit(2) from None


class _RoleOptions(usage.Options):
    """Options that end in settings; None stands for what was not given, so that other sources can speak."""

    role: ClassVar[str]
    settings: Any

    def parseOptions(self, options: Any = None) -> None:
        """Read the command line, the environment and the file; exits with 2 when they cannot be used."""
        with _refusing(self.role):
            super().parseOptions(options)
            given = {name.replace("-", "_"): value for name, value in self.items()}
            self.settings = self.read(given)

    def read(self, given: dict[str, Any]) -> Any:
        """Return the settings; raises `ConfigError`."""
        raise NotImplementedError

    def _add(self, name: str, value: str) -> None:
        self[name] = [*(self[name] or []), value]


class CoreOptions(_RoleOptions):
    """Options of `twistd dsched-core`."""

    role = "dsched-core"
    longdesc = "PORT, HOST:PORT or tcp:PORT:interface=HOST. Every option can also come from DSCHED_NAME or --config."
    optParameters: ClassVar[list[list[Any]]] = [
        ["listen", None, None, "Where workers connect [127.0.0.1:8080]"],
        ["admin", None, None, "Where the HTTP interface is [127.0.0.1:8081]"],
        ["store", None, None, "Where everything is kept [sqlite:///dsched.db]"],
        ["history-days", None, None, "How long ended runs are kept, 0 for ever [30]"],
        ["config", None, None, "TOML file with a table [core]"],
        ["advertise", None, None, "HOST:PORT that workers are told, if not that of --listen"],
        ["admin-url", None, None, "URL that people are told, if not that of --admin"],
    ]

    def read(self, given: dict[str, Any]) -> tuple[CoreSettings, EngineSettings]:
        """Return the settings of the core and of its engine; both are in the table [core]."""
        core, engine = read_settings("core", _CORE, options=given, environ=os.environ, others=_VARIABLES)
        return core, engine


class WorkerOptions(_RoleOptions):
    """Options of `twistd dsched-worker`."""

    role = "dsched-worker"
    longdesc = "Every option can also come from DSCHED_NAME (lists with commas) or --config."
    optParameters: ClassVar[list[list[Any]]] = [
        ["id", None, None, "Name of this worker, its own in the whole cluster [made up once, and kept]"],
        ["state-dir", None, None, "Where results are kept until the core has them [~/.local/state/dsched]"],
        ["group", None, None, "Group of workers that it belongs to [default]"],
        ["slots", None, None, "How many handlers run at the same time [8]"],
        ["weight", None, None, "Its share under weighted routing [1]"],
        ["config", None, None, "TOML file with a table [worker]"],
    ]

    def __init__(self) -> None:
        super().__init__()
        self.update({"core": None, "jobs": None, "tag": None})

    def opt_core(self, address: str) -> None:
        """HOST:PORT of a core; repeat it for several"""
        self._add("core", address)

    def opt_jobs(self, module: str) -> None:
        """MODULE[:ATTR] or FILE.py with handlers; repeat it for several"""
        self._add("jobs", module)

    def opt_tag(self, tag: str) -> None:
        """A tag of this worker; repeat it for several"""
        self._add("tag", tag)

    def read(self, given: dict[str, Any]) -> WorkerSettings:
        """Return the settings of the worker."""
        settings: WorkerSettings
        [settings] = read_settings(
            "worker",
            _WORKER,
            options=given,
            environ=os.environ,
            names=_WORKER_NAMES,
            defaults={"cores": ()},
            others=_VARIABLES,
        )
        return settings


def _exit_with_1() -> NoReturn:
    sys.stdout.flush()
    os._exit(1)


class Ending:
    """How the process of a role ends: in order, at a signal or because it cannot go on; at a second signal, at once.

    A signal within 0.1 s of the first counts as the same one: whoever stops a group of processes, and one of them by
    itself too, sends two. Twisted's own handlers would ask a reactor to stop that is stopping, which is an error.
    """

    log = Logger()

    def __init__(self, role: str, clock: Clock) -> None:
        self._role = role
        self._clock = clock
        self._begun_s: float | None = None
        self._fails = False
        reactor = clock.reactor
        self._first = {signal.SIGINT: reactor.sigInt, signal.SIGTERM: reactor.sigTerm}

    def take_signals(self) -> None:
        """Put this in the place of Twisted's handlers; before the reactor runs."""
        self._clock.reactor.sigInt = self._clock.reactor.sigTerm = self.signalled

    def signalled(self, number: int, frame: FrameType | None = None) -> None:
        """Take a signal: the first stops the reactor, and so the services; the second does not wait for them."""
        # A handler of signals may run in the middle of anything, so what it does waits for the reactor's turn.
        self._clock.reactor.callFromThread(self._take, signal.Signals(number))

    def fail(self) -> None:
        """Stop with exit code 1."""
        # twistd knows no exit code: its end would look like a success.
        atexit.register(_exit_with_1)
        self._fails = True
        if self._begun_s is None:
            self._begun_s = self._clock.monotonic()
            self._clock.reactor.callWhenRunning(self._clock.reactor.stop)

    def _take(self, number: signal.Signals) -> None:
        now_s = self._clock.monotonic()
        if self._begun_s is None:
            self._begun_s = now_s
            self._first[number](number, None)
        elif now_s - self._begun_s > _SAME_SIGNAL_S:
            self.log.warn(  # noqa: G010
                "{signal} again: {role} ends now, without what it waits for", signal=number.name, role=self._role
            )
            if self._fails:
                _exit_with_1()
            # twistd then takes its pid file away, and ends by the signal without a look at the threads that still run.
            self._clock.reactor.crash()


def _new_process(role: str) -> tuple[Clock, Ending]:
    """Return the clock of this process, over the global reactor, on monotonic time; and what ends it."""
    from twisted.internet import reactor

    # Twisted's own choice is wall time, whose steps would move every timer.
    reactor.seconds = time.monotonic  # type: ignore[method-assign]
    clock = Clock(reactor)
    ending = Ending(role, clock)
    ending.take_signals()
    return clock, ending


def _endpoint(clock: Clock, address: Address) -> IStreamServerEndpoint:
    kind = TCP6ServerEndpoint if ":" in address.host else TCP4ServerEndpoint
    endpoint: IStreamServerEndpoint = kind(clock.reactor, address.port, interface=address.host)
    return endpoint


class CoreRoleService(MultiService):
    """The core and its HTTP port. When one of them cannot open, the process says why in one line and exits with 1."""

    log = Logger()

    def __init__(
        self, core: CoreService, site: AdminSite, endpoint: IStreamServerEndpoint, clock: Clock, ending: Ending
    ) -> None:
        super().__init__()
        self._core = core
        self._site = site
        self._endpoint = endpoint
        self._clock = clock
        self._ending = ending
        self._admin: IListeningPort | None = None
        core.setServiceParent(self)

    def startService(self) -> None:
        """Start the core, then open the HTTP port."""
        super().startService()
        Deferred.fromCoroutine(self._open()).addErrback(self._give_up)

    def stopService(self) -> Deferred[None]:
        """Close the HTTP port, then stop the core; the Deferred fires when no timer is left."""
        return Deferred.fromCoroutine(self._close())

    async def _open(self) -> None:
        await self._core.started
        self._admin = await self._endpoint.listen(self._site)

    async def _close(self) -> None:
        if self._admin is not None:
            await maybeDeferred(self._admin.stopListening)
        await maybeDeferred(super().stopService)
        self._clock.stop()

    def _give_up(self, failure: Failure) -> None:
        self.log.critical("dsched-core: {reason}", reason=failure.getErrorMessage())
        self._ending.fail()


class CoreRole:
    """What the plugin `dsched-core` refers to."""

    Options = CoreOptions

    @staticmethod
    def makeService(options: CoreOptions) -> IService:
        """Return the core of these options, not started."""
        settings, engine = options.settings
        clock, ending = _new_process(CoreOptions.role)
        with _refusing(CoreOptions.role):
            store = open_store(settings.store, os.environ)
        writer = PoolThreads(clock.reactor, "dsched-store-writer")
        reader = PoolThreads(clock.reactor, "dsched-store-reader", store.readers)
        told = {"address": settings.worker_address, "admin_url": settings.url}
        # Whoever has bound this very address on this host is the successor of whoever had it before.
        identity = f"{host_identity()}/{settings.listen}"
        core = CoreService(
            clock=clock,
            store=store,
            writer=writer,
            reader=reader,
            election=StoreElection(store, writer, clock, identity=identity, **told),
            endpoint=_endpoint(clock, settings.listen),
            settings=engine,
            rng=random.Random(),
            version=__version__,
            history_days=settings.history_days,
            **told,
        )
        names = [urlsplit(settings.admin_url).netloc] if settings.admin_url else []
        site = make_site(core, port=settings.admin.port, clock=clock, hosts=names)
        return CoreRoleService(core, site, _endpoint(clock, settings.admin), clock, ending)


class WorkerRoleService(MultiService):
    """The worker and the folder of its state. When that cannot be had, the process says why and exits with 1."""

    log = Logger()

    def __init__(self, settings: WorkerSettings, handlers: HandlerRegistry, clock: Clock, ending: Ending) -> None:
        super().__init__()
        self._settings = settings
        self._handlers = handlers
        self._clock = clock
        self._ending = ending
        self._state: StateDir | None = None

    def startService(self) -> None:
        """Open the state, then start the worker that it belongs to."""
        super().startService()
        rng = random.Random()
        settings = self._settings
        try:
            place = Path(settings.state_dir).expanduser() if settings.state_dir else default_state_dir(os.environ)
            made_up = generate_worker_id(socket.gethostname(), rng)
            self._state = StateDir.open(place, settings.worker_id, made_up)
            ledger = Ledger(self._state.ledger_file)
        except ConfigError as error:
            self.log.critical("dsched-worker: {reason}", reason=error.message)
            self._ending.fail()
            return
        if not len(self._handlers):
            self.log.warn("no --jobs: this worker offers no handler, and gets nothing to do")  # noqa: G010
        settings = replace(settings, worker_id=self._state.worker_id)
        worker = WorkerService(settings, self._clock, rng, self._handlers, ledger=ledger)
        worker.setServiceParent(self)

    def stopService(self) -> Deferred[None]:
        """Stop the worker, then let go of its state."""
        return Deferred.fromCoroutine(self._close())

    async def _close(self) -> None:
        await maybeDeferred(super().stopService)
        if self._state is not None:
            self._state.close()


class WorkerRole:
    """What the plugin `dsched-worker` refers to."""

    Options = WorkerOptions

    @staticmethod
    def makeService(options: WorkerOptions) -> IService:
        """Return the worker of these options, with its handlers loaded, not started."""
        with _refusing(WorkerOptions.role):
            handlers = load_handlers(options.settings.jobs)
        return WorkerRoleService(options.settings, handlers, *_new_process(WorkerOptions.role))
