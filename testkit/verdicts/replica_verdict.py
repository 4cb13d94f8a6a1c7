"""The verdict on a cluster from what its clients saw: each broken promise as a sentence that begins with its kind.

| Kind | Broken promise |
|---|---|
| lost | an acknowledged record, or one of a committed transaction, is there; no last value of a key is older |
| moved | an acknowledged record is at the offset of its acknowledgement |
| duplicated | a record is there once, in one partition |
| reordered | the records of one producer in one partition stand in the order in which they were sent |
| invented | each record was sent |
| given up | an idempotent producer without a limit of time fails no record, nor does a careful producer |
| torn | a transaction is there whole or not at all |
| skipped | a reader gets every committed record between the first and the last that it gets |
| unseen | a reader gets all committed records up to the end |
| went back | a reader's offsets rise while a partition is assigned; a group goes on at its committed offset |
| uncommitted shown | a record that a reader gets stays at its offset; the commit of its transaction was requested |
| aborted shown | a reader of committed records gets none of an aborted transaction |
| reset | no reader loses its position |
| diverged | replicas have equal bytes (if compacted, last values) from the larger log start to the high watermark |

The rules are the rules of `jepsen.tests.kafka`, for clients that name partitions and readers that read committed
records. Each kind is reported once per client and partition, with the count.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from testkit.verdicts.replica_history import (
    UNKNOWN_OFFSET,
    Event,
    FinalLog,
    Place,
    ReplicaHistory,
    ReplicaLog,
    SentTransaction,
    StoredBatch,
    number_of,
)

_TransactionOf = Mapping[tuple[str, int], SentTransaction]
"""The transaction of each record, by producer and number."""
KINDS = (
    "lost",
    "moved",
    "duplicated",
    "reordered",
    "invented",
    "given up",
    "torn",
    "skipped",
    "unseen",
    "went back",
    "uncommitted shown",
    "aborted shown",
    "reset",
    "diverged",
)


@dataclass(frozen=True)
class Evidence:
    """The material of a verdict."""

    history: ReplicaHistory
    logs: Mapping[Place, FinalLog]
    replicas: Mapping[Place, Mapping[int, ReplicaLog]]
    """The log of each node that has the partition."""
    compacted: frozenset[str] = frozenset()
    """Topics that keep the last record of each key."""
    transactional: frozenset[str] = frozenset()
    """Topics all of whose records belong to transactions."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """The group of each reader that is in a group. The other readers read the partitions of their first `assigned`
    events."""
    unfinished: frozenset[str] = frozenset()
    """Groups whose members end before they have read all."""
    careful: frozenset[str] = frozenset()
    """Producers whose records must all be acknowledged in the end, since they repeat failed records."""
    key_of: Callable[[str], str | None] = lambda value: None
    """The key of the record with this value, in compacted topics."""

    @cached_property
    def shapes(self) -> Mapping[Place, "LogShape"]:
        return {place: LogShape(log) for place, log in self.logs.items()}


class LogShape:
    """The records of a log that a reader of committed records gets, in order."""

    def __init__(self, log: FinalLog) -> None:
        self.log = log
        self.offsets = [offset for offset in sorted(log.values) if offset not in log.aborted]
        self.values = [log.values[offset] for offset in self.offsets]

    def rank(self, offset: int) -> int:
        """The number of visible records before this offset."""
        return bisect_left(self.offsets, offset)

    def next_rank(self, offset: int) -> int:
        """The number of visible records up to this offset, the offset included."""
        return bisect_right(self.offsets, offset)

    @cached_property
    def last_offsets(self) -> Mapping[str, int]:
        """The offset of the last record of each key."""
        return {self.log.keys[offset]: offset for offset in sorted(self.log.keys)}


def broken_promises(evidence: Evidence) -> list[str]:
    """Every broken promise."""
    return [
        *_acknowledged_faults(evidence),
        *_old_values(evidence),
        *_log_faults(evidence),
        *_given_up(evidence),
        *_transaction_faults(evidence),
        *_reader_faults(evidence),
        *_group_faults(evidence),
        *(f"reset: {lost['reader']}: {lost['why']}" for lost in evidence.history.resets),
        *divergences(evidence),
    ]


def _acknowledged_faults(evidence: Evidence) -> Iterator[str]:
    for place, records in evidence.history.acked.items():
        log = evidence.logs.get(place)
        if log is None:
            yield f"lost: {_name(place)} with its {len(records)} acknowledged records"
            continue
        if place[0] in evidence.compacted | evidence.transactional:
            continue
        offset_of = {value: offset for offset, value in log.values.items()}
        lost: list[str] = []
        moved: list[str] = []
        for producer, number, offset in records:
            value = f"{producer}:{number}"
            if offset < log.start_offset and (offset != UNKNOWN_OFFSET or log.start_offset):
                continue  # removed on purpose, or perhaps so
            if log.values.get(offset) != value:
                found = offset_of.get(value)
                if found is None:
                    lost.append(f"{value} at {offset}")
                elif offset != UNKNOWN_OFFSET:
                    moved.append(f"{value} from {offset} to {found}")
        yield from _counted("lost", place, lost)
        yield from _counted("moved", place, moved)


def _old_values(evidence: Evidence) -> Iterator[str]:
    for place, records in evidence.history.acked.items():
        if place[0] not in evidence.compacted or place not in evidence.logs:
            continue
        log, last_offsets = evidence.logs[place], evidence.shapes[place].last_offsets
        newest: dict[str, int] = {}
        for producer, number, offset in records:
            key = evidence.key_of(f"{producer}:{number}")
            if key is not None:
                newest[key] = max(offset, newest.get(key, -1))
        old = [
            f"key {key} ends at {last_offsets.get(key)}, {offset} was acknowledged"
            for key, offset in newest.items()
            if last_offsets.get(key, -1) < offset
        ]
        yield from _counted("lost", place, old)
        acked = {offset: f"{producer}:{number}" for producer, number, offset in records}
        changed = [
            f"{acked[offset]} from {offset}, where {value} is"
            for offset, value in log.values.items()
            if acked.get(offset, value) != value
        ]
        yield from _counted("moved", place, changed)


def _given_up(evidence: Evidence) -> Iterator[str]:
    history = evidence.history
    for failed in history.failed:
        yield f"given up: {failed['producer']}:{failed['number']}: {failed['why']}"
    acked = Counter(name for name, _ in {record[:2] for records in history.acked.values() for record in records})
    for producer in sorted(evidence.careful):
        count, unknown = history.sent.get(producer, 0), history.unknown[producer]
        if unknown or acked[producer] != count:
            known = f"{acked[producer]} were acknowledged and {unknown} failed"
            yield f"given up: of {count} records of {producer}, {known}"


def _log_faults(evidence: Evidence) -> Iterator[str]:
    seen: set[tuple[str, int]] = set()
    for place, log in evidence.logs.items():
        newest: dict[str, int] = {}
        duplicated: list[str] = []
        reordered: list[str] = []
        invented: list[str] = []
        for offset in sorted(log.values):
            producer, number = record = number_of(log.values[offset])
            if record in seen:
                duplicated.append(f"{producer}:{number} again at {offset}")
            elif number < newest.get(producer, -1):
                reordered.append(f"{producer}:{number} at {offset} after {newest[producer]}")
            if number >= evidence.history.sent.get(producer, 0):
                invented.append(f"{producer}:{number} at {offset}")
            seen.add(record)
            newest[producer] = max(number, newest.get(producer, -1))
        yield from _counted("duplicated", place, duplicated)
        yield from _counted("reordered", place, reordered)
        yield from _counted("invented", place, invented)


def _transaction_faults(evidence: Evidence) -> Iterator[str]:
    visible: set[tuple[str, int]] = set()
    for place, shape in evidence.shapes.items():
        if place[0] in evidence.transactional:
            visible.update(map(number_of, shape.values))
    for key, (producer, first, count) in evidence.history.transactions.items():
        found = sum((producer, number) in visible for number in range(first, first + count))
        outcome = evidence.history.outcomes.get(key, "unknown")
        name = f"{found} of {count} records of the transaction {producer}:{first}, which is {outcome}"
        if outcome == "committed" and found < count:
            yield f"lost: {name}"
        elif outcome == "aborted" and found:
            yield f"aborted shown: {name}, would be shown to readers"
        elif 0 < found < count:
            yield f"torn: {name}"


def _reader_faults(evidence: Evidence) -> Iterator[str]:
    transaction_of = _transactions_by_record(evidence.history)
    for reader, events in evidence.history.reads.items():
        cursors: dict[Place, _Cursor] = {}
        for event in events:
            place = event["topic"], event["partition"]
            if event["op"] not in ("assigned", "polled") or place not in evidence.logs:
                continue
            if place not in cursors:
                cursors[place] = _Cursor(evidence, place, transaction_of)
            if event["op"] == "assigned":
                cursors[place].assign(event["offset"])
            else:
                cursors[place].take(event)
        for place, cursor in cursors.items():
            if reader not in evidence.groups:
                cursor.end()
            for kind, details in cursor.faults.items():
                yield from _counted(kind, place, details, reader)


def _transactions_by_record(history: ReplicaHistory) -> _TransactionOf:
    return {
        (transaction.producer, number): transaction
        for transaction in history.transactions.values()
        for number in range(transaction.first, transaction.first + transaction.size)
    }


class _Cursor:
    """The position of one reader in one partition, and the broken promises to this reader there."""

    def __init__(self, evidence: Evidence, place: Place, transaction_of: _TransactionOf) -> None:
        self._evidence = evidence
        self._shape = evidence.shapes[place]
        self._is_compacted = place[0] in evidence.compacted
        self._transaction_of = transaction_of if place[0] in evidence.transactional else {}
        self._last: int | None = None
        """The offset of the last record since the assignment, or the offset before the first that the reader must
        get."""
        self.faults: dict[str, list[str]] = defaultdict(list)

    def assign(self, offset: int | None) -> None:
        self._last = None if offset is None else offset - 1

    def take(self, event: Event) -> None:
        offsets, values = event["offsets"], event["values"]
        shape = self._shape
        rank = shape.rank(offsets[0])
        is_next = self._last is None or (offsets[0] > self._last and shape.next_rank(self._last) == rank)
        if not is_next or shape.offsets[rank : rank + len(offsets)] != offsets:
            self._take_singly(offsets)
        self._last = offsets[-1]
        if shape.values[rank : rank + len(values)] != values:
            for offset, value in zip(offsets, values, strict=True):
                self._compare(offset, value)
        if self._transaction_of:
            self._check_time(event)

    def _take_singly(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if self._last is not None:
                if offset <= self._last:
                    self.faults["went back"].append(f"from {self._last} to {offset}")
                elif self._shape.next_rank(self._last) < self._shape.rank(offset):
                    self.faults["skipped"].append(f"from {self._last} to {offset}")
            self._last = offset

    def _compare(self, offset: int, value: str) -> None:
        log = self._shape.log
        there = log.values.get(offset)
        if there == value:
            if offset in log.aborted:
                self.faults["aborted shown"].append(f"{value} at {offset}")
            return
        if there is None and offset < log.start_offset:
            return
        if there is None and self._is_compacted:
            key = self._evidence.key_of(value)
            if key is not None and self._shape.last_offsets.get(key, -1) > offset:
                return  # replaced by a later record of the key
        self.faults["uncommitted shown"].append(f"{value} at {offset}, where {there or 'nothing'} is")

    def _check_time(self, event: Event) -> None:
        history = self._evidence.history
        for value in event["values"]:
            transaction = self._transaction_of.get(number_of(value))
            if transaction is None:
                continue
            key = transaction.producer, transaction.first
            ending = history.endings.get(key)
            if ending is None or not ending.commits:
                self.faults["aborted shown"].append(f"{value}, whose transaction was not to be committed")
            elif event["at_s"] < ending.at_s:
                self.faults["uncommitted shown"].append(f"{value}, before the end of its transaction was requested")

    def end(self) -> None:
        """Check that every committed record was read."""
        left = len(self._shape.offsets) - (0 if self._last is None else self._shape.next_rank(self._last))
        if left:
            self.faults["unseen"].append(f"{left} records behind {self._last}")


def _group_faults(evidence: Evidence) -> Iterator[str]:
    members: dict[str, list[tuple[str, Event]]] = defaultdict(list)
    for reader, group in evidence.groups.items():
        members[group] += [(reader, event) for event in evidence.history.reads.get(reader, ())]
    for group, events in members.items():
        for place in {(event["topic"], event["partition"]) for _, event in events} & evidence.logs.keys():
            here = [(reader, event) for reader, event in events if (event["topic"], event["partition"]) == place]
            yield from _group_faults_of(evidence, group, place, here)


def _group_faults_of(
    evidence: Evidence, group: str, place: Place, events: Iterable[tuple[str, Event]]
) -> Iterator[str]:
    """The faults of a group: a member must begin between the last acknowledged commit and the highest requested
    commit."""
    shape = evidence.shapes[place]
    timeline: list[tuple[float, int, str, Event]] = []
    for reader, event in events:
        if event["op"] in ("committed", "commit-unknown"):
            timeline.append((event["asked_s"], 0, reader, {**event, "op": "asked"}))
        if event["op"] != "commit-unknown":
            timeline.append((event["at_s"], 1, reader, event))
    timeline.sort(key=lambda timed: timed[:2])
    committed = possible = 0
    seen = 0
    """The number of visible records up to the highest offset that a member has got."""
    lower: dict[str, int | None] = {}
    back: list[str] = []
    skipped: list[str] = []
    for _, _, reader, event in timeline:
        match event["op"]:
            case "asked":
                possible = max(possible, event["offset"])
            case "committed":
                committed = max(committed, event["offset"])
            case "assigned":
                lower[reader] = committed
            case "polled":
                first, last = event["offsets"][0], event["offsets"][-1]
                start = lower.get(reader)
                if start is not None and first < start:
                    back.append(f"{reader} at {first}, {start} was committed")
                if start is not None and shape.rank(first) > shape.rank(possible):
                    skipped.append(f"{reader} begins at {first}, at most {possible} was committed")
                lower[reader] = None
                seen = max(seen, shape.next_rank(last))
    yield from _counted("went back", place, back, group)
    yield from _counted("skipped", place, skipped, group)
    if seen < len(shape.offsets) and group not in evidence.unfinished:
        yield f"unseen: {group} of {_name(place)}: {len(shape.offsets) - seen} records"


def divergences(evidence: Evidence) -> Iterator[str]:
    """Replicas that differ below the high watermark."""
    for place, replicas in evidence.replicas.items():
        high_watermark = evidence.logs[place].high_watermark if place in evidence.logs else 0
        (first_node, first), *others = sorted(replicas.items())
        for node, log in replicas.items():
            end_offset = log.batches[-1].last_offset + 1 if log.batches else log.start_offset
            if end_offset < high_watermark and place[0] not in evidence.compacted:
                yield f"diverged: {_name(place)} of node {node} ends at {end_offset}, below {high_watermark}"
        for node, log in others:
            if place[0] in evidence.compacted:
                yield from _other_last_values(place, (first_node, first), (node, log))
                continue
            start_offset = max(first.start_offset, log.start_offset)
            expected, found = (_between(each, start_offset, high_watermark) for each in (first, log))
            if expected != found:
                base = min(batch.base_offset for batch in set(expected) ^ set(found))
                yield f"diverged: {_name(place)} of nodes {first_node} and {node}, from {base} on"


def _other_last_values(place: Place, expected: tuple[int, ReplicaLog], found: tuple[int, ReplicaLog]) -> Iterator[str]:
    (first_node, first), (node, log) = expected, found
    keys = first.last_values.keys() | log.last_values.keys()
    different = sorted(key for key in keys if first.last_values.get(key) != log.last_values.get(key))
    if different:
        yield f"diverged: {_name(place)} of nodes {first_node} and {node}, the last values of {different[:5]}"


def _between(log: ReplicaLog, start_offset: int, end_offset: int) -> list[StoredBatch]:
    return [batch for batch in log.batches if batch.last_offset >= start_offset and batch.base_offset < end_offset]


def _counted(kind: str, place: Place, details: Sequence[str], reader: str = "") -> Iterator[str]:
    if details:
        subject = f"{reader} of {_name(place)}" if reader else _name(place)
        yield f"{kind}: {subject}: {len(details)} x {'; '.join(details[:3])}"


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
