"""Lanes: the records of each key of a partition, singly and in order, beside the records of other keys. Pure.

    waiting --take--> running --finish(Done | Skip)--> gone, and the next record of the key waits
                              --finish(Retry)--> held --its time--> waiting

1. A lane has one record running at most. A record without a key has a lane of its own: no order applies.
2. Partitions take turns, and in a partition its lanes: a lane that has got its turn goes behind the other lanes.
3. A held lane takes no part of the concurrency.
4. Records in hand were added and are not done. A partition is full when it has its share of the bound and all
   partitions together have the bound, or when the partition has the bound alone. So a partition that is full of held
   keys stops itself and no other; no more than twice the bound is in hand, plus the records of one poll.
5. A partition that leaves drops the records that wait. Running records may end later: if the partition comes back, the
   lanes of these records do not run before.

Times are in ms, of any clock that does not go back.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from tailrace.client.keyed.outcomes import LONGEST_WAIT_S, KeyedRecord, Outcome, Retry, pause_ms
from tailrace.model.partitions import TopicPartition

RECORD_BYTES: Final = 200
"""The memory that a record takes beside its key, value and headers, approximately."""

LaneName = bytes | int
"""The key of its records, or the offset of the one record without a key."""


@dataclass(slots=True, eq=False)
class LaneWork:
    """A record for the handler. Two are equal if they are the same object."""

    name: TopicPartition
    record: KeyedRecord
    attempt: int
    """The number of the handler's call for this record; 1 for the first call."""
    epoch: int
    """The number of the opening of the partition, which each opening changes."""
    began_ms: int = 0


@dataclass(slots=True)
class Failure:
    """A key whose first record has failed, or is to be retried, and was not done since."""

    name: TopicPartition
    record: KeyedRecord
    since_ms: int
    attempts: int = 0
    fault: str = ""
    """The last exception; empty if the handler has asked for the retry."""


class _KeyLane:
    __slots__ = ("attempts", "failures", "is_held", "is_running", "name", "records")

    def __init__(self, name: LaneName, record: KeyedRecord) -> None:
        self.name = name
        self.records = deque((record,))
        """The first record waits, runs or is held."""
        self.is_running = self.is_held = False
        self.attempts = 0
        self.failures = 0
        """Failures in a row that pause the lane for longer each time."""


@dataclass(slots=True)
class _Partition:
    epoch: int
    lanes: dict[LaneName, _KeyLane] = field(default_factory=dict)
    waiting: OrderedDict[LaneName, _KeyLane] = field(default_factory=OrderedDict)
    records: int = 0
    bytes: int = 0
    held: int = 0
    done: list[int] = field(default_factory=list)
    """The offsets of done records since `take_done`."""
    is_leaving: bool = False
    """Whether no record of the partition begins to run any more."""


