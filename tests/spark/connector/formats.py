"""The two formats of one Spark session, and the outcome of a read or a write with each."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark.connector.cases import BothRefuse, Differs, Relation, SameRows
from tailrace.model.errors import KafkaError
from tailrace.spark.source import TailraceDataSource

OURS: Final = "tailrace"
CONNECTOR: Final = "kafka"

_IMPATIENCE = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}
"""The connector looks up a topic that is missing for a minute, three times: not where it is to fail in the end."""

FAULTS = (PySparkException, Py4JJavaError)

SPARK_IS_ASKED: Final = os.environ.get("SPARK_TESTS") == "all"
"""Whether refusals of ours go through Spark too, as in `make soak`."""

Options = Mapping[str, str]


class Read(NamedTuple):
    """Rows that came, with all columns, sorted by their places."""

    schema: str
    rows: list[tuple[Any, ...]]


_FAULT = re.compile(r"^[\w.]+(?:Error|NotWritten): .*$", re.MULTILINE)


class Refused(NamedTuple):
    """The end of a query that failed."""

    why: str

    @classmethod
    def by(cls, name: str, fault: Exception) -> "Refused":
        """Our format's refusal is its last line: lines of code that Spark hands on name options too."""
        lines = _FAULT.findall(str(fault)) if name == OURS else []
        return cls(lines[-1] if lines else str(fault))

    def says(self, pattern: str) -> bool:
        return re.search(pattern, self.why) is not None


Outcome = Read | Refused


def is_as_listed(outcome: Outcome, listed: int | str) -> bool:
    """Whether the outcome is a read of so many rows, or a refusal that this regular expression finds."""
    if isinstance(outcome, Refused):
        return isinstance(listed, str) and outcome.says(listed)
    return len(outcome.rows) == listed


def plain(value: Any) -> Any:
    """A value of a row that can be compared."""
    if isinstance(value, bytearray):
        return bytes(value)
    return tuple(map(plain, value)) if isinstance(value, (tuple, list)) else value


PLACE = itemgetter(2, 3, 4)
"""Topic, partition and offset of a row."""


def in_order(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The rows by their places."""
    return [plain(row) for row in sorted(rows, key=PLACE)]


@dataclass(frozen=True, slots=True)
class Format:
    """A format, ours or the connector's, for the topics of a cluster."""

    name: str
    spark: SparkSession
    servers: str

    def options(self, given: Options, *, is_patient: bool = True) -> dict[str, str]:
        patience = {} if is_patient or self.name == OURS else _IMPATIENCE
        options = {"kafka.bootstrap.servers": "SERVERS", **patience, **given}
        return {name: value.replace("SERVERS", self.servers) for name, value in options.items()}

    def frame(self, given: Options, *, is_patient: bool = True) -> DataFrame:
        return self.spark.read.format(self.name).options(**self.options(given, is_patient=is_patient)).load()

    def refusal(self, given: Options, make: Callable[[TailraceDataSource], object]) -> Refused | None:
        """Our refusal by options and columns alone, without the process that Spark would start for the refusal.

        tests/spark shows that Spark hands the refusal on; `make soak` has Spark ask each time.
        """
        if self.name != OURS or SPARK_IS_ASKED:
            return None
        try:
            make(TailraceDataSource(self.options(given)))
        except KafkaError as fault:
            return Refused(str(fault))
        return None

    def read(self, given: Options, *, is_patient: bool = True) -> Outcome:
        """A batch read."""
        if refusal := self.refusal(given, lambda source: source.reader(source.schema())):
            return refusal
        try:
            frame = self.frame(given, is_patient=is_patient)
            return Read(frame.schema.simpleString(), in_order(frame.collect()))
        except FAULTS as fault:
            return Refused.by(self.name, fault)

    def tasks(self, given: Options) -> int:
        return self.frame(given).rdd.getNumPartitions()


def assert_related(relation: Relation, found: Outcome, beside: Outcome) -> None:
    """Assert that our outcome, and the connector's beside it, relate so."""
    match relation:
        case SameRows(rows):
            assert isinstance(found, Read), found
            assert found == beside, f"{found}, the connector {beside}"
            assert len(found.rows) == rows, f"{len(found.rows)} rows"
        case BothRefuse(naming):
            assert is_as_listed(found, naming), found
            assert isinstance(beside, Refused), beside
        case Differs(_, of_ours, of_connector):
            assert is_as_listed(found, of_ours), found
            assert is_as_listed(beside, of_connector), beside
