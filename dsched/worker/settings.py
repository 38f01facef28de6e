"""What a worker is told before it starts."""

import re
from dataclasses import dataclass
from random import Random

from dsched.errors import ConfigError, InvalidValue
from dsched.model.ids import check_group

__all__ = ["MAX_PREFETCH", "WorkerSettings", "generate_worker_id"]

MAX_PREFETCH = 512
"""Requests that may wait in a worker beyond its slots; more are rejected."""

MAX_SLOTS = 1_024

_WORKER_ID = re.compile(r"[A-Za-z0-9._:@/-]{1,128}\Z")
_TAG = re.compile(r"[\x21-\x7e]{1,128}\Z")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of one worker; `validate` before use.

    `cores` are tried in turn. `worker_id` may be empty as long as the worker's state is not opened, which has one;
    `state_dir` is where that is, empty for the user's own place. `slots` is how many handlers run at the same time.
    `jobs` are what `load_handlers` takes. `drain_s` is how long a stop waits for what runs.
    """

    cores: tuple[tuple[str, int], ...]
    worker_id: str = ""
    state_dir: str = ""
    jobs: tuple[str, ...] = ()
    group: str = "default"
    slots: int = 8
    tags: tuple[str, ...] = ()
    weight: int = 1
    host: str = ""
    drain_s: float = 30.0

    def validate(self) -> "WorkerSettings":
        """Return self, or raise `ConfigError` with every problem."""
        problems: list[str] = []
        if not self.cores:
            problems.append("--core: at least one HOST:PORT is needed")
        for host, port in self.cores:
            if not host or not 1 <= port <= 65_535:
                problems.append(f"--core: {host}:{port} is not a HOST:PORT")
        if self.worker_id and not _WORKER_ID.match(self.worker_id):
            problems.append(
                f"--id: must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ / -, not {self.worker_id[:80]!r}"
            )
        try:
            check_group(self.group)
        except InvalidValue as error:
            problems.append(f"--group: {error.reason}")
        if not 1 <= self.slots <= MAX_SLOTS:
            problems.append(f"--slots: must be between 1 and {MAX_SLOTS}, not {self.slots}")
        if not 1 <= self.weight <= 1_000_000:
            problems.append(f"--weight: must be between 1 and 1000000, not {self.weight}")
        problems.extend(
            f"--tag: must be 1 to 128 printable characters without spaces, not {tag[:80]!r}"
            for tag in self.tags
            if not _TAG.match(tag)
        )
        if self.drain_s < 0:
            problems.append(f"the drain time must be at least 0 seconds, not {self.drain_s}")
        if problems:
            raise ConfigError(*problems)
        return self


def generate_worker_id(hostname: str, rng: Random) -> str:
    """Return `HOSTNAME-RANDOM`, an id that no other worker has."""
    name = _NOT_IN_ID.sub("-", hostname)[:80] or "worker"
    return f"{name}-{rng.getrandbits(32):08x}"
