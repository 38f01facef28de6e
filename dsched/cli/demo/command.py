"""The options of `dsched demo`, and what it prints."""

import os
import sys
from pathlib import Path
from urllib.parse import quote

import click

from dsched.cli.demo.scene import Plan, play
from dsched.cli.demo.view import open_board
from dsched.errors import ConfigError
from dsched.store.mysql import parse_url

__all__ = ["demo"]

_MOST_WORKERS = 50
_MOST_SHARDS = 10_000


@click.command()
@click.option("--workers", type=click.IntRange(1, _MOST_WORKERS), default=3, show_default=True, help="Processes.")
@click.option("--shards", type=click.IntRange(1, _MOST_SHARDS), default=10, show_default=True, help="Parts of the run.")
@click.option("--no-kill", is_flag=True, help="Let every worker live.")
@click.option(
    "--path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Count below this folder instead of the standard library.",
)
@click.option(
    "--store", metavar="URL", help="Keep the rows in sqlite:///PATH or mysql://…  [default: a temporary SQLite file]"
)
def demo(workers: int, shards: int, no_kill: bool, path: Path | None, store: str | None) -> None:
    """Count Python sources on several workers, kill one of them in mid-run, and check the answer.

    Starts a core and its workers on free ports of this machine, and leaves nothing behind. Exits with 0 only if every
    shard ended in SUCCESS and the sum over the shards is what a direct count finds.
    """
    if workers == 1 and not no_kill:
        raise click.UsageError("with one worker there is nobody to take over: use --workers 2 or --no-kill")
    plan = Plan(workers, shards, kill=not no_kill, path=path and path.resolve(), store=_absolute(store))
    with open_board() as board:
        ok = play(plan, board)
    sys.exit(0 if ok else 1)


def _absolute(store: str | None) -> str | None:
    """Return the URL with its path seen from here: the core runs in a folder of its own."""
    if store is None:
        return None
    if store.startswith("mysql://"):
        try:
            parse_url(store, os.environ)
        except ConfigError as error:
            raise click.UsageError(f"--store: {error.message.removeprefix('store: ')}") from None
        return store
    kind, separator, path = store.partition(":///")
    if kind != "sqlite" or not path:
        raise click.UsageError("--store: must be sqlite:///PATH or mysql://USER@HOST:PORT/DATABASE")
    return store if path.startswith("/") else f"{kind}{separator}{quote(str(Path.cwd()))}/{path}"
