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

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from tailrace.client.keyed.outcomes import LONGEST_WAIT_S, KeyedRecord, Outcome, Retry, pause_ms
from tailrace.model.partitions import TopicPartition

RECORD_BYTES: Final = 200
"""The memory that a record takes beside its key, value and headers, approximately."""

LaneName = bytes | int
"""The key of its records, or the offset of the one record without a key."""


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
    """The records in hand of a key. Values that most lanes never change are defaults of the class."""

    later: deque[KeyedRecord] | None = None
    """The records behind the first record."""
    is_running = is_held = False
    attempts = 0
    """The calls for the first record that have ended with a retry, and count."""
    failures = 0
    """Failures in a row that pause the lane for longer each time."""

    def __init__(self, name: LaneName, record: KeyedRecord) -> None:
        self.name = name
        self.record = record
        """The first record, which waits, runs or is held."""


@dataclass(slots=True, eq=False)
class _Partition:
    name: TopicPartition
    epoch: int
    lanes: dict[LaneName, _KeyLane] = field(default_factory=dict)
    waiting: deque[_KeyLane] = field(default_factory=deque)
    records: int = 0
    bytes: int = 0
    """The bytes of the records in hand; `records` is their number. Done records from `counted` on are in both still."""
    held: int = 0
    done: list[KeyedRecord] = field(default_factory=list)
    """Done records since `take_done`."""
    counted: int = 0
    is_leaving: bool = False
    """Whether no record of the partition begins to run any more."""
    is_closed: bool = False


@dataclass(slots=True, eq=False)
class LaneWork:
    """A record for the handler. Two are equal if they are the same object."""

    partition: _Partition
    lane: _KeyLane
    record: KeyedRecord
    attempt: int
    """The number of the handler's call for this record; 1 for the first call."""
    began_ms: int

    @property
    def name(self) -> TopicPartition:
        """The partition of the record, or the slot."""
        return self.partition.name


