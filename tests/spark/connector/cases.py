"""A case of the comparison with Spark's Kafka connector: options, and how the two outcomes relate.

A difference has its reason, and both outcomes as they are, so that the list of differences stays true.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pytest
from _pytest.mark.structures import ParameterSet

from spark.connector.topics import ORDERS


@dataclass(frozen=True, slots=True)
class SameRows:
    """Both read, or write, the same rows: so many."""

    rows: int


@dataclass(frozen=True, slots=True)
class BothRefuse:
    """Both fail; the last line of ours matches `naming`, a regular expression."""

    naming: str


@dataclass(frozen=True, slots=True)
class Differs:
    """The outcomes differ: a number of rows, or a regular expression of the refusal."""

    reason: str
    ours: int | str
    connectors: int | str


Relation = SameRows | BothRefuse | Differs


class NumberOfTasks(NamedTuple):
    """The tasks of a read, and why they are more or fewer than the connector's."""

    ours: int
    connectors: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """The options of a read, beside the servers' address, for which SERVERS stands."""

    name: str
    relation: Relation
    given: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = ORDERS
    """The option `subscribe`; None: without the option."""
    tasks: NumberOfTasks | None = None

    @property
    def options(self) -> dict[str, str]:
        return {**({} if self.topic is None else {"subscribe": self.topic}), **self.given}

    @property
    def is_refused_by_connector(self) -> bool:
        refusal = isinstance(self.relation, Differs) and isinstance(self.relation.connectors, str)
        return refusal or isinstance(self.relation, BothRefuse)

    def __str__(self) -> str:
        return self.name


def offsets(first: object, second: object, *, topic: str = ORDERS) -> str:
    """Offsets, or times, of the two partitions as JSON."""
    return json.dumps({topic: {"0": first, "1": second}})


def of_one(offset: object, *, topic: str) -> str:
    """The offset of the only partition as JSON."""
    return json.dumps({topic: {"0": offset}})


_ONE_OF = 10
_SOAK = pytest.mark.soak


class _Related(Protocol):
    @property
    def relation(self) -> Relation: ...


def marked(cases: Sequence[_Related]) -> list[ParameterSet]:
    """The cases. `make test` runs cases that differ and some of the rest; what it leaves out has the mark `soak`."""
    return [
        pytest.param(case, marks=[] if isinstance(case.relation, Differs) or number % _ONE_OF == 0 else [_SOAK])
        for number, case in enumerate(cases)
    ]
