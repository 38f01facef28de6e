"""Results stay until they are confirmed, and weigh what they weigh."""

from dsched.wire.encoding import Raw
from dsched.wire.messages import Response
from dsched.worker.ledger import Ledger


def result(task_id: str, attempt: int, message: str = "") -> Response:
    return Response(1, task_id, True, message, Raw(b"null"), attempt)


def keys(ledger: Ledger) -> list[tuple[str, int | None]]:
    return [(kept.task_id, kept.attempt) for kept in ledger]


def test_a_result_stays_until_its_own_attempt_is_confirmed() -> None:
    ledger = Ledger()
    first, second = result("a", 1), result("a", 2)
    ledger.add(first)
    ledger.add(second)
    ledger.add(result("b", 1))
    assert keys(ledger) == [("a", 1), ("a", 2), ("b", 1)]
    assert ledger.get("a") is second
    ledger.confirm([("a", 1), ("a", 3), ("c", 1)])
    assert keys(ledger) == [("a", 2), ("b", 1)]
    assert ledger.get("a") is second
    ledger.confirm([("a", 2)])
    assert ledger.get("a") is None


def test_a_terminal_task_needs_none_of_its_results() -> None:
    ledger = Ledger()
    for kept in (result("a", 1), result("b", 1), result("a", 2)):
        ledger.add(kept)
    ledger.confirm_tasks(["a", "c"])
    assert keys(ledger) == [("b", 1)]
    assert len(ledger) == 1


def test_the_same_attempt_again_replaces() -> None:
    ledger = Ledger()
    ledger.add(result("a", 1))
    again = result("a", 1)
    ledger.add(again)
    assert len(ledger) == 1
    assert ledger.get("a") is again


def test_it_is_full_by_number_or_by_weight() -> None:
    ledger = Ledger(max_results=2, max_bytes=100)
    ledger.add(result("a", 1))
    assert not ledger.is_full
    ledger.add(result("b", 1))
    assert ledger.is_full
    ledger.confirm([("a", 1)])
    assert not ledger.is_full
    ledger.add(result("c", 1, message="x" * 100))
    ledger.confirm([("b", 1)])
    assert ledger.is_full
    ledger.confirm([("c", 1)])
    assert not ledger.is_full
