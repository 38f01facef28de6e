"""Results stay until they are confirmed, also over the end of the process."""

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsched.errors import ConfigError
from dsched.wire.encoding import Raw, encode
from dsched.wire.messages import Response, decode_response
from dsched.worker import ledger as ledger_module
from dsched.worker.ledger import HEADER, Ledger


class MemoryFile:
    """A file whose writes can be made to fail."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self.aside = b""
        self.fails = False
        self.writes_before_failure = 0  # Bytes that get through before an append fails.
        self.replaced = 0

    def read(self) -> bytes:
        return self.data

    def append(self, data: bytes) -> None:
        if self.fails:
            self.data += data[: self.writes_before_failure]
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += data

    def replace(self, data: bytes) -> None:
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data = data
        self.replaced += 1

    def move_aside(self) -> str:
        self.aside, self.data = self.data, b""
        return "aside"


class Unreadable(MemoryFile):
    def read(self) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


class Immovable(Unreadable):
    def move_aside(self) -> str:
        raise OSError(errno.EACCES, "Permission denied")


def result(task_id: str, attempt: int, outcome: str = "SUCCESS", data: Any = None) -> Response:
    return Response(1, task_id, outcome == "SUCCESS", "", Raw(encode(data)), attempt, outcome=outcome)


# In memory.


def test_a_failure_stays_until_its_own_attempt_is_confirmed() -> None:
    ledger = Ledger()
    ledger.add([result("a", 1, "ERROR"), result("a", 2, "TIMEOUT")])
    ledger.add([result("b", 1)])
    assert list(ledger) == [("a", 1), ("a", 2), ("b", 1)]
    ledger.confirm([("a", 1), ("a", 3), ("c", 1)])
    assert list(ledger) == [("a", 2), ("b", 1)]
    found = ledger.get("a")
    assert found is not None and (found.attempt, found.outcome) == (2, "TIMEOUT")
    ledger.confirm([("a", 2)])
    assert ledger.get("a") is None


def test_with_a_success_its_task_has_ended() -> None:
    ledger = Ledger()
    ledger.add([result("a", 1), result("a", 2), result("b", 1)])
    ledger.confirm([("a", 2)])
    assert list(ledger) == [("b", 1)]


def test_a_success_that_came_too_late_is_kept_for_the_next_attempt() -> None:
    ledger = Ledger(max_results=1)
    ledger.add([result("a", 1, data=7)])
    ledger.confirm([("a", 1)], [("a", 1)])
    assert (ledger.unconfirmed, ledger.is_full, len(ledger)) == (0, False, 1)
    found = ledger.get("a")
    assert found is not None and bytes(found.data) == b"7"
    # Reported again, and still open; then a rejection; then the answer of a later attempt, which is accepted.
    ledger.confirm([("a", 1)], [("a", 1)])
    ledger.add([result("a", 2, "REJECTED")])
    ledger.confirm([("a", 2)])
    found = ledger.get("a")
    assert found is not None and found.attempt == 1
    ledger.add([result("a", 3, data=7)])
    assert ledger.unconfirmed == 1
    ledger.confirm([("a", 3)])
    assert len(ledger) == ledger.unconfirmed == 0


def test_a_failure_that_came_too_late_is_of_no_use() -> None:
    ledger = Ledger()
    ledger.add([result("a", 1, "ERROR"), result("b", 1, "CANCELLED")])
    ledger.confirm([("a", 1), ("b", 1)], [("a", 1), ("b", 1)])
    assert len(ledger) == 0


def test_successes_kept_beside_their_task_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_OPEN", 3)
    ledger = Ledger()
    for number in range(5):
        key = (f"t{number}", 1)
        ledger.add([result(*key)])
        ledger.confirm([key], [key])
    assert list(ledger) == [("t2", 1), ("t3", 1), ("t4", 1)]
    # Of one task only the last is kept.
    ledger.add([result("t4", 2)])
    ledger.confirm([("t4", 2)], [("t4", 2)])
    assert list(ledger) == [("t2", 1), ("t3", 1), ("t4", 2)]
    monkeypatch.setattr(ledger_module, "MAX_OPEN_BYTES", 10)
    ledger.add([result("t5", 1)])
    ledger.confirm([("t5", 1)], [("t5", 1)])
    assert len(ledger) == 0


def test_a_terminal_task_needs_none_of_its_results() -> None:
    ledger = Ledger()
    ledger.add([result("a", 1), result("b", 1), result("a", 2)])
    ledger.confirm_tasks(["a", "c"])
    assert list(ledger) == [("b", 1)]


def test_the_same_attempt_again_replaces() -> None:
    ledger = Ledger()
    ledger.add([result("a", 1), result("a", 1, data=5)])
    found = ledger.get("a")
    assert len(ledger) == 1
    assert found is not None and bytes(found.data) == b"5"


def test_it_is_full_by_number_or_by_weight() -> None:
    ledger = Ledger(max_results=2, max_bytes=300)
    ledger.add([result("a", 1)])
    assert not ledger.is_full
    ledger.add([result("b", 1)])
    assert ledger.is_full
    ledger.confirm([("a", 1)])
    assert not ledger.is_full
    ledger.add([result("c", 1, data="x" * 300)])
    ledger.confirm([("b", 1)])
    assert ledger.is_full
    ledger.confirm([("c", 1)])
    assert not ledger.is_full


# In a file.


def test_the_next_process_has_what_was_not_confirmed() -> None:
    file = MemoryFile()
    ledger = Ledger(file)
    [body, *_] = ledger.add([result("a", 1, data={"text": "line\nbreak"}), result("b", 1, "ERROR"), result("c", 1)])
    ledger.confirm([("c", 1), ("b", 1)], [("c", 1)])
    again = Ledger(MemoryFile(file.data))
    # That the core has taken note of one is not remembered: it will say so again.
    assert list(again) == [("a", 1), ("c", 1)]
    assert again.unconfirmed == 2
    assert list(again.bodies())[0] == body
    found = again.get("a")
    assert found is not None and bytes(found.data) == b'{"text":"line\\nbreak"}'


def test_results_are_one_write_and_are_there_when_add_returns() -> None:
    file = MemoryFile()
    ledger = Ledger(file)
    before = file.data
    bodies = ledger.add([result(f"t{number}", 1) for number in range(50)])
    assert file.data == before + b"".join(body + b"\n" for body in bodies)
    assert [decode_response(body).task_id for body in bodies] == [f"t{number}" for number in range(50)]


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_last_line_is_left_out(cut: int) -> None:
    file = MemoryFile()
    Ledger(file).add([result("a", 1), result("b", 1)])
    again = MemoryFile(file.data[:-cut])
    ledger = Ledger(again)
    # Without its line feed alone the last one is whole.
    assert list(ledger) == ([("a", 1), ("b", 1)] if cut == 1 else [("a", 1)])
    ledger.add([result("c", 1)])
    assert list(Ledger(MemoryFile(again.data)))[-1] == ("c", 1)


@given(st.data())
def test_whatever_happens_to_the_bytes_it_opens(data: st.DataObject) -> None:
    file = MemoryFile()
    ledger = Ledger(file)
    ledger.add([result("a", 1), result("b", 2, "ERROR")])
    ledger.confirm([("a", 1)])
    damaged = bytearray(file.data)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=8))
        damaged += b"x"
    again = MemoryFile(bytes(damaged))
    Ledger(again).add([result("c", 3)])
    assert ("c", 3) in Ledger(MemoryFile(again.data))


@pytest.mark.parametrize("content", [b"\x00" * 100, b"SQLite format 3\x00", b'{"ledger":"dsched","version":2}\n{}\n'])
def test_what_is_no_ledger_is_moved_aside(content: bytes) -> None:
    file = MemoryFile(content)
    assert len(Ledger(file)) == 0
    assert (file.aside, file.data) == (content, HEADER)


def test_a_file_that_cannot_be_read_is_moved_aside() -> None:
    file = Unreadable(b"secret")
    ledger = Ledger(file)
    ledger.add([result("a", 1)])
    assert file.aside == b"secret"
    assert file.data.startswith(HEADER)


def test_a_file_that_can_be_neither_read_nor_moved_is_told() -> None:
    with pytest.raises(ConfigError, match="Input/output error.*Permission denied"):
        Ledger(Immovable())


def test_a_full_disk_costs_the_memory_of_the_file_only() -> None:
    file = MemoryFile()
    ledger = Ledger(file)
    ledger.add([result("a", 1)])
    file.fails, file.writes_before_failure = True, 17
    assert len(ledger.add([result("b", 1)])) == 1
    ledger.add([result("c", 1)])
    ledger.confirm([("a", 1)])
    assert list(ledger) == [("b", 1), ("c", 1)]
    # As a killed process would leave it: what was torn spoils nothing else.
    assert list(Ledger(MemoryFile(file.data))) == [("a", 1)]
    file.fails = False
    ledger.add([result("d", 1)])
    assert list(Ledger(MemoryFile(file.data))) == [("b", 1), ("c", 1), ("d", 1)]


def test_the_file_stays_small_when_all_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "COMPACT_BYTES", 10_000)
    file = MemoryFile()
    ledger = Ledger(file)
    largest = 0
    for number in range(1_000):
        ledger.add([result(f"t{number}", 1)])
        if number >= 3:
            ledger.confirm([(f"t{number - 3}", 1)])
        largest = max(largest, len(file.data))
    assert largest < 11_000
    assert 10 < file.replaced < 50
    assert list(Ledger(MemoryFile(file.data))) == [("t997", 1), ("t998", 1), ("t999", 1)]


def test_much_that_is_not_confirmed_is_not_written_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "COMPACT_BYTES", 1_000)
    file = MemoryFile()
    ledger = Ledger(file)
    ledger.add([result(f"old{number}", 1) for number in range(200)])
    for number in range(200):
        ledger.add([result(f"t{number}", 1)])
        ledger.confirm([(f"t{number}", 1)])
    assert file.replaced <= 2


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.sampled_from(["add", "fail", "ack", "open", "end"])),
        max_size=40,
    )
)
def test_the_file_tells_what_memory_has(steps: list[tuple[str, int, str]]) -> None:
    file = MemoryFile()
    ledger = Ledger(file)
    for task_id, attempt, what in steps:
        key = (task_id, attempt)
        if what in ("add", "fail"):
            ledger.add([result(task_id, attempt, "SUCCESS" if what == "add" else "ERROR")])
        elif what == "end":
            ledger.confirm_tasks([task_id])
        else:
            ledger.confirm([key], [key] if what == "open" else [])
        again = Ledger(MemoryFile(file.data))
        assert set(again) == set(ledger)
        assert 0 <= ledger.unconfirmed <= len(ledger)
        for name in "abc":
            assert (ledger.get(name) is None) == (name not in {task for task, _ in ledger})
