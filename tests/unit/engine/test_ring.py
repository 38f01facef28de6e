from bisect import bisect_left
from collections import Counter
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsched.engine import ring as ring_module
from dsched.engine.ring import VIRTUAL_NODES, Ring, ring_hash

WORKERS = ("worker-a", "worker-b", "worker-c")
hashes = st.integers(min_value=-(2**31), max_value=2**31 - 1)
worker_ids = st.sampled_from([f"w{number}" for number in range(8)])


def ring_of(*workers: str) -> Ring:
    ring = Ring()
    for worker_id in workers:
        ring.add(worker_id)
    return ring


def oracle_order(workers: set[str], place: int) -> list[str]:
    """Distinct workers clockwise from `place`, by the definition: all nodes sorted, walked once around."""
    nodes = []
    for worker_id in workers:
        for node in range(VIRTUAL_NODES):
            first_four = md5(f"{worker_id}#{node}".encode()).digest()[:4]
            nodes.append((int.from_bytes(first_four, "little", signed=True), worker_id))
    nodes.sort()
    start = bisect_left(nodes, (place, ""))
    return list(dict.fromkeys(worker_id for _, worker_id in nodes[start:] + nodes[:start]))


@pytest.mark.parametrize(
    ("text", "expected"), [("shard-0", -1776358086), ("worker-a#0", 1971735833), ("census/0", 661551529)]
)
def test_golden_hashes(text: str, expected: int) -> None:
    assert ring_hash(text) == expected


@pytest.mark.parametrize(
    ("prefix", "owners"),
    [("census/", "c a c b a b b b a a"), ("shard-", "b c a a c a c b c a")],
)
def test_golden_owners(prefix: str, owners: str) -> None:
    ring = ring_of(*WORKERS)
    assert [ring.owner(f"{prefix}{item}") for item in range(10)] == [f"worker-{letter}" for letter in owners.split()]


def test_golden_owners_without_worker_b() -> None:
    ring = ring_of(*WORKERS)
    keys = [f"census/{item}" for item in range(10)] + [f"shard-{item}" for item in range(10)]
    before = {key: ring.owner(key) for key in keys}
    ring.remove("worker-b")
    moved = {key: ring.owner(key) for key in keys if ring.owner(key) != before[key]}
    assert moved == {
        "census/3": "worker-c",
        "census/5": "worker-a",
        "census/6": "worker-a",
        "census/7": "worker-c",
        "shard-0": "worker-c",
        "shard-7": "worker-c",
    }


def test_golden_spread() -> None:
    ring = ring_of(*WORKERS)
    assert Counter(ring.owner(f"k{number}") for number in range(30_000)) == {
        "worker-a": 10_620,
        "worker-b": 9_258,
        "worker-c": 10_122,
    }


def test_empty_ring_owns_nothing() -> None:
    ring = Ring()
    assert len(ring) == 0
    assert ring.owner("census/0") is None
    assert ring.owner_of_hash(0) is None
    assert list(ring.successors(0)) == []


def test_membership_and_version() -> None:
    ring = Ring()
    ring.add("worker-a")
    first = ring.version
    ring.add("worker-a")
    ring.remove("worker-b")
    assert (ring.version, len(ring)) == (first, 1)
    assert "worker-a" in ring and "worker-b" not in ring
    ring.remove("worker-a")
    assert ring.version > first
    assert "worker-a" not in ring and len(ring) == 0
    assert ring.owner("census/0") is None


def test_a_node_owns_its_own_place_and_the_circle_wraps() -> None:
    ring = ring_of(*WORKERS)
    nodes = {ring_hash(f"{worker_id}#{node}"): worker_id for worker_id in WORKERS for node in range(VIRTUAL_NODES)}
    for place, worker_id in nodes.items():
        assert ring.owner_of_hash(place) == worker_id
    lowest, highest = min(nodes), max(nodes)
    assert ring.owner_of_hash(highest + 1) == nodes[lowest]
    assert ring.owner_of_hash(2**31 - 1) == nodes[lowest]
    assert ring.owner_of_hash(-(2**31)) == nodes[lowest]


def test_equal_hashes_go_to_the_lowest_worker_id(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every worker lands on the same 15 places, each of them ten times.
    monkeypatch.setattr(ring_module, "ring_hash", lambda text: int(text.partition("#")[2]) % 15 * 1000)
    for arrival in (("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")):
        ring = ring_of(*arrival)
        assert list(ring.successors(5_000)) == ["a", "b", "c"]
        assert list(ring.successors(14_001)) == ["a", "b", "c"]
        ring.remove("a")
        assert list(ring.successors(5_000)) == ["b", "c"]
        ring.add("a")
        assert ring.owner_of_hash(5_000) == "a"


def test_successors_refuse_a_ring_that_changes_under_them() -> None:
    ring = ring_of(*WORKERS)
    walk = ring.successors(0)
    next(walk)
    ring.add("worker-d")
    with pytest.raises(RuntimeError, match="changed"):
        next(walk)


@given(st.sets(worker_ids), hashes)
def test_order_equals_the_definition(workers: set[str], place: int) -> None:
    ring = ring_of(*sorted(workers, reverse=True))
    expected = oracle_order(workers, place)
    assert list(ring.successors(place)) == expected
    assert ring.owner_of_hash(place) == (expected[0] if expected else None)


@given(st.lists(st.tuples(st.booleans(), worker_ids), max_size=20), hashes)
def test_order_depends_on_the_members_alone(changes: list[tuple[bool, str]], place: int) -> None:
    ring, members = Ring(), set()
    for joins, worker_id in changes:
        if joins:
            ring.add(worker_id)
            members.add(worker_id)
        else:
            ring.remove(worker_id)
            members.discard(worker_id)
    assert len(ring) == len(members)
    assert list(ring.successors(place)) == list(ring_of(*members).successors(place))


@given(st.sets(worker_ids, min_size=2), st.data())
def test_removal_moves_only_the_keys_of_the_removed(workers: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(workers)))
    ring = ring_of(*workers)
    before = {f"job/{item}": list(ring.successors(ring_hash(f"job/{item}"))) for item in range(50)}
    ring.remove(gone)
    for key, order in before.items():
        order.remove(gone)
        assert ring.owner(key) == order[0]
