"""The search for planted faults: which turns find a fault, and which findings are enough."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from simulation.mutants import SOURCE, Patch
from simulation.planted import TURNS, FaultFinding, PlantedFault, Tree, failed_case, look_for

FAULT = PlantedFault("fault", "kind", "It fails.", True, ("tests/quick", "tests/slow"), ())
EVERY_TURN = set(TURNS)
ALWAYS, IN_TURN = "tests/quick/test_a.py::test_a", "tests/slow/test_b.py::test_b[3]"


class ScriptedTree(Tree):
    """A tree whose cases are known: the turns that have a case, and the paths in which cases fail with the fault."""

    def __init__(self, turns_of: Mapping[str, set[int]], *, fails_without: bool = False) -> None:
        super().__init__(Path("nowhere"))
        self._turns_of = turns_of
        self._fails_without = fails_without
        self._is_planted = False

    @contextmanager
    def planted(self, fault: PlantedFault) -> Iterator[None]:
        self._is_planted = True
        yield
        self._is_planted = False

    def first_failure(self, tests: str, turn: str) -> str | None:
        if not self._is_planted and not self._fails_without:
            return None
        chosen = (case for case in self._turns_of if case.startswith(tests))
        return next((case for case in chosen if turn == "all" or self.has(int(turn), case)), None)

    def has(self, turn: int, case: str) -> bool:
        return turn in self._turns_of[case]


def test_a_case_that_is_always_run_finds_a_fault_in_every_turn() -> None:
    found = look_for(FAULT, ScriptedTree({ALWAYS: EVERY_TURN}))
    assert found == FaultFinding(FAULT, dict.fromkeys(EVERY_TURN, ALWAYS))
    assert found.is_enough


def test_a_case_in_turn_finds_a_fault_in_its_turn() -> None:
    found = look_for(FAULT, ScriptedTree({IN_TURN: {3}}))
    assert found.cases == {3: IN_TURN}
    assert not found.is_enough
    assert found._replace(fault=FAULT._replace(is_always=False)).is_enough
    assert str(found) == f"| kind | It fails. | always | 1 of {len(TURNS)} | {IN_TURN} |"


def test_turns_may_find_a_fault_by_different_cases() -> None:
    cases: dict[str, set[int]] = {f"tests/quick/test_{turn}": {turn} for turn in EVERY_TURN}
    found = look_for(FAULT, ScriptedTree(cases))
    assert list(found.cases.values()) == list(cases)
    assert found.is_enough


def test_a_fault_that_no_test_notices_is_not_found() -> None:
    found = look_for(FAULT._replace(is_always=False), ScriptedTree({}))
    assert found.cases == {}
    assert not found.is_enough


def test_a_case_that_fails_without_the_fault_finds_nothing() -> None:
    with pytest.raises(AssertionError, match="fails without a fault"):
        look_for(FAULT, ScriptedTree({ALWAYS: EVERY_TURN}, fails_without=True))


def test_the_failed_case_is_read_from_the_summary() -> None:
    summary = "FAILED tests/a.py::test_quoted - no\n====\nERROR tests/b.py::test_b[a b] - ValueError: a - b\n1 error\n"
    assert failed_case(summary) == "tests/b.py::test_b[a b]"
    assert failed_case("FAILED tests/c.py::test_c\n") == "tests/c.py::test_c"


def test_the_copy_has_the_fault_inside_the_block_alone(tmp_path: Path) -> None:
    name = "model/errors.py"
    (tmp_path / "src" / "tailrace" / "model").mkdir(parents=True)
    copy = tmp_path / "src" / "tailrace" / name
    copy.write_text((SOURCE / name).read_text())
    fault = FAULT._replace(patches=(Patch(name, "    NONE = 0", "    NONE = 99"),))
    with Tree(tmp_path).planted(fault):
        assert "NONE = 99" in copy.read_text()
    assert copy.read_text() == (SOURCE / name).read_text()