class Lanes:
    """The lanes of all partitions of one reader. Callers run no more records than `take` gives."""

    def __init__(self, concurrency: int, *, most_records: int, most_bytes: int) -> None:
        self.concurrency: Final = concurrency
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._turns: OrderedDict[TopicPartition, _Partition] = OrderedDict()
        """The partitions in which a lane waits, in the order of their turns."""
        self._holds: list[tuple[int, int, TopicPartition, int, LaneName]] = []
        """A heap of (end, number, partition, its epoch, lane)."""
        self._hold_count = 0
        self._left: dict[tuple[TopicPartition, LaneName], int] = {}
        """Lanes of partitions that have left, in which a record still runs, with the epoch."""
        self._epochs = 0
        self._failures: dict[tuple[TopicPartition, LaneName], Failure] = {}
        self._works: dict[LaneWork, None] = {}
        """The records that the handler has now, in the order in which they began, records of partitions that have left
        included."""
        self.records = 0
        self.bytes = 0
        """The bytes of the records in hand; `records` is their number."""

    # partitions

    def open(self, name: TopicPartition) -> None:
        """Take records of this partition from now on."""
        assert name not in self._partitions, f"{name} is open already"
        self._epochs += 1
        self._partitions[name] = _Partition(self._epochs)

    def drop_waiting(self, name: TopicPartition) -> None:
        """Drop the records of this partition that do not run: no record of the partition begins to run any more."""
        partition = self._partitions.get(name)
        if partition is None:
            return
        partition.is_leaving = True
        for lane in list(partition.lanes.values()):
            while len(lane.records) > lane.is_running:
                self._remove(partition, lane.records.pop())
            self._end_hold(partition, lane)
            if not lane.records:
                self._forget_lane(name, partition, lane)
        partition.waiting.clear()
        self._turns.pop(name, None)

    def close(self, name: TopicPartition) -> None:
        """Close a partition that has left: outcomes of records that still run do not count."""
        self.drop_waiting(name)
        partition = self._partitions.pop(name, None)
        if partition is None:
            return
        for lane in list(partition.lanes.values()):
            self._left[name, lane.name] = partition.epoch
            self._remove(partition, lane.records[0])
            self._forget_lane(name, partition, lane)

    def take_done(self, name: TopicPartition) -> list[int]:
        """The offsets of the records of this partition that are done since the last call."""
        partition = self._partitions.get(name)
        if partition is None:
            return []
        done, partition.done = partition.done, []
        return done

    def is_idle(self, names: Iterable[TopicPartition]) -> bool:
        """Whether no record of these partitions runs."""
        partitions = (self._partitions.get(name) for name in names)
        return not any(
            lane.is_running for partition in partitions if partition is not None for lane in partition.lanes.values()
        )

    # records

    def add(self, name: TopicPartition, records: Iterable[KeyedRecord]) -> None:
        """Take these records in hand, behind the records of their partitions that were added before."""
        partition = self._partitions[name]
        assert not partition.is_leaving, f"{name} leaves"
        lanes = partition.lanes
        count = size = 0
        for record in records:
            count += 1
            size += size_of(record)
            lane_name: LaneName = record.offset if record.key is None else record.key
            lane = lanes.get(lane_name)
            if lane is None:
                lanes[lane_name] = lane = _KeyLane(lane_name, record)
                self._let_wait(name, partition, lane)
            else:
                lane.records.append(record)
        partition.records, partition.bytes = partition.records + count, partition.bytes + size
        self.records, self.bytes = self.records + count, self.bytes + size

    def is_full(self, name: TopicPartition) -> bool:
        """Whether no more records of this partition are to be read now."""
        partition = self._partitions.get(name)
        if partition is None:
            return False
        count = len(self._partitions)
        return self._is_beyond(partition.records, self.records, self._most_records, count) or self._is_beyond(
            partition.bytes, self.bytes, self._most_bytes, count
        )

    @staticmethod
    def _is_beyond(own: int, total: int, most: int, partitions: int) -> bool:
        return own >= most or (total >= most and own >= max(most // partitions, 1))

    def take(self, now_ms: int) -> list[LaneWork]:
        """The records that begin to run now."""
        return list(iter(lambda: self.take_next(now_ms), None))

    def take_next(self, now_ms: int) -> LaneWork | None:
        """The next record that begins to run now; None if there is no record, or the concurrency is used up."""
        if self._holds and self._holds[0][0] <= now_ms:
            self.end_holds(now_ms)
        if not self._turns or len(self._works) >= self.concurrency:
            return None
        name, partition = next(iter(self._turns.items()))
        _, lane = partition.waiting.popitem(last=False)
        if not partition.waiting:
            del self._turns[name]
        elif len(self._turns) > 1:
            self._turns.move_to_end(name)
        lane.is_running = True
        lane.attempts += 1
        work = LaneWork(name, lane.records[0], lane.attempts, partition.epoch, now_ms)
        self._works[work] = None
        return work

    def take_fresh(self, now_ms: int) -> LaneWork | None:
        """As `take_next`, but in the partition whose turn it is the newest key that has not failed comes first.

        Keys that always fail are in front of the other keys after a restart.
        """
        self.end_holds(now_ms)
        if self._turns:
            name, partition = next(iter(self._turns.items()))
            for lane_name in reversed(partition.waiting):
                if (name, lane_name) not in self._failures:
                    partition.waiting.move_to_end(lane_name, last=False)
                    break
        return self.take_next(now_ms)

    @property
    def has_waiting(self) -> bool:
        """Whether a record waits for its turn."""
        return bool(self._turns)

    @property
    def running(self) -> int:
        """The number of records that the handler has now, records of partitions that have left included."""
        return len(self._works)

    @property
    def works(self) -> list[LaneWork]:
        """The records that the handler has now, in the order in which they began."""
        return list(self._works)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which a held lane may run again; None if no lane is held."""
        return self._holds[0][0] if self._holds else None

    def finish(
        self, work: LaneWork, outcome: Outcome, now_ms: int, *, fault: str | None = None, is_counted: bool = True
    ) -> bool:
        """Take the outcome of a record that `take` gave. Returns whether the record is done, and so not in hand any
        more.

        `fault` is the failure of the handler; None if the handler has asked for the retry. `is_counted`: whether the
        call was an attempt. An outcome for a partition that has left does not count.
        """
        del self._works[work]
        lane_name: LaneName = work.record.offset if work.record.key is None else work.record.key
        partition = self._partitions.get(work.name)
        if partition is None or partition.epoch != work.epoch:
            self._finish_left(work, lane_name)
            return False
        lane = partition.lanes[lane_name]
        lane.is_running = False
        is_done = not isinstance(outcome, Retry)
        if is_done:
            partition.done.append(work.record.offset)
        elif isinstance(outcome, Retry) and not partition.is_leaving:
            lane.attempts -= not is_counted
            lane.failures += is_counted and outcome.after is None
            self._hold(work, partition, lane, outcome, now_ms, fault)
            return False
        self._remove(partition, lane.records.popleft())
        if self._failures:
            self._failures.pop((work.name, lane_name), None)
        lane.attempts = lane.failures = 0
        if lane.records:
            self._let_wait(work.name, partition, lane)
        else:
            self._forget_lane(work.name, partition, lane)
        return is_done

    def _finish_left(self, work: LaneWork, lane_name: LaneName) -> None:
        if self._left.get((work.name, lane_name)) == work.epoch:
            del self._left[work.name, lane_name]
            partition = self._partitions.get(work.name)
            lane = None if partition is None else partition.lanes.get(lane_name)
            if partition is not None and lane is not None:
                self._let_wait(work.name, partition, lane)

    def _let_wait(self, name: TopicPartition, partition: _Partition, lane: _KeyLane) -> None:
        if self._left and (name, lane.name) in self._left:
            return  # an earlier run of the key has to end first
        if not partition.waiting:
            self._turns[name] = partition
        partition.waiting[lane.name] = lane

    def _remove(self, partition: _Partition, record: KeyedRecord) -> None:
        size = size_of(record)
        partition.records, partition.bytes = partition.records - 1, partition.bytes - size
        self.records, self.bytes = self.records - 1, self.bytes - size

    def _forget_lane(self, name: TopicPartition, partition: _Partition, lane: _KeyLane) -> None:
        del partition.lanes[lane.name]
        if self._failures:
            self._failures.pop((name, lane.name), None)

    # holds

    def _hold(
        self, work: LaneWork, partition: _Partition, lane: _KeyLane, outcome: Retry, now_ms: int, fault: str | None
    ) -> None:
        failure = self._failures.setdefault((work.name, lane.name), Failure(work.name, work.record, now_ms))
        failure.attempts, failure.fault = lane.attempts, fault or ""
        if outcome.after is None:
            hold_ms = pause_ms(max(lane.failures, 1))
        else:
            hold_ms = int(min(outcome.after, LONGEST_WAIT_S) * 1000)
        lane.is_held = True
        partition.held += 1
        self._hold_count += 1
        heappush(self._holds, (now_ms + hold_ms, self._hold_count, work.name, partition.epoch, lane.name))

    def _end_hold(self, partition: _Partition, lane: _KeyLane) -> None:
        if lane.is_held:
            lane.is_held = False
            partition.held -= 1

    def end_holds(self, now_ms: int) -> None:
        """Let the lanes wait for their turn that are held up to this time."""
        while self._holds and self._holds[0][0] <= now_ms:
            _, _, name, epoch, lane_name = heappop(self._holds)
            partition = self._partitions.get(name)
            if partition is None or partition.epoch != epoch:
                continue
            lane = partition.lanes.get(lane_name)
            if lane is not None and lane.is_held:
                self._end_hold(partition, lane)
                self._let_wait(name, partition, lane)

    @property
    def held(self) -> int:
        """The number of keys that are held now."""
        return sum(partition.held for partition in self._partitions.values())

    @property
    def oldest_failure(self) -> Failure | None:
        """The key that has failed for the longest time, and is held or runs again."""
        return next(iter(self._failures.values()), None)


def size_of(record: KeyedRecord) -> int:
    """The bytes of memory that a record takes, approximately."""
    size = RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, content in record.headers:
        size += len(name) + len(content or b"")
    return size
