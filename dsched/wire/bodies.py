"""The bodies of frames as structs: snake_case here, camelCase on the wire.

Unknown fields are ignored when read, so that a newer peer may say more; a message never carries fields that its
receiver has not agreed to. A struct that the core reads and the worker writes comes in two shapes where the core can
keep bytes as they are (`…In`).
"""

from typing import Annotated, Any, NamedTuple

from dsched.wire.encoding import Meta, Raw, Struct, field

__all__ = [
    "FEATURES",
    "Cancel",
    "Drain",
    "Error",
    "Heartbeat",
    "PlainRequest",
    "Redirect",
    "Register",
    "RegisterAck",
    "Request",
    "Response",
    "ResponseIn",
    "ResultAck",
    "ResultAcks",
    "Resume",
    "ResumeAck",
    "ResumeIn",
    "RunningAttempt",
    "Started",
    "StartedMany",
]

FEATURES = ("started", "resultAck", "cancel", "drain", "resume")
"""What this version speaks beyond the plain protocol; REGISTER offers, REGISTER_ACK accepts."""

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TaskId = Annotated[str, Meta(min_length=1, max_length=128)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Millis = Annotated[float, Meta(ge=0)]
WorkerId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:@/-]{1,128}\Z")]
Port = Annotated[int, Meta(ge=0, le=65_535)]


def _always(value: Any) -> Any:
    """Default of a field that is sent even so: the plain protocol has no optional fields."""
    return field(default_factory=lambda: value)


class _Message(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What all messages share; a field at its default is not sent."""


class PlainRequest(_Message, frozen=True):
    """A dispatch as a plain worker understands it: exactly these nine fields, always all of them. `timeout` in s."""

    job_id: int
    job_name: str
    params: str
    sharding_total: int
    sharding_item: int
    timeout: int
    task_id: str
    retry_count: int
    preload_keys: list[str]


class Request(PlainRequest, frozen=True):
    """A dispatch to a worker with features. `due` and `deadline` are UTC in ms and for people to read: no peer
    measures time by the other's clock."""

    handler: str
    attempt: int
    fence: int
    epoch: int
    run_id: str
    due: int | None = None
    deadline: int | None = None


class Response(_Message, frozen=True):
    """The end of one attempt, as a worker sends it. `success` decides; the status of the header does not.

    `data` is any JSON value, or `Raw` bytes that `dump_strict` made. A plain worker sends the first five fields.
    `outcome` is one of SUCCESS, ERROR, TIMEOUT, REJECTED, CANCELLED; `duration_ms` is how long the handler ran.
    `still_running`: the attempt is over, but its handler has not returned and holds its slot until a second response
    says so.
    """

    job_id: Int64
    task_id: TaskId
    success: bool
    message: str | None = _always("")
    data: Any = _always(None)
    attempt: Count | None = None
    fence: Int64 | None = None
    epoch: Int64 | None = None
    duration_ms: Millis | None = None
    outcome: str | None = None
    error_type: str | None = None
    traceback: str | None = None
    retryable: bool = True
    still_running: bool = False


_NULL = Raw(b"null")


class ResponseIn(Response, frozen=True):
    """The same as the core reads it: `data` stays the JSON bytes that came (`bytes(response.data)`)."""

    data: Raw = _NULL


class Register(_Message, frozen=True):
    """Who a worker is. Without `features` it is plain and gets nothing but the plain protocol."""

    worker_id: WorkerId
    host: Annotated[str, Meta(max_length=255)] = _always("")
    port: Port = _always(0)
    healthy: bool = _always(True)
    last_heartbeat: Int64 = _always(0)
    incarnation: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    features: Annotated[list[Annotated[str, Meta(max_length=32)]], Meta(max_length=64)] | None = None
    client_nonce: Annotated[str, Meta(max_length=128)] | None = None

    @property
    def plain(self) -> bool:
        """Tell whether the worker speaks only the plain protocol."""
        return self.features is None


class RegisterAck(_Message, frozen=True):
    """The worker is known; `features` are those both sides will use, absent for a plain worker."""

    worker_id: str
    features: list[str] | None = None


class RunningAttempt(_Message, frozen=True):
    """An attempt that a resuming worker still has. `elapsed_ms` counts from its start, 0 when it waits."""

    task_id: TaskId
    job_id: Int64
    attempt: Count
    fence: Int64
    started: bool
    elapsed_ms: Millis = 0.0


class Resume(_Message, frozen=True):
    """What a worker offers and what it still has, in one or more chunks.

    The first chunk alone says `group`, `slots`, `weight` and `tags`; every chunk adds to `handlers`, `running` and
    `results`; `last` marks the end.
    """

    group: Name = "default"
    slots: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    tags: list[Name] = []
    handlers: list[Name] = []
    running: list[RunningAttempt] = []
    results: list[Any] = []
    last: bool = True


class ResumeIn(Resume, frozen=True):
    """The same as the core reads it."""

    results: list[ResponseIn] = []


class ResumeAck(_Message, frozen=True):
    """The core has applied all chunks: `terminal` names the reported tasks that need nothing more."""

    terminal: list[str]
    epoch: int


class Started(_Message, frozen=True):
    """One attempt began to run."""

    task_id: TaskId
    job_id: Int64
    attempt: Count


class StartedMany(_Message, frozen=True):
    """The body of STARTED: whatever began since the last such frame."""

    started: list[Started]


class ResultAck(NamedTuple):
    """One result is stored; the worker may forget it."""

    task_id: str
    attempt: int


class ResultAcks(_Message, frozen=True):
    """The body of RESULT_ACK: pairs of task id and attempt, as many as one commit stored.

    `open` repeats those successes that came too late and whose tasks go on: kept, they answer a later attempt.
    """

    acks: list[tuple[str, int]]
    open: list[tuple[str, int]] = []


class Cancel(_Message, frozen=True):
    """Stop this attempt."""

    task_id: TaskId
    attempt: Count
    reason: str = ""


class Drain(_Message, frozen=True):
    """From a worker: I take nothing new. From the core: take nothing new, finish, leave."""

    reason: str = ""


class Redirect(_Message, frozen=True):
    """This core does not lead; `leader` is the `HOST:PORT` of the one that does."""

    leader: Annotated[str, Meta(min_length=1, max_length=300)]


class Error(_Message, frozen=True):
    """Something a peer with features sent was not taken; `code` is stable, `message` is for people."""

    code: str
    message: str


class Heartbeat(_Message, frozen=True):
    """I live. `ping` asks for an answer, `pong` is one and is not answered again. All defaults: an empty body."""

    ping: bool = False
    pong: bool = False
    running: Count = 0
    load: float | None = None
