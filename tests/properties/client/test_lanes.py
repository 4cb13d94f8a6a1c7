"""Lanes, whatever comes in which order: each key in order and alone, no more than may run, and no key forgotten."""

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import examples
from tailrace.client.keyed.lanes import Lanes, LaneWork, size_of
from tailrace.client.keyed.outcomes import Done, KeyedRecord, Outcome, Retry, Skip
from tailrace.model.partitions import TopicPartition

PARTITIONS = [TopicPartition("orders", index) for index in range(2)]
KEYS = st.sampled_from([None, b"a", b"a", b"b"])
OUTCOMES = st.sampled_from([Done(), Done(), Skip("why"), Retry(), Retry(0.0), Retry(3.0)])
STEP = st.tuples(
    st.sampled_from([*["add"] * 3, *["take"] * 4, *["finish"] * 4, "leave", "close", "rebalance"]),
    st.integers(0, 2),
    st.lists(KEYS, min_size=1, max_size=4),
    st.sampled_from([0, 1, 1_000, 2_500]),
    OUTCOMES,
)


class LanesUnderTest:
    """Lanes beside what must be true of them, by brute force."""

    def __init__(self, concurrency: int) -> None:
        self.lanes = Lanes(concurrency, most_records=10, most_bytes=1 << 20)
        self.concurrency = concurrency
        self.now_ms = 0
        self.offsets: dict[TopicPartition, int] = defaultdict(int)
        self.queues: dict[tuple[TopicPartition, object], list[KeyedRecord]] = {}
        """The records in hand, by lane, of partitions that are open."""
        self.open: set[TopicPartition] = set()
        self.leaving: set[TopicPartition] = set()
        self.running: list[LaneWork] = []
        self.held_until: dict[tuple[TopicPartition, object], int] = {}
        self.epochs: dict[TopicPartition, int] = {}

    @staticmethod
    def lane_of(name: TopicPartition, record: KeyedRecord) -> tuple[TopicPartition, object]:
        return name, record.offset if record.key is None else record.key

    def step(self, kind: str, number: int, keys: list[bytes | None], pause_ms: int, outcome: Outcome) -> None:
        name = PARTITIONS[number % len(PARTITIONS)]
        match kind:
            case "add":
                self.add(name, keys)
            case "take":
                self.now_ms += pause_ms
                self.take()
            case "finish" if self.running:
                self.finish(self.running[number % len(self.running)], outcome)
            case "leave":
                self.leave(name)
            case "close":
                self.leave(name)
                self.close(name)
            case "rebalance":
                self.leave(name)
                self.close(name)
                self.add(name, keys)
                self.take()
        self.check()

    def add(self, name: TopicPartition, keys: list[bytes | None]) -> None:
        if name in self.leaving:
            return
        if name not in self.open:
            self.open.add(name)
            self.lanes.open(name)
            self.epochs[name] = self.epochs.get(name, 0) + 1
        records = []
        for key in keys:
            records.append(KeyedRecord(*name, self.offsets[name], 0, key, b"v", ()))
            self.offsets[name] += 1
        self.lanes.add(name, records)
        for record in records:
            self.queues.setdefault(self.lane_of(name, record), []).append(record)

    def take(self) -> None:
        for work in self.lanes.take(self.now_ms):
            lane = self.lane_of(work.name, work.record)
            assert self.queues[lane][0] == work.record, "the first record of the lane"
            assert lane not in {self.lane_of(task.name, task.record) for task in self.running}, "a record at a time"
            assert self.held_until.pop(lane, 0) <= self.now_ms
            assert work.name not in self.leaving
            self.running.append(work)
        running = {self.lane_of(task.name, task.record) for task in self.running}
        free = [
            lane
            for lane, queue in self.queues.items()
            if queue and lane not in running and self.held_until.get(lane, 0) <= self.now_ms
            if lane[0] not in self.leaving
        ]
        assert not free or len(self.running) == self.concurrency, "nothing that may run waits"

    def finish(self, work: LaneWork, outcome: Outcome) -> None:
        self.running.remove(work)
        lane = self.lane_of(work.name, work.record)
        is_current = bool(self.queues.get(lane)) and self.queues[lane][0] is work.record
        is_done = self.lanes.finish(work, outcome, self.now_ms)
        assert is_done == (is_current and not isinstance(outcome, Retry))
        if not is_current:
            return
        if is_done or work.name in self.leaving:
            self.queues[lane].pop(0)
        elif isinstance(outcome, Retry):
            pause = 1_000 if outcome.after is None else int(outcome.after * 1000)
            self.held_until[lane] = self.now_ms + pause

    def leave(self, name: TopicPartition) -> None:
        self.lanes.drop_waiting(name)
        if name not in self.open:
            return
        self.leaving.add(name)
        for lane, queue in self.queues.items():
            if lane[0] == name:
                del queue[any(work.record in queue for work in self.running) :]
                self.held_until.pop(lane, None)

    def close(self, name: TopicPartition) -> None:
        self.lanes.close(name)
        self.open.discard(name)
        self.leaving.discard(name)
        self.queues = {lane: queue for lane, queue in self.queues.items() if lane[0] != name}

    def check(self) -> None:
        in_hand = [record for queue in self.queues.values() for record in queue]
        assert self.lanes.records == len(in_hand)
        assert self.lanes.bytes == size_of(in_hand)
        assert self.lanes.running == len(self.running) <= self.concurrency

    def finish_all(self) -> None:
        """However it stands: if time goes on and handlers succeed, everything in hand is done."""
        for _ in range(1_000):
            if not self.running and not any(self.queues.values()):
                return
            self.now_ms += 60_000
            self.take()
            self.check()
            for work in list(self.running):
                self.finish(work, Done())
        raise AssertionError("a lane is stuck")


@settings(max_examples=examples(300))
@given(st.integers(1, 3), st.lists(STEP, min_size=10, max_size=60))
def test_each_key_is_in_order_and_alone_and_none_is_forgotten(concurrency: int, steps: list[Any]) -> None:
    tried = LanesUnderTest(concurrency)
    for step in steps:
        tried.step(*step)
    for name in list(tried.leaving):
        tried.close(name)
    tried.finish_all()
    assert (tried.lanes.records, tried.lanes.bytes, tried.lanes.held, tried.lanes.running) == (0, 0, 0, 0)
    assert tried.lanes.oldest_failure is None


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 4), st.data())
def test_no_lane_is_passed_over(sizes: list[int], concurrency: int, data: st.DataObject) -> None:
    """Until a lane that waits has its turn, each other lane of its partition has one turn at most."""
    (name, *_) = PARTITIONS
    lanes = Lanes(concurrency, most_records=1_000, most_bytes=1 << 30)
    lanes.open(name)
    offset = 0
    for number, size in enumerate(sizes):
        for _ in range(size):
            lanes.add(name, [KeyedRecord(*name, offset, 0, b"%d" % number, b"", ())])
            offset += 1
    left = {b"%d" % number: size for number, size in enumerate(sizes)}
    passed: dict[bytes, set[bytes]] = {key: set() for key in left}
    """By lane that waits: the lanes that have had a turn since it began to wait."""
    running: list[LaneWork] = []
    while any(left.values()):
        for work in lanes.take(0):
            key = work.record.key
            assert key is not None
            passed.pop(key)
            for others in passed.values():
                assert key not in others
                others.add(key)
            running.append(work)
        work = running.pop(data.draw(st.integers(0, len(running) - 1)))
        key = work.record.key
        assert key is not None
        left[key] -= 1
        assert lanes.finish(work, Done(), 0)
        if left[key]:
            passed[key] = set()
