"""docs/history.md: its commands run in order, in an empty folder, and print what is shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_its_commands_do_what_it_says(tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("DSCHED_")}
    environ = {**own, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"}
    steps = [part.partition("\n") for block in BLOCKS for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    assert len(steps) == 4
    for command, _, shown in steps:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        expected = ".*?".join(re.escape(piece) for piece in shown.strip().split("…"))
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(expected, (done.stdout + done.stderr).strip()), (command, done.stdout + done.stderr)
