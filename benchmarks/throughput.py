"""Durable tasks per second, from the first bulk request to the last stored result, with whole processes.

One core, some workers and this client, over loopback. Afterwards every result is read back through the API and compared
with what was sent. In each of several rounds the bare skeleton of `limit.py` and other schedulers can take their turn
with the same work, so that ratios hold on a machine that is not quiet.

    python benchmarks/throughput.py [--tasks 20000] [--workers 2] [--async] [--rounds N]
        [--store sqlite|mariadb|URL] [--synchronous FULL|NORMAL] [--with-limit]
        [--peers huey,dramatiq,celery | all] [--peer-tasks N]

The figures are medians over the rounds; a ratio is the median of those within each round. What is compared with a peer
includes the time to read every result back, as theirs does. The peers need redis-server, and are installed into
`.venv-peers` when they are first asked for.

The last line is one JSON object. The exit code tells whether every result was there, not whether a budget was met.
"""

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dsched_side import KINDS, Times, fresh_stores, measure_dsched
from peer_side import PEERS, PeerFailed, measure_peer, set_up_peers
from report import Report

HERE = Path(__file__).resolve().parent
BUDGETS = {"sqlite": 20_000, "mariadb": 8_000}  # tasks/s
LIMIT_SHARE = 0.45  # of what limit.py reaches in the same round
TIMES_FASTEST = 5
TIMES_CELERY = 15


class Rounds:
    """What the rounds gave: one entry each, but for rounds in which a peer failed."""

    def __init__(self) -> None:
        self.dsched: list[Times] = []
        self.limit: list[float] = []
        self.peers: dict[str, dict[int, dict[str, Any]]] = {}
        self.problems: list[str] = []

    def peer_rates(self) -> dict[str, float]:
        """Return the tasks/s of each peer, medians."""
        return {
            name: median(found["tasks_per_s"] for found in rounds.values())
            for name, rounds in self.peers.items()
            if rounds
        }

    def ratio_to_peer(self, name: str, tasks: int, *, stored_only: bool = False) -> float:
        """Return how many times as fast dsched is, as the median of the rounds."""
        return median(
            tasks / (self.dsched[number].stored_s if stored_only else self.dsched[number].read_s) / found["tasks_per_s"]
            for number, found in self.peers[name].items()
        )


def measure_limit(tasks: int, synchronous: str) -> float:
    """Return the tasks/s of the bare skeleton on this machine, now."""
    done = subprocess.run(
        [sys.executable, str(HERE / "limit.py"), str(tasks), synchronous], capture_output=True, text=True, check=True
    )
    found = re.match(r"\d+", done.stdout)
    assert found, done.stdout
    return float(found[0])


def run_rounds(options: argparse.Namespace, handler: str) -> Rounds:
    """Let everybody take a turn in each round, and tell how it went."""
    rounds = Rounds()
    rounds.peers = {name: {} for name in options.peers}
    with fresh_stores(options.store, options.synchronous) as new_store:
        for number in range(options.rounds):
            times, problems = measure_dsched(options.tasks, options.workers, handler, new_store)
            rounds.dsched.append(times)
            rounds.problems += problems
            _tell(number, "dsched", options.tasks / times.stored_s)
            if options.with_limit:
                rounds.limit.append(measure_limit(options.tasks, options.synchronous))
                _tell(number, "limit", rounds.limit[-1])
            for name in options.peers:
                try:
                    found = measure_peer(name, options.peer_tasks)
                except PeerFailed as error:
                    rounds.problems.append(str(error))
                    continue
                rounds.peers[name][number] = found
                rounds.problems += [f"{name}: {problem}" for problem in found["problems"]]
                _tell(number, name, found["tasks_per_s"])
    return rounds


