"""What a peer has to offer so that it can be measured; every `*_peer.py` has one, named `PEER`."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = ["CORES", "REDIS_VARIABLE", "Answer", "Params", "Peer", "redis_url"]

CORES = 2  # the machine of the budgets; each peer is set up for it
REDIS_VARIABLE = "PEER_REDIS_URL"  # tells the modules of the peers, in all their processes

Params = dict[str, int]
Answer = tuple[str, Any]  # the id of a task, and what it returned


def redis_url() -> str:
    """Return where the private Redis server is."""
    return os.environ[REDIS_VARIABLE]


class Peer(ABC):
    """A scheduler or task queue, set up as its documentation says that it is fastest on two cores."""

    package: ClassVar[str]
    """The distribution whose version is told."""
    tasks: ClassVar[int]
    """How many make a round of three to five seconds."""
    configuration: ClassVar[str]
    """How it is set up, in a few words, for the table of results."""
    processes: ClassVar[int] = CORES
    """How many processes run tasks."""

    def worker_commands(self) -> list[list[str]]:
        """Return the commands that start its workers, if commands do."""
        return []

    def open(self) -> None:  # noqa: B027 - not each has something to do
        """Make what the submitter needs; called when the commands have been started."""

    def close(self) -> None:  # noqa: B027
        """Give that back."""

    @abstractmethod
    def run(self, task: str, params: Sequence[Params]) -> list[Answer]:
        """Submit one task for each of `params`, wait until all are done and read every result back, in order.

        `task` is `echo`, which returns its params, or `where`, as in `bodies.py`. Only what the package offers in
        public may be used, and of that what is fastest. A result that does not come is an exception, not a wait
        without end.
        """
