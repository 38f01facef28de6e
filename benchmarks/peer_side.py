"""One measurement of another scheduler, by `peers/run.py` in a virtual environment made when it is first needed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["PEERS", "PeerFailed", "measure_peer", "set_up_peers"]

HERE = Path(__file__).resolve().parent
PEERS = ("celery", "celery-solo", "dramatiq", "huey", "saq", "taskiq", "dask", "rq")
ENVIRONMENT = HERE.parent / ".venv-peers"
REQUIREMENTS = HERE / "peers" / "requirements.txt"
DONE_WITHIN_S = 300.0
_STOPPED_WITHIN_S = 30.0


class PeerFailed(Exception):
    """A peer could not be installed or measured; the message says why."""


def set_up_peers() -> None:
    """Make the virtual environment, or bring it up to date, unless it has what the requirements say."""
    stamp, wanted = ENVIRONMENT / "ready", REQUIREMENTS.read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    print(f"Installing the peers into {ENVIRONMENT.name}", flush=True)
    python = str(_python())
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(REQUIREMENTS)]
    for command in ([sys.executable, "-m", "venv", str(ENVIRONMENT)], pip):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerFailed(f"the peers could not be installed\n{(done.stdout + done.stderr)[-2000:]}")
    stamp.write_text(wanted, encoding="utf-8")


def measure_peer(name: str, tasks: int | None) -> dict[str, Any]:
    """Return what `peers/run.py` found, problems with results included; raises `PeerFailed` when it found nothing."""
    command = [str(_python()), str(HERE / "peers" / "run.py"), "--peer", name]
    if tasks is not None:
        command += ["--tasks", str(tasks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            said, complaints = child.communicate(timeout=DONE_WITHIN_S)
        except BaseException as error:
            # Politely: it has processes of its own to end.
            child.terminate()
            try:
                child.communicate(timeout=_STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                child.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise PeerFailed(f"{name} was not done within {DONE_WITHIN_S:g} s") from None
            raise
    try:
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        raise PeerFailed(f"{name} ended with {child.returncode}\n{complaints[-2000:]}") from None
    return found


def _python() -> Path:
    return ENVIRONMENT / "bin" / "python"
