"""The history of clients whose nodes fail, and the logs that the nodes have at its end.

A history is a list of events, each client's in its own order; an event is a mapping whose `op` names the kind. Values
of records are `producer:number`. Times are seconds of one monotonic clock of the machine.

| op | client | facts |
|---|---|---|
| sent | producer | producer, count: the numbers below it were sent |
| acked | producer | producer, topic, partition, records: [number, offset] of each acknowledged record |
| failed | producer | producer, number, why: the client gave the record up |
| unknown | producer | producer, number, why: the record may be there |
| begun | transactional producer | producer, first, count: the numbers of one transaction |
| ending | transactional producer | producer, first, commits, at_s: before the end is requested |
| ended | transactional producer | producer, first, outcome: committed, aborted or unknown |
| assigned | reader | reader, topic, partition, offset (None in a group), at_s |
| polled | reader | reader, topic, partition, offsets, values, at_s; perhaps keys |
| committed | reader of a group | reader, topic, partition, offset, asked_s, at_s |
| commit-unknown | reader of a group | reader, topic, partition, offset, asked_s |
| reset | reader | reader, why: the client lost its position |
| create, enlarge | administrator | topic, count: of partitions |
| delete | administrator | topic |
| set | administrator | value: of the setting that is changed again and again |

The ops of an administrator may end in `-unknown`: the change may have happened.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Event = Mapping[str, Any]
Place = tuple[str, int]
"""Topic and partition."""
UNKNOWN_OFFSET: Final = -1
"""The offset of an acknowledged record when the acknowledgement did not state the offset to its producer.

librdkafka takes the acknowledgement of a record for the acknowledgement of all earlier records, too. That happens when
the new leader refuses the retry of a batch, since the leader has not taken its role yet, and then finds the next batch
in its log.
"""


class StoredBatch(NamedTuple):
    """A batch of a replica's log: its offsets, and its bytes or their digest."""

    base_offset: int
    last_offset: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """The log of one replica, from its files."""

    start_offset: int
    batches: Sequence[StoredBatch]
    last_values: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """The offset and the value of the last record of each key, of a compacted topic."""


@dataclass(frozen=True, slots=True)
class FinalLog:
    """The log of a partition when all clients have ended, from the start to the high watermark."""

    start_offset: int
    high_watermark: int
    values: Mapping[int, str]
    """The values by offset, without control records."""
    keys: Mapping[int, str] = field(default_factory=dict)
    """The keys by offset, of records that have a key."""
    aborted: frozenset[int] = frozenset()
    """Offsets of records whose transaction was aborted."""


class SentTransaction(NamedTuple):
    """The records `first` to `first + count - 1` of a producer."""

    producer: str
    first: int
    size: int


class Ending(NamedTuple):
    """The end of a transaction as requested by its producer."""

    commits: bool
    at_s: float


@dataclass(slots=True)
class ReplicaHistory:
    """The events, by their subjects."""

    sent: dict[str, int] = field(default_factory=dict)
    acked: dict[Place, list[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Producer, number and offset of acknowledged records, in the order of the acknowledgements."""
    failed: list[Event] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    """The number of records of unknown outcome, by producer."""
    transactions: dict[tuple[str, int], SentTransaction] = field(default_factory=dict)
    """The sent transactions by producer and first number. The next two fields have the same keys."""
    endings: dict[tuple[str, int], Ending] = field(default_factory=dict)
    outcomes: dict[tuple[str, int], str] = field(default_factory=dict)
    reads: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    """The events of each reader: assigned, polled, committed, commit-unknown."""
    resets: list[Event] = field(default_factory=list)
    changes: list[Event] = field(default_factory=list)
    """The events of the administrator."""

    def add(self, events: Iterable[Event]) -> None:
        """Take the events of one client."""
        for event in events:
            self._add_event(event)

    def _add_event(self, event: Event) -> None:
        match event["op"]:
            case "sent":
                self.sent[event["producer"]] = event["count"]
            case "acked":
                producer = event["producer"]
                place = event["topic"], event["partition"]
                self.acked[place] += [(producer, number, offset) for number, offset in event["records"]]
            case "failed":
                self.failed.append(event)
            case "unknown":
                self.unknown[event["producer"]] += 1
            case "begun":
                key = event["producer"], event["first"]
                self.transactions[key] = SentTransaction(*key, event["count"])
            case "ending":
                self.endings[event["producer"], event["first"]] = Ending(event["commits"], event["at_s"])
            case "ended":
                self.outcomes[event["producer"], event["first"]] = event["outcome"]
            case "reset":
                self.resets.append(event)
            case "assigned" | "polled" | "committed" | "commit-unknown":
                self.reads[event["reader"]].append(event)
            case op if op.removesuffix("-unknown") in ("create", "enlarge", "delete", "set"):
                self.changes.append(event)
            case unknown:
                raise ValueError(f"no event of a history: {unknown}")

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged records."""
        return sum(map(len, self.acked.values()))

    @property
    def polled(self) -> int:
        """The number of records that readers have got; a record counts once for each reader."""
        return sum(
            len(event["offsets"]) for events in self.reads.values() for event in events if event["op"] == "polled"
        )


def number_of(value: str) -> tuple[str, int]:
    """The producer of this value, and the number of the record."""
    producer, _, number = value.partition(":")
    return producer, int(number)
