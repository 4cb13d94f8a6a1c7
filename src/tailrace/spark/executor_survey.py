"""A short job on a Spark cluster that finds out what the tasks of its executors run on, and what to change."""

import platform
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow
from pyspark import cloudpickle
from pyspark.errors import PySparkException

from tailrace.model import __version__
from tailrace.protocol.records.kernels import KERNEL
from tailrace.spark import probe
from tailrace.spark.session import local_session

SOURCES_RUN = (
    "Spark runs data sources, on executors too, with the Python of the driver's PYSPARK_DRIVER_PYTHON, or, if that is "
    "not set, of its PYSPARK_PYTHON: that path must be a Python with Tailrace on every machine"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """The findings of the tasks of one executor, or of the driver."""

    where: str
    tasks: int
    python: str
    tailrace: str
    pyarrow: str
    kernel: str
    rack: str
    unreached: tuple[str, ...]
    """The addresses of brokers that could not be connected to."""


class SurveyFailed(Exception):
    """The job did not run: with Spark's reason, and the way out."""


def survey(master: str, addresses: Sequence[str], *, tasks: int, rack_variable: str = "") -> list[Surveyed]:
    """The driver, then each executor that a task has reached, by name.

    Raises SurveyFailed if the job fails, such as on executors without a Python of that path. Takes seconds.
    """
    cloudpickle.register_pickle_by_value(probe)
    session = local_session("tailrace-doctor", master=master)
    try:
        session.dataSource.register(probe.ProbeSource)
        reader = session.read.format(probe.NAME).option("tasks", tasks).option("addresses", ",".join(addresses))
        rows = reader.option("rackenv", rack_variable).load().collect()
    except PySparkException as fault:
        raise SurveyFailed(f"{_last_line(str(fault))}; {SOURCES_RUN}") from fault
    finally:
        session.stop()
        cloudpickle.unregister_pickle_by_value(probe)
    counts = Counter(tuple(row) for row in rows)
    return [_driver(), *sorted((_surveyed(facts, count) for facts, count in counts.items()), key=lambda one: one.where)]


def _driver() -> Surveyed:
    return Surveyed(
        where="driver",
        tasks=0,
        python=f"{sys.executable} {platform.python_version()}",
        tailrace=__version__,
        pyarrow=pyarrow.__version__,
        kernel=KERNEL,
        rack="",
        unreached=(),
    )


def _surveyed(facts: Iterable[str], tasks: int) -> Surveyed:
    where, python, tailrace, pyarrow_version, kernel, rack, unreached = facts
    return Surveyed(
        where=where,
        tasks=tasks,
        python=python,
        tailrace=tailrace,
        pyarrow=pyarrow_version,
        kernel=kernel,
        rack=rack,
        unreached=tuple(filter(None, unreached.split(","))),
    )


def _last_line(text: str) -> str:
    """The last line of a Python traceback in Spark's message, or of the message."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("\t", "JVM", "== "))]
    named = [line for line in lines if "Error" in line or "Exception" in line]
    return (named or lines or [text])[-1]


def advice(one: Surveyed, driver: Surveyed, *, rack_variable: str = "") -> Iterator[str]:
    """The changes that this executor needs; none if all is well."""
    if not one.tailrace:
        yield f"its Python has no Tailrace: {SOURCES_RUN}"
    elif one.tailrace != driver.tailrace:
        versions = f"it has Tailrace {one.tailrace} and the driver {driver.tailrace}"
        yield f"{versions}: tasks will be refused; install one version"
    elif one.kernel != "C":
        yield "compiled records are faster: install a C compiler there, then tailrace again"
    if one.pyarrow.split(".")[0] != driver.pyarrow.split(".")[0]:
        yield f"it has pyarrow {one.pyarrow} and the driver {driver.pyarrow}: install one version"
    if rack_variable and not one.rack:
        where = f"its environment, or spark.executorEnv.{rack_variable}"
        yield f"it has no {rack_variable} and reads from the leaders: set it in {where}"
    for address in one.unreached:
        yield f"it cannot connect to {address}, which a broker advertises: open the way, or change advertised.listeners"
