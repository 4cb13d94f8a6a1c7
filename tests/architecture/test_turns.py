"""The cases of a run: a case is always run or in one turn, and all turns together have all cases."""

from pathlib import Path

import pytest

from turns import LIST, ROOT, TURNS, SuiteTurn, listed, turn_named, turn_of_sources

ALL_TURNS = list(range(TURNS))


def turns_in(turn: SuiteTurn, *, is_always: bool = False) -> list[int]:
    return [number for number in ALL_TURNS if turn.has(number, is_always=is_always)]


def test_each_turn_has_its_cases() -> None:
    assert [turns_in(turn_named(str(number))) for number in ALL_TURNS] == [[number] for number in ALL_TURNS]


def test_every_listed_file_exists_and_stands_there_once() -> None:
    lines = [line for line in LIST.read_text().splitlines() if not line.startswith("#")]
    assert len(listed()) == len(lines)
    assert [path for path in listed() if not (ROOT / path).exists()] == []
    assert set(listed().values()) == {"cases", *map(str, range(TURNS))}, "each turn has files of its own"


def test_a_case_that_is_always_run_is_in_every_turn_and_not_in_the_rest() -> None:
    for name in ("", "own", "0", "5", "all"):
        assert turns_in(turn_named(name), is_always=True) == ALL_TURNS
    for name in ("rest", "rest-of-2"):
        assert turns_in(turn_named(name), is_always=True) == []


def test_a_run_and_the_rest_have_all_cases_once() -> None:
    cases = turns_in(turn_named("own")) + turns_in(turn_named("rest"))
    assert sorted(cases) == turns_in(turn_named("all")) == ALL_TURNS
    assert turn_named("rest") == turn_named(f"rest-of-{turn_of_sources(ROOT)}")


def test_the_turn_is_that_of_the_sources(tmp_path: Path) -> None:
    source = tmp_path / "src" / "a.py"
    source.parent.mkdir()
    turns = set()
    for number in range(60):
        source.write_text(f"{number}")
        assert turn_of_sources(tmp_path) == turn_of_sources(tmp_path)
        turns.add(turn_of_sources(tmp_path))
    assert turns == set(range(TURNS)), "each change may move it"
    assert turn_named("own").numbers == {turn_of_sources(ROOT)}


@pytest.mark.parametrize("name", ["8", "-1", "ALL", "1 ", "rest-of-8", "all-of-1", "rest-of-", "-of-1"])
def test_an_unknown_turn_is_refused(name: str) -> None:
    with pytest.raises(pytest.UsageError, match="own, a number from 0 to 7, rest"):
        turn_named(name)


CASES = """
import pytest

def test_alone(): ...

@pytest.mark.parametrize("a", range(40))
def test_first_always(a): ...

@pytest.mark.parametrize("a", range(2))
@pytest.mark.parametrize("b", range(20))
def test_two_parameters(a, b): ...

@pytest.mark.in_turn
@pytest.mark.parametrize("a", [pytest.param(0, marks=pytest.mark.always), *range(1, 40)])
def test_one_always(a): ...

@pytest.mark.in_turn
@pytest.mark.parametrize("a", range(40))
def test_none_always(a): ...

@pytest.mark.parametrize("a", [pytest.param(turn, marks=pytest.mark.in_turn(turn)) for turn in range(8)])
def test_chosen_turn(a): ...
"""


@pytest.mark.parametrize("name", ["0", "rest", "all"])
def test_the_first_case_of_a_function_is_always_run(
    pytester: pytest.Pytester, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURN", name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    pytester.makeini("[pytest]\nmarkers =\n  always\n  in_turn\n")
    pytester.makeconftest(
        "from turns import in_this_run\ndef pytest_collection_modifyitems(items):\n    items[:] = in_this_run(items)\n"
    )
    pytester.makepyfile(CASES)
    outcome = pytester.runpytest_subprocess("--collect-only", "-q", "-p", "no:randomly")
    chosen = {line.partition("::")[2] for line in outcome.outlines if "::" in line}
    always = {"test_alone", "test_first_always[0]", "test_two_parameters[0-0]", "test_one_always[0]"}
    assert always <= chosen if name != "rest" else not always & chosen
    turns = {case for case in chosen if case.startswith("test_chosen_turn")}
    assert turns == {f"test_chosen_turn[{turn}]" for turn in turn_named(name).numbers}
    in_turn = chosen - always - turns
    assert len(in_turn) == 157 if name == "all" else 10 < len(in_turn) < 150