def report_on(options: argparse.Namespace, handler: str, rounds: Rounds) -> Report:
    """Make figures of the rounds. The budgets are for stores of two kinds, both with every commit on disk."""
    is_durable = options.synchronous == "FULL"
    is_sqlite = options.store == "sqlite" and is_durable
    told = {name: next(iter(found.values())) for name, found in rounds.peers.items() if found}
    report = Report(
        "throughput", tasks=options.tasks, workers=options.workers, handler=handler, rounds=options.rounds,
        store=options.store if options.store in KINDS else "URL",
        synchronous=options.synchronous if options.store == "sqlite" else None,
        peers={name: {key: found.get(key) for key in ("version", "redis", "tasks", "configuration")}
               for name, found in told.items()},
    )  # fmt: skip
    report.problems += rounds.problems
    stored = [options.tasks / times.stored_s for times in rounds.dsched]
    report.add("tasks_per_s", median(stored), "1/s", at_least=BUDGETS.get(options.store) if is_durable else None)
    report.add("tasks_per_s_read_back", median(options.tasks / times.read_s for times in rounds.dsched), "1/s")
    report.add("sending", median(times.sent_s for times in rounds.dsched), "s")
    report.add("to_last_result", median(times.stored_s for times in rounds.dsched), "s")
    report.add("reading_back", median(times.read_s - times.stored_s for times in rounds.dsched), "s")
    if rounds.limit:
        report.add("limit_tasks_per_s", median(rounds.limit), "1/s")
        share = median(rate / limit for rate, limit in zip(stored, rounds.limit, strict=True))
        report.add("ratio_to_limit", share, at_least=LIMIT_SHARE if is_sqlite else None)
    rates = rounds.peer_rates()
    for name, rate in rates.items():
        report.add(f"{name}_tasks_per_s", rate, "1/s")
        report.add(f"{name}_ratio", rounds.ratio_to_peer(name, options.tasks))
    _compare(report, rounds, options.tasks, "fastest_peer", list(rates), TIMES_FASTEST if is_sqlite else None)
    celeries = [name for name in rates if name.startswith("celery")]
    _compare(report, rounds, options.tasks, "celery", celeries, TIMES_CELERY if is_sqlite else None)
    return report


def _compare(
    report: Report, rounds: Rounds, tasks: int, name: str, peers: Sequence[str], at_least: float | None
) -> None:
    """Add the ratios to the fastest of `peers`: with the time to read all results back, and without it."""
    if peers:
        fastest = max(peers, key=rounds.peer_rates().__getitem__)
        report.add(f"ratio_to_{name}", rounds.ratio_to_peer(fastest, tasks), at_least=at_least)
        report.add(f"stored_ratio_to_{name}", rounds.ratio_to_peer(fastest, tasks, stored_only=True))


def _tell(number: int, who: str, rate: float) -> None:
    print(f"round {number + 1}: {who:12} {rate:10,.0f}/s", flush=True)


def _peers(text: str) -> list[str]:
    names = list(PEERS) if text == "all" else [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in PEERS]
    if unknown or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"each once, of {', '.join(PEERS)}; or all; not {text!r}")
    return names


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000, help="tasks a round")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--async", dest="is_async", action="store_true", help="the handler is an async def")
    parser.add_argument("--rounds", type=int, help="default: 5 with peers, else 1")
    parser.add_argument("--store", default="sqlite", help="sqlite or mariadb, made for it, or the URL of a store")
    parser.add_argument(
        "--synchronous", choices=("FULL", "NORMAL"), default="FULL", help="of SQLite, here and in limit.py"
    )
    parser.add_argument("--with-limit", action="store_true", help="run limit.py too; goes with --peers")
    parser.add_argument("--peers", type=_peers, default=[], metavar="NAMES", help=f"some of {','.join(PEERS)}, or all")
    parser.add_argument("--peer-tasks", type=int, help="tasks of a peer a round (default: some 3 to 5 s of each)")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 5 if options.peers else 1
    options.with_limit = options.with_limit or bool(options.peers)
    if min(options.tasks, options.workers, options.rounds, options.peer_tasks or 1) < 1:
        parser.error("--tasks, --workers, --rounds and --peer-tasks must be at least 1")
    if options.synchronous == "NORMAL" and options.store != "sqlite":
        parser.error("--synchronous is for --store sqlite; a URL says it itself")
    return options


def main() -> int:
    options = _options()
    handler = "noop-async" if options.is_async else "noop"
    # So that a polite end of this process ends what it has started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        if options.peers:
            set_up_peers()
    except PeerFailed as error:
        print(error, file=sys.stderr)
        return 2
    return report_on(options, handler, run_rounds(options, handler)).end()


if __name__ == "__main__":
    sys.exit(main())
