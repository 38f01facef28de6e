"""The mutants themselves: each has its place in the source. Hunting them takes minutes and is part of `make soak`."""

import importlib.util
from pathlib import Path

import pytest

from tests.sim.mutants import MUTANTS, Mutant, main


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_has_its_place(mutant: Mutant) -> None:
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    assert mutant.apply(source) != source


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30


@pytest.mark.soak
def test_every_mutant_is_killed() -> None:
    assert main([]) == 0
