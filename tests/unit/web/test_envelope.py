"""One shape for every error."""

import json

import pytest

from dsched import errors
from dsched.web.envelope import Refused, error_answer, fault_answer, json_answer

KNOWN = [
    (
        errors.InvalidValue("timeout", "must be positive"),
        400,
        "invalid",
        {"field": "timeout", "reason": "must be positive"},
    ),
    (errors.BadJson("params", "NaN"), 400, "bad_json", {"field": "params", "reason": "NaN"}),
    (errors.NotFound("job", "a"), 404, "not_found", {"kind": "job", "id": "a"}),
    (errors.Conflict("another body", key="k"), 409, "conflict", {"key": "k"}),
    (errors.NotLeader("follow", leader="b:8081"), 409, "not_leader", {"leader": "b:8081"}),
    (errors.TooLarge("params", limit=1), 413, "too_large", {"limit": 1}),
    (errors.StoreUnavailable("gone"), 503, "store_unavailable", {}),
    (errors.EpochLost("gone"), 503, "epoch_lost", {}),
    (Refused(403, "host", "no"), 403, "host", {}),
]
FAULTS = [
    errors.BatchRefused("UNIQUE constraint failed: secret"),
    errors.InternalFault("secret"),
    errors.InvalidTransition("secret"),
    errors.ProtocolError("secret"),
    errors.ConfigError("secret"),
    errors.Unreachable("secret"),
    errors.DschedError("secret"),
    RuntimeError("secret"),
]


@pytest.mark.parametrize(("error", "status", "code", "details"), KNOWN, ids=lambda value: type(value).__name__)
def test_errors_that_tell_the_client_something(error, status, code, details):
    answer = error_answer(error)
    assert answer.status == status
    assert json.loads(answer.body) == {"error": {"code": code, "message": error.message, "details": details}}
    assert (b"Content-Type", b"application/json") in answer.headers
    assert ((b"Retry-After", b"1") in answer.headers) is (status == 503)


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_faults_tell_an_id_and_nothing_else(error):
    assert error_answer(error) is None
    answer = fault_answer(error, "1-2")
    told = json.loads(answer.body)["error"]
    assert answer.status == 500
    assert told["code"] == getattr(error, "code", "internal")
    assert told["details"] == {"id": "1-2"}
    assert b"secret" not in answer.body


def test_every_class_has_its_place():
    classes = {value for name, value in vars(errors).items() if name in errors.__all__}
    assert classes <= {type(error) for error, *_ in KNOWN} | {type(error) for error in FAULTS}


def test_no_content_has_no_content():
    answer = json_answer(None, 204)
    assert (answer.body, answer.headers) == (b"", ())


@pytest.mark.parametrize(
    "text", ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "\x1b[31m\u202e\x00"]
)
def test_hostile_text_stays_json(text):
    answer = json_answer({"description": text})
    assert json.loads(answer.body) == {"description": text}
    assert answer.headers == ((b"Content-Type", b"application/json"),)
