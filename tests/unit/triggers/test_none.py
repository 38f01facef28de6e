from dsched.triggers.none import NoTrigger


def test_is_never_due() -> None:
    trigger = NoTrigger()
    assert trigger.next_after(0) is None
    assert trigger.latest_at_or_before(10**15) is None
    assert trigger.count_between(0, 10**15) == 0
    assert trigger == NoTrigger()
