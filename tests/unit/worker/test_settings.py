"""Which settings of a worker are refused."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from dsched.errors import ConfigError
from dsched.worker.settings import WorkerSettings, generate_worker_id

GOOD = WorkerSettings(cores=(("core", 8080),), worker_id="w-1")


def test_defaults_are_those_of_the_design() -> None:
    assert GOOD.validate() is GOOD
    assert (GOOD.group, GOOD.slots, GOOD.weight, GOOD.drain_s) == ("default", 8, 1, 30.0)


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"cores": ()}, "--core"),
        ({"cores": (("", 8080),)}, "--core"),
        ({"cores": (("core", 0),)}, "--core"),
        ({"worker_id": "a b"}, "--id"),
        ({"worker_id": "x" * 129}, "--id"),
        ({"worker_id": "x\n"}, "--id"),
        ({"group": "a b"}, "--group"),
        ({"slots": 0}, "--slots"),
        ({"slots": 1_025}, "--slots"),
        ({"weight": 0}, "--weight"),
        ({"tags": ("a b",)}, "--tag"),
        ({"tags": ("",)}, "--tag"),
        ({"drain_s": -1}, "drain"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(GOOD, **change).validate()
    [problem] = caught.value.problems
    assert option in problem


def test_all_problems_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        replace(GOOD, worker_id=" ", slots=0, cores=()).validate()
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("hostname", ["box", "", "höst.example", "x" * 200])
def test_a_generated_id_is_valid_and_its_own(hostname: str) -> None:
    rng = random.Random(1)
    first, second = (generate_worker_id(hostname, rng) for _ in range(2))
    assert first != second
    for worker_id in (first, second):
        assert re.search(r"-[0-9a-f]{8}\Z", worker_id)
        replace(GOOD, worker_id=worker_id).validate()
