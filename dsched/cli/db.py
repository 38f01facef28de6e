"""`dsched db`: the schema of a store, whether its rows make sense, and the deletion of old history."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import click

from dsched.errors import ConfigError, DschedError, StoreUnavailable
from dsched.store.adoption import CONSEQUENCE
from dsched.store.interface import Pruned, Store
from dsched.store.migrations import Upgrade, refuse_newer
from dsched.store.mysql import MySqlStore
from dsched.store.reads import SqlReads
from dsched.store.sqlite import SqliteStore
from dsched.store.url import open_store

__all__ = ["db"]

_DEFAULT: Final = "sqlite:///dsched.db"
_UNITS_MS: Final = {"h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PORTION_S: Final = 0.02
_PAUSE: Final = 5
_FEWEST, _FIRST, _MOST = 10, 100, 5_000

_store_option = click.option(
    "--store", "url", envvar="DSCHED_STORE", default=_DEFAULT, show_default=True, metavar="URL",
    help="sqlite:///PATH or mysql://…; also DSCHED_STORE.",
)  # fmt: skip
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def db() -> None:
    """Migrate, check and prune a store; a core may run on it meanwhile."""


@db.command()
@_store_option
@_json_option
def migrate(url: str, as_json: bool) -> None:
    """Create the schema, or bring it up to date. A file of SQLite that has something in it is copied first."""
    store = _named(url)
    assert isinstance(store, SqliteStore | MySqlStore)
    before, _ = store.versions()
    try:
        with _opened(store):
            after, _ = store.versions()
    except (DschedError, click.ClickException):
        _tell_adoption(store.upgrade, err=True)
        raise
    done = store.upgrade
    by_another = before < after and not done.after
    if done.after:
        before, after = done.before, done.after
    backup = str(done.backup) if done.backup else None
    if as_json:
        _print({"from": before, "to": after, "by_another": by_another, "backup": backup, "adopted": done.adopted})
    elif before == after:
        click.echo(f"schema version {after}: nothing to do")
    elif by_another:
        click.echo(f"schema version {after}: another process has migrated it meanwhile")
    else:
        click.echo(f"schema version {before} -> {after}" if before else f"schema version {after} created")
        if backup:
            click.echo(f"as it was before: {backup}")
        _tell_adoption(done)


def _tell_adoption(upgrade: Upgrade, *, err: bool = False) -> None:
    if upgrade.adopted:
        click.echo("table schedule_job was there, and was adopted:", err=err)
        for change in upgrade.adopted:
            click.echo(f"  {change}", err=err)
        click.echo(CONSEQUENCE, err=err)


@db.command()
@_store_option
@_json_option
def check(url: str, as_json: bool) -> None:
    """Tell the schema version, the leader and what is open, and verify that runs and tasks agree.

    Changes nothing. Exits with 1, and says what is wrong, when they do not.
    """
    store = _current(url)
    with _opened(store):
        findings, leader = store.examine(), store.leader()
    version, _ = store.versions()
    if as_json:
        address = leader.address if leader.owner else None
        _print({"schema": version, "leader": address, "epoch": leader.epoch, **asdict(findings)})
    else:
        who = f"{leader.address} leads" if leader.owner else "nobody leads"
        click.echo(f"schema version {version}; {who}, epoch {leader.epoch}")
        click.echo(
            f"{findings.jobs} jobs, {findings.workers} workers; open: {findings.open_runs} runs,"
            f" {findings.open_tasks} tasks"
        )
        for problem in findings.problems:
            click.echo(f"WRONG: {problem}")
        if not findings.problems:
            click.echo("runs and tasks agree")
    sys.exit(1 if findings.problems else 0)


def _age(context: click.Context, parameter: click.Parameter, value: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,5})([hdw])", value)
    if match is None:
        raise click.BadParameter("must be a number with h, d or w, such as 30d")
    return int(match[1]) * _UNITS_MS[match[2]]


@db.command()
@_store_option
@click.option("--older-than", "age_ms", callback=_age, required=True, metavar="AGE", help="Such as 12h, 30d or 8w.")
@click.option("--job", metavar="NAME", help="Only runs of this job.")
@click.option("--dry-run", is_flag=True, help="Only tell how much would be deleted.")
@_json_option
def prune(url: str, age_ms: int, job: str | None, dry_run: bool, as_json: bool) -> None:
    """Delete runs that were created, and have ended, longer ago than that, with their tasks, attempts and logs."""
    store = _current(url)
    before_ms = int(time.time() * 1000) - age_ms
    with _opened(store), _progress(as_json or dry_run) as progress:
        runs, tasks = _portions(
            lambda limit, after: store.prune(before_ms, job, limit, after, dry=dry_run), progress, paced=not dry_run
        )
        rest = 0
        if job is None and not dry_run:
            _, rest = _portions(lambda limit, _: store.prune_rest(before_ms, 0, limit), lambda *_: None, paced=True)
    if as_json:
        _print({"runs": runs, "tasks": tasks, "other_rows": rest, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"would delete {runs} runs with {tasks} tasks")
    else:
        click.echo(f"deleted {runs} runs with {tasks} tasks")


def _portions(
    portion: Callable[[int, str | None], Pruned], progress: Callable[[int, int], None], *, paced: bool
) -> tuple[int, int]:
    """Call `portion` until nothing is left; return how many runs and rows went.

    Paced, a portion is short and followed by a longer pause, so that a core on the same store hardly notices.
    """
    runs = rows = 0
    limit = _FIRST if paced else _MOST
    after: str | None = None
    while True:
        began_s = time.monotonic()
        done = portion(limit, after)
        took_s = time.monotonic() - began_s
        runs, rows, after = runs + done.runs, rows + done.rows, done.next
        progress(runs, rows)
        if after is None:
            return runs, rows
        if paced:
            if took_s > _PORTION_S:
                limit = max(_FEWEST, limit // 2)
            elif took_s < _PORTION_S / 2:
                limit = min(_MOST, limit + limit // 4)
            time.sleep(took_s * _PAUSE)


@contextmanager
def _progress(silent: bool) -> Iterator[Callable[[int, int], None]]:
    """Lend a function that shows how far it is, where somebody watches."""
    if silent or not sys.stderr.isatty():
        yield lambda runs, rows: None
        return
    told_s = 0.0

    def tell(runs: int, rows: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s > 0.2:
            told_s = time.monotonic()
            click.echo(f"\r{runs} runs, {rows} tasks", nl=False, err=True)

    try:
        yield tell
    finally:
        click.echo("\r\x1b[K", nl=False, err=True)


def _named(url: str) -> Store:
    if url == "memory:":
        raise ConfigError("store: memory: lives in a core only; name sqlite:///PATH or mysql://…")
    return open_store(url, os.environ)


def _current(url: str) -> Any:
    """Return the store, if its schema is what this dsched knows: these commands change no schema."""
    store = _named(url)
    assert isinstance(store, SqlReads)
    version, newest = store.versions()
    refuse_newer(version, newest, f"store: {store.url}")
    if version < newest:
        what = f"has schema version {version}, this dsched wants {newest}" if version else "has no schema"
        raise ConfigError(f"store: {store.url} {what}: dsched db migrate")
    return store


@contextmanager
def _opened(store: Store) -> Iterator[None]:
    try:
        store.open()
        yield
    except StoreUnavailable as error:
        raise click.ClickException(f"the store does not answer: {error.message}") from error
    finally:
        store.close()


def _print(answer: dict[str, Any]) -> None:
    click.echo(json.dumps(answer, ensure_ascii=False))
