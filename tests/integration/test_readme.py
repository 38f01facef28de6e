"""README.md as a newcomer follows it: its files are written, its commands run in order, its answers compared.

A command that installs or builds is not run; that its target exists is checked. A role of twistd without output shown
below it has a terminal of its own: it runs until the end of the walk. The ports are replaced by free ones.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsched.cli.processes import wait_until
from dsched.client import Client
from dsched.net.ports import free_port

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
LIMIT_S = 90

_BLOCK = re.compile(
    r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_NOT_RUN = re.compile(
    r"make \w+$|pip install \.$|sudo apt-get install [a-z0-9 -]+$|python3 -m venv \.venv$|\. \.venv/bin/activate$"
)
_ROLE = re.compile(r"twistd (?:\S+ )*dsched-(?P<role>core|worker)\b")

# What differs from run to run: instants, ids made of the time, ids of numbers.
_VOLATILE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z|(?<=@)\d{13}|(?<=\"job_id\": \")\d+")


@dataclass(frozen=True, slots=True)
class Step:
    """A command with the output shown below it, or a file to write when `file` is its name."""

    text: str
    shown: str = ""
    file: str = ""


def steps(text: str) -> Iterator[Step]:
    """Return what a document tells to do, in order."""
    for block in _BLOCK.finditer(text):
        if block["file"]:
            yield Step(block["text"], file=block["file"])
        elif block["language"] in ("console", "sh"):
            yield from commands(block["text"])


def commands(block: str) -> Iterator[Step]:
    """Split a block of a terminal at its prompts."""
    assert block.startswith("$ "), block
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command = re.match(r"(?:.*\\\n)*.*\n", part)
        assert command is not None
        yield Step(command[0].rstrip("\n"), shown=part[command.end() :])


def pattern(shown: str) -> str:
    """Return the expression that matches what is shown; `…` stands for anything."""
    masked = _VOLATILE.sub("VOLATILE", shown.strip())
    return ".*?".join(re.escape(piece) for piece in masked.split("…"))


class Walk:
    """A folder, an environment, and the terminals that are open."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.ports = {"8080": str(free_port()), "8081": str(free_port())}
        own = {name: value for name, value in os.environ.items() if not name.startswith("DSCHED_")}
        self._environ = {
            **own,
            "PATH": f"{BIN}{os.pathsep}{own['PATH']}",
            "TMPDIR": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            # What the README leaves to the defaults.
            "DSCHED_LISTEN": self.ports["8080"],
            "DSCHED_ADMIN": self.ports["8081"],
        }
        self._stack = stack
        self._terminals = 0
        self._client = stack.enter_context(Client(f"http://127.0.0.1:{self.ports['8081']}"))

    def with_ports(self, text: str) -> str:
        return re.sub(r"\b808[01]\b", lambda found: self.ports[found[0]], text)

    def take(self, step: Step) -> None:
        """Do one step; fails when its output is not what is shown."""
        role = _ROLE.match(step.text)
        if step.file:
            (self.folder / step.file).write_text(self.with_ports(step.text), encoding="utf-8")
        elif role is not None and not step.shown:
            self._open_terminal(step, role["role"])
        else:
            self._run(step)

    def _run(self, step: Step) -> None:
        done = subprocess.run(
            ["bash", "-c", self.with_ports(step.text)],
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        # A role that refuses to start says so with 2; nothing else in the README fails.
        assert done.returncode == (2 if _ROLE.match(step.text) else 0), f"{step.text}\n{done.stdout}{done.stderr}"
        said = _VOLATILE.sub("VOLATILE", (done.stdout + done.stderr).strip())
        if step.shown:
            assert re.fullmatch(self.with_ports(pattern(step.shown)), said, re.DOTALL), f"$ {step.text}\n{said}"
        assert '{"error":{' not in said or '{"error":{' in step.shown, f"$ {step.text}\n{said}"

    def _open_terminal(self, step: Step, role: str) -> None:
        online = 0 if role == "core" else self._online()
        self._terminals += 1
        screen = self.folder / f"terminal-{self._terminals}"
        with screen.open("w") as output:
            child = subprocess.Popen(
                # Without a shell between, so that the process id is that of the role.
                ["bash", "-c", f"exec {self.with_ports(step.text)}"],
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._stack.callback(self._close_terminal, child, screen)
        ready: Callable[[], bool] = self._client.leads if role == "core" else lambda: self._online() > online
        wait_until(lambda: child.poll() is not None or ready(), LIMIT_S, step.text)
        assert child.poll() is None, f"{step.text}\n{screen.read_text()}"

    def _online(self) -> int:
        return len(self._client.workers())

    @staticmethod
    def _close_terminal(child: subprocess.Popen[bytes], screen: Path) -> None:
        child.terminate()
        try:
            child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise AssertionError(f"still runs\n{screen.read_text()}") from None
        said = screen.read_text()
        # The walk kills one of them; twistd ends by the signal that it was stopped with, after an orderly end.
        assert child.returncode == -signal.SIGKILL or "Server Shut Down" in said, said
        assert "Traceback" not in said, said


def test_every_command_does_what_the_readme_shows(tmp_path: Path) -> None:
    to_run = [step for step in steps(TEXT) if step.file or not _NOT_RUN.match(step.text)]
    assert len(to_run) > 15
    with ExitStack() as stack:
        walk = Walk(tmp_path, stack)
        for step in to_run:
            walk.take(step)


def test_commands_that_are_not_run_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    not_run = [step.text for step in steps(TEXT) if not step.file and _NOT_RUN.match(step.text)]
    made = {command.split()[1] for command in not_run if command.startswith("make ")}
    assert {"demo", "test"} <= made <= targets
    assert "pip install ." in not_run
    assert (ROOT / "pyproject.toml").is_file()


def test_the_reader_of_the_readme_sees_commands_outputs_and_files() -> None:
    terminal = "```console\n$ one \\\n    two\nshown …\n$ three\n```\n"
    text = f"{terminal}\n<!-- file: a.py -->\n```python\nx\n```\n\n```json\n{{}}\n```\n"
    assert list(steps(text)) == [Step("one \\\n    two", "shown …\n"), Step("three"), Step("x\n", file="a.py")]
    assert re.fullmatch(pattern('{"a":1,…}\n'), '{"a":1,"b":2}')
    assert not re.fullmatch(pattern('{"a":1}'), '{"a":2}')
