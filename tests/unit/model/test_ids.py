import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsched.errors import InvalidValue
from dsched.model.ids import Sequence, check_group, check_key, check_name, fired_run_id, requested_run_id, task_id


def test_ids_tell_what_they_belong_to() -> None:
    assert fired_run_id("census", 1764532800000) == "census@1764532800000"
    assert requested_run_id("census", "k1") == "census~k1"
    assert task_id("census@1764532800000", 7) == "census@1764532800000:7"
    # The longest of all fits the column of 128 characters.
    assert len(task_id(requested_run_id("n" * 64, "k" * 48), 9_999)) <= 128


@pytest.mark.parametrize(("check", "length"), [(check_name, 64), (check_group, 64), (check_key, 48)])
def test_names(check: object, length: int) -> None:
    assert callable(check)
    for good in ("a", "A-z_0.9", "x" * length):
        assert check(good) == good
    for bad in ("", "x" * (length + 1), "a b", "a\n", "a\0b", "ä", "a/b", "a@b", "a~b", "a:b", None, 1, True, ["a"]):
        with pytest.raises(InvalidValue) as caught:
            check(bad, "some.field")
        assert caught.value.field == "some.field"


@given(st.integers(0, 2**62), st.lists(st.integers(0, 2**46), max_size=30))
def test_numbers_only_grow_whatever_the_clock_does(highest: int, wall_ms: list[int]) -> None:
    sequence = Sequence(highest)
    last = highest
    for now in wall_ms:
        number = sequence.next(now)
        assert number == max(now << 16, last) + 1
        last = number
    assert sequence.last == last
