"""What the demo shows."""

import io
from typing import Any

from rich.console import Console
from rich.live import Live

from dsched.cli.demo.view import LineBoard, TableBoard


def task(item: int, status: str, worker: str | None = None, attempt: int = 0, result: Any = None) -> dict[str, Any]:
    return {"sharding_item": item, "status": status, "worker_id": worker, "attempt": attempt, "result": result}


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, soft_wrap=True), out


def said(out: io.StringIO) -> list[str]:
    return [line.partition(" s  ")[2].strip() for line in out.getvalue().splitlines()]


def test_lines_tell_changes_only() -> None:
    screen, out = console()
    board = LineBoard(screen)
    board.say("start [of] it")
    tasks = [task(0, "PENDING"), task(1, "RUNNING", "w", 1)]
    board.show(tasks, {"w": "runs 1"})
    board.show(tasks, {"w": "runs 1"})
    board.show([tasks[0], task(1, "SUCCESS", "w", 1, {"files": 3})], {"w": "killed"})
    assert said(out) == [
        "start [of] it",
        "shard 0: PENDING",
        "shard 1: RUNNING on w attempt 1",
        "w: runs 1",
        "shard 1: SUCCESS on w attempt 1 3 files",
        "w: killed",
    ]


def test_the_table_shows_every_shard_and_worker() -> None:
    screen, out = console()
    with Live(console=screen, auto_refresh=False) as live:
        board = TableBoard(live)
        board.say("above")
        board.show([task(0, "SUCCESS", "w", 2, {"files": 3}), task(1, "PENDING")], {"w": "killed"})
    text = out.getvalue()
    for part in ("above", "SUCCESS", "attempt 2", "3 files", "PENDING", "1 of 2 shards are done", "w: killed"):
        assert part in text


def test_a_long_table_leaves_out_what_waits_or_is_done() -> None:
    screen, out = console()
    with Live(console=screen, auto_refresh=False) as live:
        tasks = [task(item, "SUCCESS", "w", 1, {"files": 1}) for item in range(500)]
        TableBoard(live).show([*tasks, task(500, "RUNNING", "w", 1)], {})
    text = out.getvalue()
    assert "RUNNING" in text
    assert text.count("SUCCESS") == 29
