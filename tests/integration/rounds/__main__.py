"""Play many rounds: `python -m tests.integration.rounds CAMPAIGN=ROUNDS ...`, such as `core=100 stop=30`."""

import argparse
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.integration.rounds.campaign import campaigns, start

LANES = 4


def main() -> int:
    """Play what is asked for, print the figures of each campaign, and return 1 if a round has failed."""
    known = campaigns(long=True)
    parser = argparse.ArgumentParser(prog="python -m tests.integration.rounds")
    parser.add_argument("asked", nargs="+", metavar="CAMPAIGN=ROUNDS", help=f"CAMPAIGN is one of {', '.join(known)}")
    parser.add_argument("--store", choices=("sqlite", "mariadb"), default="sqlite", help="for those that take either")
    parser.add_argument("--folder", type=Path, help="where stores and logs are kept [a temporary folder]")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeats choices, not times")
    parser.add_argument("--lanes", type=int, default=LANES, help="clusters at a time")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="dsched-rounds-"))
    sys.stdout.write(f"seed {options.seed}, folder {folder}\n")
    failed, on_server = False, options.store == "mariadb"
    with ThreadPoolExecutor(options.lanes) as pool:
        running = []
        for asked in options.asked:
            name, _, rounds = asked.partition("=")
            running.append(start(known[name], int(rounds), folder, pool, options.seed, on_server=on_server))
        for campaign in running:
            summary, failures = campaign.summary()
            failed |= bool(failures)
            sys.stdout.write("".join(f"{line}\n" for line in [*failures, summary]))
            sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main())
