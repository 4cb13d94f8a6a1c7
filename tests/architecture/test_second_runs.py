"""A failing test runs again only where a foreign program takes part, in no more than three cases, and is shown."""

from pathlib import Path

import pytest

from second_runs import WITH_FOREIGN_PROGRAMS

ROOT = Path(__file__).parents[2]
CONFTEST = """
from second_runs import allow_second_runs

def pytest_collection_modifyitems(items):
    allow_second_runs(items)
"""
FAILS_ONCE = """
from pathlib import Path

def test_a_race():
    mark = Path(__file__).with_suffix(".mark")
    is_second = mark.exists()
    mark.touch()
    assert is_second, "the first run has lost its race"
"""
ALWAYS_FAILS = """
import pytest

@pytest.mark.parametrize("number", range(5))
def test_a_defect(number):
    raise AssertionError(f"defect {number}")
"""
OPTIONS = ("-p", "no:randomly", "-p", "no:cacheprovider", "--max-suite-reruns", "3", "--rerun-show-tracebacks")

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    pytester.makeconftest(CONFTEST)
    return pytester


def written(pytester: pytest.Pytester, folder: str, text: str) -> None:
    path = pytester.path / folder / "test_it.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_folders_are_there() -> None:
    assert [path for path in WITH_FOREIGN_PROGRAMS if not (ROOT / path.partition("::")[0]).exists()] == []


def test_a_race_with_a_foreign_program_passes_in_its_second_run_and_the_first_is_shown(run: pytest.Pytester) -> None:
    written(run, "tests/interop", FAILS_ONCE)
    result = run.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(passed=1)
    assert "the first run has lost its race" in result.stdout.str()


@pytest.mark.parametrize("folder", ["simulation", "crash"])
def test_a_test_of_the_product_has_one_run(run: pytest.Pytester, folder: str) -> None:
    written(run, f"tests/{folder}", FAILS_ONCE)
    run.runpytest_subprocess(*OPTIONS).assert_outcomes(failed=1)


def test_a_defect_fails_in_both_runs_and_many_take_no_more_than_three(run: pytest.Pytester) -> None:
    written(run, "tests/spark", ALWAYS_FAILS)
    result = run.runpytest_subprocess(*OPTIONS)
    assert result.parseoutcomes() == {"failed": 5, "rerun": 3}
