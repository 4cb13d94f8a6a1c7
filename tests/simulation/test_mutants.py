"""Small faults in the product's source, each fault killed by its law.

A seed that does not kill any more, after a change of the machine or of the simulation, is found anew with
`python -m simulation mutants [NAME ...]`.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from simulation.mutant_tests import noticed_by
from simulation.mutants import BY_A_UNIT_TEST, Mutant, all_mutants
from tailrace.raft import node
from turns import changed_files

MUTANTS = all_mutants(Path(__file__).parent / "mutants")
UNIT_TESTS = Path(__file__).parents[1] / "unit"
WORDS_OF_THE_SOURCE = frozenset(
    word
    for module in (Path(__file__).parents[2] / "src").rglob("*.py")
    for word in re.findall(r"\w+", module.read_text())
)


OF_UNIT_TESTS = Path(__file__).parent / "unit_mutants"


def in_turn(mutants: Iterable[Mutant]) -> list[ParameterSet]:
    """Cases of mutants: in turn, but always for a mutant of a file that has changed."""
    changed = changed_files()
    return [
        pytest.param(
            mutant,
            id=mutant.name,
            marks=pytest.mark.always if changed & files_of(mutant) else pytest.mark.in_turn,
        )
        for mutant in mutants
    ]


def files_of(mutant: Mutant) -> set[str]:
    """The file that describes the mutant and the files that it patches, below the root of the repository."""
    described = (f"tests/simulation/{folder}/{mutant.name}.toml" for folder in ("mutants", "unit_mutants"))
    return {*described, *(f"src/tailrace/{patch.file}" for patch in mutant.patches)}


def test_a_mutant_of_a_changed_file_is_always_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[0]
    assert all((Path(__file__).parents[2] / f"src/tailrace/{patch.file}").is_file() for patch in mutant.patches)
    for changed, mark in ((mutant.patches[0].file, "always"), ("raft/no_such_file.py", "in_turn")):
        monkeypatch.setattr(sys.modules[__name__], "changed_files", lambda name=changed: {f"src/tailrace/{name}"})
        (case,) = in_turn([mutant])
        assert [found.name for found in case.marks] == [mark]


@pytest.mark.parametrize("mutant", in_turn(all_mutants(OF_UNIT_TESTS)))
def test_a_mutant_of_a_rule_that_no_world_has_is_killed_by_its_unit_test(mutant: Mutant) -> None:
    assert mutant.kind == BY_A_UNIT_TEST
    root = Path(__file__).parents[2]
    assert noticed_by(OF_UNIT_TESTS / f"{mutant.name}.toml", [mutant.law], root)


def test_there_are_enough_that_no_unit_test_notices() -> None:
    assert sum(mutant.unit_tests == () for mutant in MUTANTS) >= 20


@pytest.mark.always
@pytest.mark.parametrize("mutant", [*MUTANTS, *all_mutants(OF_UNIT_TESTS)], ids=lambda mutant: mutant.name)
def test_the_text_that_a_mutant_replaces_is_in_the_source_exactly_once(mutant: Mutant) -> None:
    assert mutant.patches
    assert [patch.occurrences() for patch in mutant.patches] == [1] * len(mutant.patches)
    assert all(patch.new != patch.old for patch in mutant.patches)


@pytest.mark.always
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_uses_only_attributes_that_the_source_has(mutant: Mutant) -> None:
    """Otherwise it dies of an AttributeError, and its law is not tested."""
    used = {name for patch in mutant.patches for name in re.findall(r"\.(\w+)", re.sub(r"#.*", "", patch.new))}
    assert used <= WORDS_OF_THE_SOURCE


@pytest.mark.parametrize("mutant", in_turn(MUTANTS))
def test_each_is_killed_by_its_law(mutant: Mutant) -> None:
    assert mutant.run(mutant.seed) == mutant.law, f"python -m simulation mutants {mutant.name}"


@pytest.mark.always
@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.unit_tests], ids=lambda mutant: mutant.name)
def test_the_unit_tests_that_notice_a_mutant_exist(mutant: Mutant) -> None:
    for named in mutant.unit_tests or ():
        file, *_, name = named.partition("[")[0].split("::")
        assert f"def {name}(" in (UNIT_TESTS / file).read_text(), named


@pytest.mark.parametrize("name", ["vote_not_persisted", "later_votes_are_not_persisted"])
def test_unit_tests_notice_what_a_mutant_says_they_do(name: str) -> None:
    mutant = next(candidate for candidate in MUTANTS if candidate.name == name)
    root = Path(__file__).parents[2]
    found = noticed_by(root / f"tests/simulation/mutants/{name}.toml", ["tests/unit/raft/test_elections.py"], root)
    assert bool(found) == bool(mutant.unit_tests)


def test_the_product_is_itself_again_afterwards() -> None:
    mutant = next(
        candidate for candidate in MUTANTS if any(patch.file.startswith("raft/") for patch in candidate.patches)
    )
    with mutant.loaded():
        assert sys.modules["tailrace.raft"] is not sys.modules.get("tailrace.raft.node")
    assert sys.modules["tailrace.raft.node"] is node
    import tailrace

    assert tailrace.raft.node is node


def test_the_unmutated_product_breaks_no_law_in_the_seeds_that_kill() -> None:
    from simulation.raft.cluster import run_seed

    for seed in sorted({mutant.seed for mutant in MUTANTS if mutant.kind == "quorum"})[:10]:
        run_seed(seed)
