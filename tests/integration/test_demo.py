"""`dsched demo` as a person runs it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-c", "from dsched.cli.main import main; main()", "demo"]
LIMIT_S = 180


def demo(*options: str, temporary: Path, store: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TMPDIR": str(temporary), "DSCHED_STORE": store}
    return subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environ
    )


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo puts its folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Sources whose count is known, and large enough that a shard takes a moment."""
    root = tmp_path / "tree"
    source = "".join(f"def function_{n}():\n    return [{n}]\n\n" for n in range(300)) + "class One:\n    pass\n"
    for number in range(200):
        path = root / f"package_{number % 7}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return root


def test_it_loses_a_worker_and_gets_the_answer_right(temporary: Path) -> None:
    done = demo(temporary=temporary)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"killed worker-\d with SIGKILL while it had shards? \d", done.stdout)
    assert re.search(r"shard \d was on (worker-\d), then on (?!\1)worker-\d", done.stdout)
    assert "the two are equal" in done.stdout
    assert len(re.findall(r"shard \d: SUCCESS", done.stdout)) == 10
    assert list(temporary.iterdir()) == []


def test_it_counts_what_it_is_pointed_at(temporary: Path, tree: Path) -> None:
    done = demo("--path", str(tree), "--workers", "2", "--shards", "7", "--no-kill", temporary=temporary)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = "200 files, 180,400 lines, 60,000 functions, 200 classes, 0 unparsed"
    assert f"sum over shards: {expected}" in done.stdout
    assert f"direct count:    {expected}" in done.stdout
    assert "killed" not in done.stdout
    assert len(re.findall(r"shard \d: SUCCESS", done.stdout)) == 7


def test_a_store_can_be_kept_and_used_again(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "one.py").write_text("x = 1\n")
    options = ("--path", str(tmp_path / "tree"), "--workers", "1", "--shards", "2", "--no-kill")
    for _ in range(2):
        done = demo(*options, "--store", f"sqlite:///{tmp_path / 'kept.db'}", temporary=temporary)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "kept.db").exists()


def test_it_does_the_same_in_mysql(temporary: Path, mysql_url: str) -> None:
    done = demo(temporary=temporary, store=mysql_url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the store is mysql://" in done.stdout
    assert re.search(r"killed worker-\d with SIGKILL while it had shards? \d", done.stdout)
    assert "the two are equal" in done.stdout
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--workers", "0"],
        ["--workers", "many"],
        ["--shards", "0"],
        ["--shards", "10001"],
        ["--workers", "1"],
        ["--path", "/nowhere"],
        ["--path", __file__],
        ["--store", "postgres://root@localhost/x"],
        ["--store", "mysql://root:secret@localhost"],
        ["--nonsense"],
        ["more"],
    ],
)
def test_wrong_use_is_one_line_and_code_2(temporary: Path, options: list[str]) -> None:
    done = demo(*options, temporary=temporary)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"dsched: [^\n]+\n", done.stderr)
    assert list(temporary.iterdir()) == []


AS_FROM_A_TERMINAL = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(temporary: Path, number: signal.Signals) -> None:
    environ = {**os.environ, "TMPDIR": str(temporary), "DSCHED_STORE": ""}
    # As from a terminal: a shell that starts the tests in the background has them ignore SIGINT, and so their children.
    with subprocess.Popen(
        [sys.executable, "-c", AS_FROM_A_TERMINAL, *COMMAND],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
    ) as child:
        assert child.stdout is not None
        said = ""
        while "RUNNING" not in said:
            line = child.stdout.readline()
            assert line, said
            said += line
        child.send_signal(number)
        rest = child.stdout.read()
        assert child.wait(LIMIT_S) in (130, 143)
    assert "Traceback" not in rest
    assert list(temporary.iterdir()) == []
    assert children_of(temporary) == []


def children_of(folder: Path) -> list[str]:
    """Return the processes whose working folder is below `folder`; a process that ends has a moment to do so."""
    deadline = time.monotonic() + 5
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "cwd").startswith(str(folder)):
                    found.append(entry.name)
            except OSError:
                continue
        if not found or time.monotonic() > deadline:
            return found
