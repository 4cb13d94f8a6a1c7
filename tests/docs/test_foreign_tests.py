"""docs/experiments/foreign-tests.md is true: what tests expect, and scripts/foreign_suites.py has measured.

REWRITE=1 pytest tests/docs/test_foreign_tests.py     writes the tables anew
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from docs.generated import check_generated
from interop.programs import quix
from interop.suites.foreign_suites import EVERY_SUITE, MEASURED, TESTLESS
from interop.suites.source_suite import ForeignSuite

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "experiments" / "foreign-tests.md"


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def _measured() -> dict[str, Any]:
    measured: dict[str, Any] = json.loads(MEASURED.read_text())
    return measured


def suites() -> str:
    """The counts of each project, with the seconds, beside Apache Kafka."""
    rows = []
    for suite in EVERY_SUITE:
        run = _measured()["suites"][suite.tests.project]
        project = f"{suite.tests.project} {suite.tests.version}"
        counts = (run["collected"], run["passed"], len(suite.skipped), len(suite.left_out))
        rows.append((project, suite.client, *counts, run["seconds"], run["kafka_passed"], run["kafka_seconds"]))
    head = ("Project", "Client", "Tests", "Pass", "Skip themselves", "Left out", "s", "Pass with Kafka", "s with Kafka")
    return _table(head, rows)


def machine() -> str:
    """The machine of the figures."""
    return f"{_measured()['machine']}\n"


def swaps() -> str:
    """The plugin of each project, and the place that a node takes."""
    path = "tests/interop/suites/swaps"
    rows = [
        (suite.tests.project, suite.swapped, f"[{suite.tests.swap}.py](../../{path}/{suite.tests.swap}.py)")
        for suite in EVERY_SUITE
    ]
    return _table(("Project", "A node takes the place of", "Plugin"), rows)


def not_passed() -> str:
    """The tests that do not pass, with any parameter, and why."""
    rows = {
        (suite.tests.project, f"`{name.partition('[')[0]}`", reason)
        for suite in EVERY_SUITE
        for name, reason in (
            *suite.left_out.items(),
            *((name, f"skips itself: {reason}") for name, reason in suite.skipped.items()),
        )
    }
    return _table(("Project", "Test", "Why not"), sorted(rows))


def without_tests() -> str:
    """Projects whose packages hold no tests of a broker."""
    rows = [
        (f"{package.project} {package.version}", "has none" if package.has_sources else "there is none, but a wheel")
        for package in TESTLESS
    ]
    return _table(("Project", "Tests in the source distribution"), rows)


def test_the_tables_are_what_was_measured() -> None:
    generated = {
        "suites": suites,
        "machine": machine,
        "swaps": swaps,
        "not passed": not_passed,
        "without tests": without_tests,
    }
    check_generated(PAGE, generated)


@pytest.mark.parametrize("suite", EVERY_SUITE, ids=lambda suite: suite.tests.project)
def test_the_figures_are_of_the_expected_run(suite: ForeignSuite) -> None:
    """A version that was not measured has no figures: run scripts/foreign_suites.py."""
    run = _measured()["suites"][suite.tests.project]
    assert run["version"] == suite.tests.version
    assert run["collected"] == suite.collected
    assert run["passed"] == suite.collected - len(suite.skipped) - len(suite.left_out)


def test_packages_without_tests_have_the_versions_that_other_tests_run() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {**dict(line.split("==") for line in lines if "==" in line), "quixstreams": quix.VERSION}
    assert {package.project: package.version for package in TESTLESS} == {
        package.project: pinned[package.project] for package in TESTLESS
    }
