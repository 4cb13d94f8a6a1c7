"""Rules for every test: the count of skips, and the refusals of a strict run.

`make test` ends with one line that names every reason for a skip. With STRICT=1 a skip whose reason is not in
tests/allowed_skips.txt fails the run: a test that silently stops running protects nothing.
"""

import asyncio
import gc
import inspect
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from xdist.remote import Producer

from budgets import MODEL_RUNS, examples
from compiled import compile_tests
from node_starter import use_node_starter
from second_runs import allow_second_runs
from spark_classes import make_spark_classes, use_spark_classes
from tailrace.protocol.schema import protect_values
from turns import fix_turn, in_this_run
from work_order import InOrder, cores, put_long_files_first, unlisted, workers

protect_values()  # assigning to a message is a mistake that only tests can afford to look for

settings.register_profile(
    "tailrace",
    max_examples=examples(50),
    derandomize=not MODEL_RUNS,  # the verdict on a change depends on the change; the search for more is `make soak`
    deadline=None,  # timing never decides a verdict
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("tailrace")

pytest_plugins = ["pytester"]

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)


def _allowed() -> list[str]:
    lines = ALLOWED_SKIPS.read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def pytest_configure() -> None:
    fix_turn()
    use_node_starter()
    use_spark_classes()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(
        pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters})
    )
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return workers()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    if "TEST_LANE" not in os.environ:  # else `lanes` has done so, once for all
        compile_tests(cores())
        make_spark_classes()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> InOrder | None:
    return InOrder(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SPARK_TESTS") != "all":
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]
    items[:] = in_this_run(items)
    put_long_files_first(items)
    if config.getoption("max_suite_reruns") is not None:
        allow_second_runs(items)
    if not MODEL_RUNS:
        return
    for cls in {item.cls for item in items if isinstance(item, pytest.Function) and item.cls is not None}:
        if isinstance(getattr(cls, "settings", None), settings):  # made of a RuleBasedStateMachine
            cls.settings = settings(cls.settings, max_examples=cls.settings.max_examples * MODEL_RUNS, database=None)
    for item in items:
        item.add_marker(pytest.mark.timeout(0), append=False)  # so many examples take their time, whatever a test says


def pytest_collection_finish() -> None:
    """Fix the examples of a property on every machine, and leave what is loaded to no search for garbage.

    Hypothesis tries constants of the modules that are loaded: other constants in a run of all tests than in a run of
    one test, without the compiled kernel, in a checkout below a directory named `test`, and after a change of any
    module. So a run whose verdict has to be the same everywhere tries no constant; `make soak` does.

    The tests themselves stay: a worker has 14,000 of them, and to look through them for garbage takes a fifth of the
    time of a search that makes many objects.
    """
    if not MODEL_RUNS:
        constants = Constants()
        providers._get_local_constants = lambda: constants
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    passed, failed = len(stats.get("passed", ())), len(stats.get("failed", ())) + len(stats.get("error", ()))
    reasons = Counter(_reason(report) for report in stats.get("skipped", ()))
    why = "; ".join(f"{count} x {reason}" for reason, count in reasons.items())
    terminalreporter.write_line("")
    terminalreporter.write_line(f"{passed} passed, {failed} failed, {reasons.total()} skipped")
    if reasons:
        terminalreporter.write_line(f"reasons for skips: {why}")
    reports = [report for kind in stats.values() for report in kind if isinstance(report, pytest.TestReport)]
    for name, seconds in unlisted(reports):
        terminalreporter.write_line(f"{name} took {seconds:.0f} s and is not in tests/long_files.txt")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("STRICT") != "1":
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return  # a worker of pytest-xdist: the controller has every report
    assert isinstance(reporter, pytest.TerminalReporter)
    allowed = _allowed()
    refused = sorted({_reason(r) for r in reporter.stats.get("skipped", ())} - set(allowed))
    if refused:
        reporter.write_line("\nSTRICT=1: these skips are not in tests/allowed_skips.txt:")
        for reason in refused:
            reporter.write_line(f"  {reason}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log lines: disks and nodes fail on purpose, and say so."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def hangups_are_heard() -> Iterator[None]:
    """Children end at a SIGHUP, though the parent of the tests may have had it ignored (nohup)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