class Lanes:
    """The lanes of all partitions of one reader. Callers run no more records than `take` gives."""

    def __init__(self, concurrency: int, *, most_records: int, most_bytes: int) -> None:
        self.concurrency: Final = concurrency
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._turns: deque[_Partition] = deque()
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
        self._records = self._bytes = 0

    # partitions

    def open(self, name: TopicPartition) -> None:
        """Take records of this partition from now on."""
        assert name not in self._partitions, f"{name} is open already"
        self._epochs += 1
        self._partitions[name] = _Partition(name, self._epochs)

    def drop_waiting(self, name: TopicPartition) -> None:
        """Drop the records of this partition that do not run: no record of the partition begins to run any more."""
        partition = self._partitions.get(name)
        if partition is None:
            return
        partition.is_leaving = True
        for lane in list(partition.lanes.values()):
            for record in lane.later or ():
                self._remove(partition, record)
            lane.later = None
            self._end_hold(partition, lane)
            if not lane.is_running:
                self._remove(partition, lane.record)
                self._forget_lane(partition, lane)
        if partition.waiting:
            partition.waiting.clear()
            self._turns.remove(partition)

    def close(self, name: TopicPartition) -> None:
        """Close a partition that has left: outcomes of records that still run do not count."""
        self.drop_waiting(name)
        partition = self._partitions.pop(name, None)
        if partition is None:
            return
        partition.is_closed = True
        self._count_done(partition)
        for lane in list(partition.lanes.values()):
            self._left[name, lane.name] = partition.epoch
            self._remove(partition, lane.record)
            self._forget_lane(partition, lane)

    def take_done(self, name: TopicPartition) -> list[int]:
        """The offsets of the records of this partition that are done since the last call."""
        partition = self._partitions.get(name)
        if partition is None:
            return []
        self._count_done(partition)
        done, partition.done, partition.counted = partition.done, [], 0
        return [record.offset for record in done]

    def is_idle(self, names: Iterable[TopicPartition]) -> bool:
        """Whether no record of these partitions runs."""
        wanted = frozenset(names)
        return not any(work.name in wanted and not work.partition.is_closed for work in self._works)

    # records

    def add(self, name: TopicPartition, records: Sequence[KeyedRecord]) -> None:
        """Take these records in hand, behind the records of their partitions that were added before."""
        partition = self._partitions[name]
        assert not partition.is_leaving, f"{name} leaves"
        lanes = partition.lanes
        fresh: list[_KeyLane] = []
        for record in records:
            key = record.key
            lane_name: LaneName = record.offset if key is None else key
            lane = lanes.get(lane_name)
            if lane is None:
                lanes[lane_name] = lane = _KeyLane(lane_name, record)
                fresh.append(lane)
            elif lane.later is None:
                lane.later = deque((record,))
            else:
                lane.later.append(record)
        for lane in fresh:
            self._let_wait(partition, lane)
        self._take_in_hand(partition, len(records), size_of(records))

    def is_full(self, name: TopicPartition) -> bool:
        """Whether no more records of this partition are to be read now."""
        partition = self._partitions.get(name)
        if partition is None:
            return False
        self._count_all_done()
        count = len(self._partitions)
        return self._is_beyond(partition.records, self._records, self._most_records, count) or self._is_beyond(
            partition.bytes, self._bytes, self._most_bytes, count
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
        turns = self._turns
        if not turns or len(self._works) >= self.concurrency:
            return None
        partition = turns[0]
        lane = partition.waiting.popleft()
        if not partition.waiting:
            turns.popleft()
        elif len(turns) > 1:
            turns.rotate(-1)
        lane.is_running = True
        work = LaneWork(partition, lane, lane.record, lane.attempts + 1, now_ms)
        self._works[work] = None
        return work

    def take_fresh(self, now_ms: int) -> LaneWork | None:
        """As `take_next`, but in the partition whose turn it is the newest key that has not failed comes first.

        Keys that always fail are in front of the other keys after a restart.
        """
        self.end_holds(now_ms)
        if self._turns:
            partition = self._turns[0]
            fresh = (lane for lane in reversed(partition.waiting) if (partition.name, lane.name) not in self._failures)
            if (lane := next(fresh, None)) is not None:
                partition.waiting.remove(lane)
                partition.waiting.appendleft(lane)
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
        partition, lane = work.partition, work.lane
        if partition.is_closed:
            self._finish_left(work)
            return False
        lane.is_running = False
        is_done = not isinstance(outcome, Retry)
        if is_done:
            partition.done.append(work.record)
        elif isinstance(outcome, Retry) and not partition.is_leaving:
            self._hold(work, outcome, now_ms, fault, is_counted=is_counted)
            return False
        else:
            self._remove(partition, work.record)
        if not lane.later:
            self._forget_lane(partition, lane)
            return is_done
        lane.record = lane.later.popleft()
        lane.attempts = lane.failures = 0
        if self._failures:
            self._failures.pop((partition.name, lane.name), None)
        self._let_wait(partition, lane)
        return is_done

    def _finish_left(self, work: LaneWork) -> None:
        place = work.name, work.lane.name
        if self._left.get(place) == work.partition.epoch:
            del self._left[place]
            partition = self._partitions.get(work.name)
            lane = None if partition is None else partition.lanes.get(work.lane.name)
            if partition is not None and lane is not None:
                self._let_wait(partition, lane)

    def _let_wait(self, partition: _Partition, lane: _KeyLane) -> None:
        if self._left and (partition.name, lane.name) in self._left:
            return  # an earlier run of the key has to end first
        if not partition.waiting:
            self._turns.append(partition)
        partition.waiting.append(lane)

    def _forget_lane(self, partition: _Partition, lane: _KeyLane) -> None:
        del partition.lanes[lane.name]
        if self._failures:
            self._failures.pop((partition.name, lane.name), None)

    # records in hand

    @property
    def records(self) -> int:
        """The number of records in hand."""
        self._count_all_done()
        return self._records

    @property
    def bytes(self) -> int:
        """The bytes of the records in hand."""
        self._count_all_done()
        return self._bytes

    def _count_all_done(self) -> None:
        for partition in self._partitions.values():
            self._count_done(partition)

    def _count_done(self, partition: _Partition) -> None:
        """Count the records that are done since the last call: they are not in hand any more."""
        if partition.counted < len(partition.done):
            done = partition.done[partition.counted :]
            partition.counted = len(partition.done)
            self._take_in_hand(partition, -len(done), -size_of(done))

    def _remove(self, partition: _Partition, record: KeyedRecord) -> None:
        self._take_in_hand(partition, -1, -size_of((record,)))

    def _take_in_hand(self, partition: _Partition, count: int, size: int) -> None:
        """Count so many more records, and bytes."""
        partition.records, partition.bytes = partition.records + count, partition.bytes + size
        self._records, self._bytes = self._records + count, self._bytes + size

    # holds

    def _hold(self, work: LaneWork, outcome: Retry, now_ms: int, fault: str | None, *, is_counted: bool) -> None:
        partition, lane = work.partition, work.lane
        lane.attempts += is_counted
        lane.failures += is_counted and outcome.after is None
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
                self._let_wait(partition, lane)

    @property
    def held(self) -> int:
        """The number of keys that are held now."""
        return sum(partition.held for partition in self._partitions.values())

    @property
    def oldest_failure(self) -> Failure | None:
        """The key that has failed for the longest time, and is held or runs again."""
        return next(iter(self._failures.values()), None)


def size_of(records: Sequence[KeyedRecord]) -> int:
    """The bytes of memory that the records take, approximately."""
    size = RECORD_BYTES * len(records)
    for record in records:
        if (key := record.key) is not None:
            size += len(key)
        if (value := record.value) is not None:
            size += len(value)
        for name, content in record.headers:
            size += len(name) + len(content or b"")
    return size
