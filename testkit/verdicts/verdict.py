"""The verdict on a node that was killed, from a history of its clients: every broken promise, as a sentence.

A history is a list of events, each client's in its own order, with what a reader found at the end. An event is a
mapping whose `op` names its kind (see `History`). An event whose op ends in `unknown` may have happened or not;
everything else was acknowledged. Values are `producer:number`, keys are text.

The promises: an acknowledged record is there once, at its offset, and in the order in which it was sent; there is no
record that was not sent; a compacted topic keeps each key's last value; a group goes on where it committed, and reads
the same records as all readers; a topic or setting that was acknowledged is there.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]
Place = tuple[str, int, int]
"""Topic, partition, offset."""
Record = tuple[str, int]
"""Producer and number: what a value says."""
UNKNOWN_OFFSET = -1
"""The offset of an acknowledged record when the acknowledgement did not state the offset to its producer.

librdkafka takes a later record's acknowledgement for acknowledgements of every earlier record. That happens when the
new leader refuses the retry of a batch, since the leader has not taken its role yet, and then finds the next batch in
its log.
"""


@dataclass(frozen=True, slots=True)
class AtTheEnd:
    """The cluster as an administrator sees it after the last start."""

    topics: Mapping[str, int]
    """The number of partitions of each topic."""
    committed: Mapping[int, int]
    """The group's offsets, by partition."""
    setting: int
    """The value of the setting that was changed again and again."""


@dataclass(slots=True)
class History:
    """The events, sorted by their subject.

    Producers: `acked` and `unknown` (of one record), `sent` (how many, and how many records were not even tried). The
    reader: `read`. The group: `assigned`, `polled`, `committed`, `commit-unknown`. The administrator, each also with
    `-unknown`: `create`, `enlarge`, `delete`, `set`.
    """

    acked: dict[Record, Place] = field(default_factory=dict)
    keys: dict[Record, str] = field(default_factory=dict)
    """The keys of acknowledged records with a key."""
    unknown: set[Record] = field(default_factory=set)
    sent: dict[str, int] = field(default_factory=dict)
    unsent: dict[str, int] = field(default_factory=dict)
    read: dict[Record, list[Place]] = field(default_factory=lambda: defaultdict(list))
    logs: dict[tuple[str, int], list[tuple[int, str | None, Record]]] = field(default_factory=lambda: defaultdict(list))
    """The reader's records of each partition, in its order: offset, key, record."""
    group: list[Event] = field(default_factory=list)
    admin: list[Event] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._add_event(event)

    def _add_event(self, event: Event) -> None:
        match event["op"]:
            case "acked":
                record = event["producer"], event["number"]
                self.acked[record] = event["topic"], event["partition"], event["offset"]
                if event.get("key") is not None:
                    self.keys[record] = event["key"]
            case "unknown":
                self.unknown.add((event["producer"], event["number"]))
            case "sent":
                self.sent[event["producer"]] = event["count"]
                self.unsent[event["producer"]] = event["unsent"]
            case "read":
                record = record_of(event["value"])
                self.read[record].append((event["topic"], event["partition"], event["offset"]))
                self.logs[event["topic"], event["partition"]].append((event["offset"], event["key"], record))
            case "assigned" | "polled" | "committed" | "commit-unknown":
                self.group.append(event)
            case _:
                self.admin.append(event)


def record_of(value: str) -> Record:
    """The producer of this value, and the number of the record."""
    producer, _, number = value.partition(":")
    return producer, int(number)


def broken_promises(history: History, end: AtTheEnd, *, compacted: str, careful: Sequence[str]) -> list[str]:
    """A sentence per promise that was broken, at most one of a kind per producer or partition.

    `compacted` is the topic that keeps only last values; `careful` has the first letters of the producers that may
    never fail, since they repeat what fails.
    """
    return [
        *_lost(history, compacted),
        *_moved(history),
        *_doubled(history),
        *_out_of_order(history),
        *_invented(history),
        *_given_up(history, careful),
        *_old_values(history, compacted),
        *_group_faults(history, end, compacted),
        *_admin_faults(history.admin, end),
    ]


def _lost(history: History, compacted: str) -> Iterator[str]:
    for record, (topic, partition, offset) in history.acked.items():
        if topic != compacted and record not in history.read:
            yield f"lost: {record} was acknowledged at {topic}-{partition}:{offset} and is not there"


def _moved(history: History) -> Iterator[str]:
    for record, place in history.acked.items():
        if place[2] != UNKNOWN_OFFSET and record in history.read and place not in history.read[record]:
            yield f"moved: {record} was acknowledged at {place} and is at {history.read[record]}"


def _doubled(history: History) -> Iterator[str]:
    for record, places in history.read.items():
        if len(places) > 1:
            yield f"doubled: {record} is at {places}"


