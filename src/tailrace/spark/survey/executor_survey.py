"""The Python, versions and ways to brokers of the executors of a Spark cluster, and the changes that they need."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tailrace.spark.pickled_plan import SOURCES_RUN
from tailrace.spark.survey.survey_job import Facts, SurveyJob


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


def survey(
    master: str,
    addresses: Sequence[str],
    *,
    tasks: int,
    rack_variable: str = "",
    settings: Mapping[str, str] | None = None,
    timeout_s: float,
) -> list[Surveyed]:
    """The driver, then each executor that a task has reached, by name; `settings` are Spark's, `spark.x`.

    Raises SurveyFailed if the job fails, or is not done within the time limit (see SurveyJob).
    """
    job = SurveyJob(master, settings or {}, tasks=tasks, addresses=addresses, rack_variable=rack_variable)
    driver, found = job.run(timeout_s)
    counts = Counter(tuple(facts) for facts in found)
    executors = sorted(
        (_surveyed(facts, count) for facts, count in counts.items()), key=lambda executor: executor.where
    )
    return [replace(_surveyed(driver, 0), where="driver"), *executors]


def _surveyed(facts: Facts, tasks: int) -> Surveyed:
    where, python, tailrace, pyarrow, kernel, rack, unreached = facts
    return Surveyed(
        where=where,
        tasks=tasks,
        python=python,
        tailrace=tailrace,
        pyarrow=pyarrow,
        kernel=kernel,
        rack=rack,
        unreached=tuple(filter(None, unreached.split(","))),
    )


def tasks_fail(executor: Surveyed, driver: Surveyed) -> bool:
    """Whether tasks of a query would fail on this executor. Another version of pyarrow does not make tasks fail."""
    return (
        not executor.tailrace
        or executor.tailrace != driver.tailrace
        or not executor.pyarrow
        or bool(executor.unreached)
    )


def advice(executor: Surveyed, driver: Surveyed, *, rack_variable: str = "") -> Iterator[str]:
    """The changes that this executor needs; empty for a good executor."""
    if not executor.tailrace:
        yield f"its Python has no Tailrace: {SOURCES_RUN}"
    elif executor.tailrace != driver.tailrace:
        versions = f"it has Tailrace {executor.tailrace} and the driver {driver.tailrace or 'none'}"
        yield f"{versions}: tasks will be refused; install one version"
    elif executor.kernel != "C":
        yield "compiled records are faster: install a C compiler there, then tailrace again"
    if not executor.pyarrow:
        yield "its Python has no pyarrow, and tasks will fail: pip install 'tailrace[arrow]' in it"
    elif driver.pyarrow and executor.pyarrow.split(".")[0] != driver.pyarrow.split(".")[0]:
        yield (
            f"it has pyarrow {executor.pyarrow} and the driver {driver.pyarrow}: "
            "tasks will run, but install one version"
        )
    if rack_variable and not executor.rack:
        where = f"its environment, or spark.executorEnv.{rack_variable}"
        yield f"it has no {rack_variable} and reads from the leaders: set it in {where}"
    for address in executor.unreached:
        yield f"it cannot connect to {address}, which a broker advertises: open the way, or change advertised.listeners"
