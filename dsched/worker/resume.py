"""What a worker brings to a core that has registered it: what it offers, still runs, and has not had confirmed."""

from collections.abc import Iterable

from dsched.errors import ProtocolError
from dsched.wire.encoding import Raw
from dsched.wire.messages import Resume, RunningAttempt, resume_frames
from dsched.worker.attempt import Attempt
from dsched.worker.handlers import HandlerRegistry
from dsched.worker.ledger import Ledger
from dsched.worker.settings import WorkerSettings

__all__ = ["RESUME_CHUNK_BYTES", "resume_of"]

RESUME_CHUNK_BYTES = 200 * 1024


def resume_of(
    settings: WorkerSettings, handlers: HandlerRegistry, attempts: Iterable[Attempt], ledger: Ledger, now_s: float
) -> list[bytes]:
    """Return the frames of RESUME; `now_s` is monotonic."""
    resume = Resume(
        group=settings.group,
        slots=settings.slots,
        weight=settings.weight,
        tags=list(settings.tags),
        handlers=handlers.names,
        running=[_running(attempt, now_s) for attempt in attempts],
        results=[Raw(body) for body in ledger.bodies()],
    )
    try:
        return resume_frames(resume, max_body=RESUME_CHUNK_BYTES)
    except ProtocolError:
        # One result alone is larger than a chunk should be.
        return resume_frames(resume)


def _running(attempt: Attempt, now_s: float) -> RunningAttempt:
    request, started_s = attempt.request, attempt.started_s
    return RunningAttempt(
        request.task_id,
        request.job_id,
        request.attempt,
        request.fence,
        started_s is not None,
        0.0 if started_s is None else max(0.0, now_s - started_s) * 1000,
    )