def _out_of_order(history: History) -> Iterator[str]:
    for (topic, partition), records in history.logs.items():
        newest: dict[str, int] = defaultdict(lambda: -1)
        last_offset = -1
        for offset, _, (producer, number) in records:
            if number < newest[producer] or offset <= last_offset:
                yield f"out of order: {producer}:{number} at {topic}-{partition}:{offset} after {newest[producer]}"
            newest[producer], last_offset = number, offset


def _invented(history: History) -> Iterator[str]:
    for producer, number in history.read:
        if number >= history.sent.get(producer, 0):
            yield f"invented: {producer}:{number} was not sent"


def _given_up(history: History, careful: Sequence[str]) -> Iterator[str]:
    for producer, count in history.sent.items():
        if producer[0] in careful:
            failed = sum(name == producer for name, _ in history.unknown)
            acked = sum(name == producer for name, _ in history.acked)
            if failed or history.unsent[producer] or acked != count:
                yield f"given up: of {count} records of {producer}, {acked} were acknowledged and {failed} failed"


def _old_values(history: History, compacted: str) -> Iterator[str]:
    """The last record of each key in the log must be at least as new as the newest that was acknowledged."""
    there: dict[str, int] = {}
    for (topic, _), records in history.logs.items():
        if topic == compacted:
            there.update({key: number for _, key, (_, number) in records if key is not None})
    acked: dict[str, int] = {}
    for record, key in history.keys.items():
        if history.acked[record][0] == compacted:
            acked[key] = max(record[1], acked.get(key, -1))
    for key in sorted(acked):
        if there.get(key, -1) < acked[key]:
            yield f"old value: key {key} has record {there.get(key)}, {acked[key]} was acknowledged"


def _group_faults(history: History, end: AtTheEnd, compacted: str) -> Iterator[str]:
    logs = {
        partition: {offset: record for offset, _, record in records}
        for (topic, partition), records in history.logs.items()
        if topic != compacted
    }
    committed: dict[int, int] = {}
    """By partition, the offset of the last commit that was acknowledged: no commit is no promise of offset 0."""
    possible: dict[int, int] = defaultdict(int)
    position: dict[tuple[str, int], int | None] = {}
    for event in history.group:
        partition = event["partition"]
        match event["op"]:
            case "assigned":
                position[event["member"], partition] = None
            case "polled":
                first, last = event["records"][0][0], event["records"][-1][0]
                expected = position.get((event["member"], partition))
                if expected is None and not committed.get(partition, 0) <= first <= possible[partition]:
                    yield f"group: partition {partition} went on at {first}, committed was {committed.get(partition)}"
                elif expected is not None and first != expected:
                    yield f"group: partition {partition} jumped from {expected} to {first}"
                if last - first + 1 != len(event["records"]):
                    yield f"group: partition {partition} has a gap between {first} and {last}"
                yield from _misread(partition, event["records"], logs.get(partition, {}))
                position[event["member"], partition] = last + 1
            case "committed":
                committed[partition] = event["offset"]
                possible[partition] = max(possible[partition], event["offset"])
            case "commit-unknown":
                possible[partition] = max(possible[partition], event["offset"])
    for partition in sorted(committed.keys() | end.committed.keys()):
        if not committed.get(partition, 0) <= end.committed.get(partition, -1) <= possible[partition]:
            last, there = committed.get(partition), end.committed.get(partition)
            yield f"group: {last} was committed for {partition}, {there} is there"


def _misread(partition: int, records: Sequence[Sequence[Any]], log: Mapping[int, Record]) -> Iterator[str]:
    for offset, value in records:
        if log.get(offset) != record_of(value):
            yield f"group: {value} was read at {partition}:{offset}, where now {log.get(offset)} is"
            return


def _admin_faults(events: Iterable[Event], end: AtTheEnd) -> Iterator[str]:
    counts: dict[str, int] = {}
    may_be_gone: set[str] = set()
    must_be_gone: set[str] = set()
    setting = end.setting
    for event in events:
        match event["op"]:
            case "create" | "enlarge":
                counts[event["topic"]] = event["count"]
            case "delete":
                must_be_gone.add(event["topic"])
            case "delete-unknown":
                may_be_gone.add(event["topic"])
            case "set":
                setting = event["value"]
    for topic, count in counts.items():
        if topic in must_be_gone:
            if topic in end.topics:
                yield f"admin: {topic} was deleted and is there"
        elif topic not in may_be_gone and end.topics.get(topic, 0) < count:
            yield f"admin: {topic} was made with {count} partitions and has {end.topics.get(topic, 0)}"
    if end.setting < setting:
        yield f"admin: the setting was {setting} and is {end.setting}"


def figures(history: History, deaths: int) -> str:
    """The amount of tested work, in a line."""
    ops = Counter(str(event["op"]) for event in (*history.group, *history.admin))
    changes = sum(ops[op] for op in ("create", "enlarge", "delete", "set"))
    return (
        f"{deaths} deaths, {len(history.acked)} records acknowledged, {len(history.unknown)} unknown,"
        f" {sum(map(len, history.logs.values()))} read, {ops['committed']} commits, {ops['assigned']} assignments,"
        f" {changes} changes by the administrator"
    )
