"""Foreign programs are fetched before the first test: the time of a test is not for that."""

from pathlib import Path
from types import FunctionType

import pytest

from benchmarks.downloads import franz_go
from benchmarks.downloads.fetching import alone
from benchmarks.downloads.kafka_jars import PROGRAM_JARS, SHELL_JARS, programs_absent
from interop import clients, kafka_tools, kafkajs
from interop.programs import quix
from interop.records import rack_consumers, sarama
from interop.suites import foreign_suites, go_modules, kafka_python_suite
from tailrace.testing import Cluster

PROGRAMS = {
    kafka_tools.absent: kafka_tools.JARS,
    kafka_tools.shell_absent: SHELL_JARS,
    kafkajs.absent: kafkajs.HOME,
    kafka_python_suite.absent: kafka_python_suite.KAFKA_PYTHON.tests.home,
    foreign_suites.arroyo_absent: foreign_suites.ARROYO.tests.home,
    franz_go.absent: franz_go.PROGRAM.home,
    sarama.absent: sarama.PROGRAM.home,
    go_modules.franz_go_absent: go_modules.FRANZ_GO.home,
    go_modules.kafka_go_absent: go_modules.KAFKA_GO.home,
    programs_absent: PROGRAM_JARS,
    quix.absent: quix.HOME,
}
"""Places of programs, by the function that returns the reason for a program's absence."""


@pytest.fixture(scope="module", name="kafka_tools")
def _kafka_tools() -> None:
    """Apache Kafka's tools, or the test is skipped."""
    if why := kafka_tools.absent():
        pytest.skip(why)


def pytest_collection_finish(session: pytest.Session) -> None:
    """A test module that asks whether a program is absent needs the program; so does a test with its fixture."""
    if session.config.option.collectonly:
        return
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    asked: set[object] = {
        value for module in modules for value in vars(module).values() if isinstance(value, FunctionType)
    }
    if any("kafka_tools" in getattr(item, "fixturenames", ()) for item in session.items):
        asked.add(kafka_tools.absent)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for absent, home in PROGRAMS.items():
        of_any_client = bool(asked & {clients.absent, rack_consumers.absent})
        is_asked = absent in asked or (of_any_client and absent in (kafka_tools.absent, kafkajs.absent))
        if is_asked and not home.exists():
            if reporter is not None:
                reporter.write_line(f"fetching {home.name}")
            with alone(home.parent):
                absent()
        if is_asked and home in (kafka_tools.JARS, SHELL_JARS) and not kafka_tools.are_classes_archived(home):
            with alone(home.parent):
                _archive_classes(home)


def _archive_classes(jars: Path) -> None:
    if kafka_tools.are_classes_archived(jars):
        return
    with Cluster() as cluster:
        if jars == SHELL_JARS:
            kafka_tools.archive_classes_of_shell(cluster.data_dir() / "__cluster_metadata-0" / f"{0:020}.log")
        else:
            kafka_tools.archive_classes(cluster.bootstrap_servers)
