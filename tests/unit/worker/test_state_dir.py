"""Who gets which folder, and when it is free again."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsched.errors import ConfigError
from dsched.wire.encoding import Raw
from dsched.wire.messages import Response
from dsched.worker.ledger import Ledger
from dsched.worker.state_dir import FileOnDisk, StateDir, default_state_dir


def result(task_id: str) -> Response:
    return Response(1, task_id, True, "", Raw(b"1"), 1, outcome="SUCCESS")


def test_a_worker_that_is_started_again_finds_its_ledger(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path / "new" / "place", "one", "made-up")
    Ledger(state.ledger_file).add([result("a")])
    state.close()
    state.close()
    again = StateDir.open(tmp_path / "new" / "place", "one", "made-up-too")
    assert again.worker_id == "one"
    assert list(Ledger(again.ledger_file)) == [("a", 1)]
    again.close()
    assert (again.folder / "ledger").stat().st_mode & 0o077 == 0


def test_workers_with_ids_of_their_own_share_a_place(tmp_path: Path) -> None:
    ids = ["one", "two", "1", "a/b:c@d", "..", ".", "generated", "lock"]
    states = [StateDir.open(tmp_path, worker_id, "x") for worker_id in ids]
    assert len({state.folder for state in states}) == len(ids)
    assert all(state.folder.parent == tmp_path for state in states)
    assert [state.worker_id for state in states] == ids
    for state in states:
        state.close()


def test_one_id_is_one_process(tmp_path: Path) -> None:
    first = StateDir.open(tmp_path, "one", "x")
    with pytest.raises(ConfigError, match=rf"worker one runs already .*process {os.getpid()}"):
        StateDir.open(tmp_path, "one", "x")
    first.close()
    StateDir.open(tmp_path, "one", "x").close()


def test_without_an_id_one_is_made_once_and_kept(tmp_path: Path) -> None:
    first = StateDir.open(tmp_path, "", "box-1")
    second = StateDir.open(tmp_path, "", "box-2")
    assert (first.worker_id, second.worker_id) == ("box-1", "box-2")
    first.close()
    again = StateDir.open(tmp_path, "", "box-3")
    assert again.worker_id == "box-1"
    again.close()
    second.close()


def test_of_several_that_are_free_the_last_used_one_comes_first(tmp_path: Path) -> None:
    states = [StateDir.open(tmp_path, "", f"box-{number}") for number in range(3)]
    for number, state in enumerate(states):
        Ledger(state.ledger_file)
        os.utime(state.folder / "ledger", (1_000, 1_000 + (number == 1)))
        state.close()
    assert StateDir.open(tmp_path, "", "box-9").worker_id == "box-1"


def test_a_named_worker_is_never_taken_for_one_without_a_name(tmp_path: Path) -> None:
    StateDir.open(tmp_path, "one", "x").close()
    state = StateDir.open(tmp_path, "", "box-1")
    assert state.worker_id == "box-1"
    state.close()


def test_a_process_that_is_killed_leaves_its_folder_though_its_children_live(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from dsched.worker.state_dir import StateDir\n"
        "state = StateDir.open(Path(sys.argv[1]), 'one', 'x')\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    # The child says so itself: until it runs, it has what its parent had.
    child = int(parent.stdout.readline())
    parent.kill()
    try:
        assert parent.wait(10) == -9
        state = StateDir.open(tmp_path, "one", "x")
        state.close()
    finally:
        os.kill(child, 9)
        parent.stdout.close()


def test_a_place_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--state-dir .*/file/state: Not a directory"):
        StateDir.open(tmp_path / "file" / "state", "one", "x")
    with pytest.raises(ConfigError, match="File name too long"):
        StateDir.open(tmp_path, "/" * 128, "x")


@pytest.mark.parametrize("worker_id", ["one", ""])
def test_a_full_disk_is_told_with_the_file_that_has_no_room(tmp_path: Path, worker_id: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file may grow, which fails where a full disk does: in a write, which knows no name.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(ConfigError) as caught:
            StateDir.open(tmp_path, worker_id, "made-up")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.message == f"--state-dir {tmp_path}: File too large: {tmp_path / (worker_id or 'made-up')}/lock"
    StateDir.open(tmp_path, worker_id, "made-up").close()


@pytest.mark.parametrize(
    ("environ", "place"),
    [({"XDG_STATE_HOME": "/srv/state"}, "/srv/state/dsched"), ({}, "/home/me/.local/state/dsched"),
     ({"XDG_STATE_HOME": "relative"}, "/home/me/.local/state/dsched")],
)  # fmt: skip
def test_the_default_follows_the_rules_of_the_desktop(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], place: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert str(default_state_dir(environ)) == place


def test_a_file_goes_on_where_it_was_replaced(tmp_path: Path) -> None:
    file = FileOnDisk(tmp_path / "ledger")
    assert file.read() == b""
    file.append(b"one\n")
    file.replace(b"two\n")
    file.append(b"three\n")
    assert file.read() == b"two\nthree\n"
    assert file.move_aside() == str(tmp_path / "ledger.damaged")
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.damaged"]
    other = FileOnDisk(tmp_path / "ledger.damaged" / "ledger")
    with pytest.raises(OSError, match="File exists|Not a directory"):
        other.replace(b"x")


def test_a_file_that_is_deleted_while_in_use_is_noticed_and_made_again(tmp_path: Path) -> None:
    """A newcomer deleted the folder under a running worker: results went nowhere, and tasks ran again."""
    folder = tmp_path / "w1"
    folder.mkdir()
    file = FileOnDisk(folder / "ledger")
    file.append(b"one\n")
    shutil.rmtree(folder)
    with pytest.raises(OSError, match="deleted while in use"):
        file.append(b"two\n")
    file.append(b"three\n")
    assert (folder / "ledger").read_bytes() == b"three\n"
    file.close()
