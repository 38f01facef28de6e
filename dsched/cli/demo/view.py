"""What `dsched demo` shows: a live table on a terminal, one line per change elsewhere."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

__all__ = ["Board", "LineBoard", "TableBoard", "open_board"]

Json = Mapping[str, Any]

_STYLES = {"SUCCESS": "green", "RUNNING": "cyan", "FAILED": "red", "TIMEOUT": "red", "CANCELLED": "red"}
_MOST_ROWS = 30


class Board(Protocol):
    """Where the demo shows how it goes."""

    def say(self, text: str) -> None:
        """Show one sentence for good."""

    def show(self, tasks: Sequence[Json], workers: Mapping[str, str]) -> None:
        """Show the shards, and what each worker is doing, as they are now."""

    def settle(self) -> None:
        """Leave what is shown as it is; from here on there are only sentences."""


class LineBoard:
    """One line per sentence and per change of a shard or a worker."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._seen: dict[str, str] = {}

    def say(self, text: str) -> None:
        """Show one sentence for good."""
        self._line(text)

    def show(self, tasks: Sequence[Json], workers: Mapping[str, str]) -> None:
        """Print what differs from the last time."""
        for task in tasks:
            self._changed(f"shard {task['sharding_item']}", " ".join(filter(None, _cells(task)[1:])))
        for name, doing in workers.items():
            self._changed(name, doing)

    def settle(self) -> None:
        """Do nothing: lines stay anyway."""

    def _changed(self, who: str, what: str) -> None:
        if self._seen.get(who) != what:
            self._seen[who] = what
            self._line(f"  {who}: {what}")

    def _line(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", markup=False, highlight=False)


class TableBoard:
    """A table that is drawn again in place, with sentences above it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def say(self, text: str) -> None:
        """Show one sentence for good."""
        self._live.console.print(text, markup=False, highlight=False)

    def show(self, tasks: Sequence[Json], workers: Mapping[str, str]) -> None:
        """Draw the table again."""
        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for heading in ("shard", "state", "worker", "attempt", "files"):
            table.add_column(heading, justify="right" if heading in ("shard", "files") else "left")
        for task in _most_telling(tasks):
            table.add_row(*_cells(task), style=_STYLES.get(task["status"], ""))
        ended = sum(task["status"] == "SUCCESS" for task in tasks)
        lines = [
            Text(f"{name}: {doing}", style="bold red" if doing == "killed" else "") for name, doing in workers.items()
        ]
        self._live.update(Group(table, Text(f"{ended} of {len(tasks)} shards are done", style="bold"), *lines))

    def settle(self) -> None:
        """Leave the table where it is; sentences come below it."""
        self._live.stop()


def _cells(task: Json) -> tuple[str, str, str, str, str]:
    """Return shard, state, worker, attempt, files."""
    result = task["result"] if task["status"] == "SUCCESS" else None
    return (
        str(task["sharding_item"]),
        str(task["status"]),
        f"on {task['worker_id']}" if task["worker_id"] else "",
        f"attempt {task['attempt']}" if task["attempt"] else "",
        f"{result['files']} files" if result else "",
    )


def _most_telling(tasks: Sequence[Json]) -> Sequence[Json]:
    """Return what fits on a screen: what moves, then what waits, then what is done; by shard."""
    if len(tasks) <= _MOST_ROWS:
        return tasks
    order = {"RUNNING": 0, "DISPATCHED": 0, "FAILED": 0, "TIMEOUT": 0, "SUCCESS": 2}
    chosen = sorted(tasks, key=lambda task: order.get(task["status"], 1))[:_MOST_ROWS]
    return sorted(chosen, key=lambda task: int(task["sharding_item"]))


@contextmanager
def open_board() -> Iterator[Board]:
    """Give the board that suits where the output goes."""
    console = Console()
    if not console.is_terminal:
        yield LineBoard(Console(soft_wrap=True))
        return
    with Live(console=console, refresh_per_second=10) as live:
        yield TableBoard(live)
