"""From what a handler did to the response that says so, and the limits on the way."""

import sys
from typing import Any

import pytest

from dsched.jobs import DoNotRetry
from dsched.wire.encoding import decode_any
from dsched.wire.messages import MAX_MESSAGE, MAX_RESULT, MAX_TRACEBACK, Request, Response, decode_response, frame
from dsched.worker import results

REQUEST = Request(
    job_id=7,
    job_name="x",
    params="null",
    sharding_total=1,
    sharding_item=0,
    timeout=30,
    task_id="x~k:0",
    retry_count=0,
    preload_keys=[],
    handler="x",
    attempt=2,
    fence=9,
    epoch=4,
    run_id="x~k",
)


def sent(response: Response) -> Any:
    """What the core reads."""
    decoded = decode_response(frame(response)[11:])
    assert (decoded.job_id, decoded.task_id) == (7, "x~k:0")
    assert (decoded.attempt, decoded.fence, decoded.epoch) == (2, 9, 4)
    return decoded


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1, 2**63, 10**40, 1.5, "", "\x00", "\U0001f600", [], {}, {"a": [1, {"b": None}]}, "x" * 262_142],
)
def test_a_json_value_is_the_result(value: Any) -> None:
    response = sent(results.succeeded(REQUEST, value, 1.25))
    assert (response.success, response.outcome, response.duration_ms) == (True, "SUCCESS", 1.25)
    assert decode_any(bytes(response.data)) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "nan is not JSON"),
        (float("inf"), "inf is not JSON"),
        ({"a": [0, float("-inf")]}, "at a[1]"),
        ({"a": {"b": object()}}, "object is not a JSON type (at a.b)"),
        ({1: 2}, "keys must be strings"),
        (b"bytes", "bytes is not a JSON type"),
        ({1, 2}, "set is not a JSON type"),
        ("\ud800", "surrogate"),
        ([10**5000], "4300 digits"),
    ],
)
def test_what_is_not_json_fails_without_retry_and_names_the_path(value: Any, words: str) -> None:
    """Case B072."""
    response = sent(results.succeeded(REQUEST, value, 1.0))
    assert (response.success, response.outcome, response.retryable) == (False, "ERROR", False)
    assert response.error_type == "BadJson"
    assert "the result is not JSON" in response.message
    assert words in response.message


def test_a_loop_in_the_result_is_no_end() -> None:
    value: list[Any] = []
    value.append(value)
    assert sent(results.succeeded(REQUEST, value, 1.0)).retryable is False


def test_a_result_above_the_limit_fails_without_retry_and_says_so() -> None:
    response = sent(results.succeeded(REQUEST, "x" * (MAX_RESULT - 1), 1.0))
    assert (response.success, response.retryable, response.error_type) == (False, False, "TooLarge")
    assert response.message == "the result has 262145 bytes, at most 262144 are stored"


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def failure_of(error: BaseException) -> Any:
    def handler() -> None:
        raise error

    try:
        handler()  # Stands for the frame of the executor.
    except BaseException as caught:
        return sent(results.failed(REQUEST, caught, 3.0))


def test_an_exception_is_an_error_with_its_type_text_and_traceback() -> None:
    response = failure_of(ValueError("no such path"))
    assert (response.success, response.outcome, response.retryable) == (False, "ERROR", True)
    assert (response.error_type, response.message) == ("ValueError", "no such path")
    assert response.traceback.startswith("Traceback (most recent call last):")
    assert response.traceback.endswith("ValueError: no such path\n")
    assert "in handler" in response.traceback
    assert "in failure_of" not in response.traceback


@pytest.mark.parametrize(
    ("error", "error_type", "message", "retryable"),
    [
        (DoNotRetry("never"), "dsched.jobs.DoNotRetry", "never", False),
        (SystemExit(3), "SystemExit", "3", True),
        (KeyboardInterrupt(), "KeyboardInterrupt", "", True),
        (ValueError("a\ud800b\x00"), "ValueError", "a\\ud800b\x00", True),
    ],
)
def test_each_kind_of_exception_is_reported(
    error: BaseException, error_type: str, message: str, retryable: bool
) -> None:
    response = failure_of(error)
    assert (response.error_type, response.message, response.retryable) == (error_type, message, retryable)


def test_an_exception_without_a_text_is_reported_all_the_same() -> None:
    response = failure_of(OddError())
    assert "OddError" in response.error_type
    assert "RuntimeError" in response.message


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", "\x00"])
def test_long_texts_are_cut_with_a_note(letter: str) -> None:
    response = results.failed(REQUEST, ValueError(letter * 100_000), 1.0)
    message, traceback = response.message or "", response.traceback or ""
    assert len(message.encode()) <= MAX_MESSAGE
    assert message.startswith(letter * 1000)
    assert message.endswith(f"[cut, {len(letter.encode()) * 100_000} bytes]")
    assert len(traceback.encode()) <= MAX_TRACEBACK
    assert traceback.startswith("[cut, ")
    sent(response)


def test_a_deep_recursion_is_reported() -> None:
    def deeper() -> None:
        deeper()

    try:
        deeper()
    except RecursionError as error:
        response = sent(results.failed(REQUEST, error, 1.0))
    assert response.error_type == "RecursionError"
    assert sys.getrecursionlimit() > 0


def test_a_cancel_keeps_what_the_handler_came_to() -> None:
    never_began = sent(results.cancelled(REQUEST, "by hand"))
    assert (never_began.success, never_began.outcome, never_began.message) == (False, "CANCELLED", "cancelled: by hand")
    assert never_began.duration_ms is None
    done = sent(results.cancelled(REQUEST, "", results.succeeded(REQUEST, [1], 2.0)))
    assert (done.success, done.outcome, bytes(done.data), done.message) == (True, "CANCELLED", b"[1]", "cancelled")
    failed = sent(results.cancelled(REQUEST, "", results.failed(REQUEST, ValueError("x"), 2.0)))
    assert (failed.success, failed.outcome, failed.error_type) == (False, "CANCELLED", "ValueError")


def test_the_other_ends() -> None:
    timeout = sent(results.timed_out(REQUEST, 30_000.0))
    assert (timeout.success, timeout.outcome, timeout.message) == (False, "TIMEOUT", "timed out after 30 s")
    rejected = sent(results.rejected(REQUEST, "draining"))
    assert (rejected.success, rejected.outcome, rejected.message) == (False, "REJECTED", "draining")


def test_an_earlier_success_answers_a_later_attempt() -> None:
    earlier = Response(7, "x~k:0", True, "", 5, 1, 3, 2, 1.0, "SUCCESS")
    again = sent(results.repeated(REQUEST, earlier))
    assert (again.success, bytes(again.data)) == (True, b"5")
