"""The options of `dsched demo`, and what it prints."""

import os
import sys
from pathlib import Path
from urllib.parse import quote

import click
from click.core import ParameterSource

from dsched.cli.demo.scene import Plan, play
from dsched.cli.demo.view import open_board
from dsched.errors import ConfigError
from dsched.store.url import open_store

__all__ = ["demo"]

STORE_VARIABLE = "DSCHED_STORE"
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
    "--store",
    envvar=STORE_VARIABLE,
    metavar="URL",
    help=f"Keep the rows in sqlite:///PATH or mysql://…; also {STORE_VARIABLE}.  [default: a temporary SQLite file]",
)
@click.pass_context
def demo(
    context: click.Context, workers: int, shards: int, no_kill: bool, path: Path | None, store: str | None
) -> None:  # fmt: skip
    """Count Python sources on several workers, kill one of them in mid-run, and check the answer.

    Starts a core and its workers on free ports of this machine, and leaves nothing behind but rows in a store that is
    named. Exits with 0 only if every shard ended in SUCCESS and the sum over the shards is what a direct count finds.
    """
    if workers == 1 and not no_kill:
        raise click.UsageError("with one worker there is nobody to take over: use --workers 2 or --no-kill")
    told = "a temporary SQLite file"
    if store is not None:
        source = STORE_VARIABLE if context.get_parameter_source("store") is ParameterSource.ENVIRONMENT else "--store"
        store, shown = _absolute(store, source)
        told = f"{shown} ({source})"
    plan = Plan(workers, shards, kill=not no_kill, path=path and path.resolve(), store=store)
    with open_board() as board:
        board.say(f"the store is {told}")
        ok = play(plan, board)
    sys.exit(0 if ok else 1)


def _absolute(store: str, source: str) -> tuple[str, str]:
    """Return the URL with its path seen from here, for the core runs in a folder of its own, and as it may be shown."""
    kind, separator, path = store.partition(":///")
    if kind == "sqlite" and path and not path.startswith("/"):
        store = f"{kind}{separator}{quote(str(Path.cwd()))}/{path}"
    try:
        if not store.startswith(("sqlite:", "mysql:")):
            raise ConfigError("must be sqlite:///PATH or mysql://USER@HOST:PORT/DATABASE")
        return store, open_store(store, os.environ).url
    except ConfigError as error:
        raise click.UsageError(f"{source}: {error.message.removeprefix('store: ')}") from None
