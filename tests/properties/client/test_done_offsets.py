"""Commits of what is done, by brute force: a log, a reader that crashes at any moment, its group's progress."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import examples
from tailrace.client.keyed.done_offsets import ProgressCommit
from tailrace.client.keyed.keyed_partition import KeyedPartition
from tailrace.client.keyed.lanes import Lanes, LaneWork
from tailrace.client.keyed.outcomes import Done, KeyedRecord, Outcome, Retry
from tailrace.model.committed_progress import CommittedProgress
from tailrace.model.key_ranges import hash_of
from tailrace.model.partitions import TopicPartition

NAME = TopicPartition("orders", 0)
KEYS = st.sampled_from([None, b"a", b"b", b"c", b"d"])
LOG = st.lists(st.tuples(KEYS, st.integers(1, 3)), min_size=1, max_size=30)
"""Records: a key, and the distance to the offset of the next record. A compacted log has gaps."""
STEP = st.tuples(
    st.sampled_from([*["read"] * 3, *["take"] * 3, *["finish"] * 6, *["commit"] * 3, "lost commit", "late", "crash"]),
    st.integers(0, 5),
    st.sampled_from([Done(), Done(), Done(), Retry(0), Retry(5)]),
)


class GroupUnderTest:
    """A group of one member, the log, and what has happened."""

    def __init__(self, log: list[tuple[bytes | None, int]], most_holes: int, *, knows_ranges: bool, start: int) -> None:
        self.records: list[KeyedRecord] = []
        offset = start
        for key, distance in log:
            self.records.append(KeyedRecord(*NAME, offset, 0, key, b"v", ()))
            offset += distance
        self.start, self.end = start, offset
        self.most_holes = most_holes
        self.knows_ranges = knows_ranges
        self.committed: CommittedProgress | None = None
        """At the server."""
        self.finished: set[int] = set()
        self.late: list[ProgressCommit] = []
        """Commits that reach the server later."""
        self.begin()

    def begin(self) -> None:
        """The member starts: after a crash it knows what the server has, and nothing else."""
        self.now_ms = 0
        start = self.start if self.committed is None else max(self.start, self.committed.stable_offset)
        self.partition = KeyedPartition(NAME, start, self.most_holes)
        self.lanes = Lanes(3, most_records=100, most_bytes=1 << 20)
        self.lanes.open(NAME)
        self.unread = [record for record in self.records if record.offset >= start]
        self.running: list[LaneWork] = []
        self.handled: dict[object, int] = {}
        """By key, the last offset that was done since the start."""
        self.again = {record.offset for record in self.records if not self.is_covered(record)}
        self.partition.open(self.committed if self.knows_ranges else None)

    def is_covered(self, record: KeyedRecord) -> bool:
        """Whether a commit at the server covers this record."""
        if self.committed is None:
            return False
        if not self.knows_ranges:
            return record.offset < self.committed.stable_offset
        return self.committed.is_committed(record.offset, hash_of(record.key, record.offset))

    def step(self, kind: str, number: int, outcome: Outcome) -> None:
        match kind:
            case "read":
                self.read(number + 1)
            case "take":
                self.now_ms += number
                self.running += self.lanes.take(self.now_ms)
            case "finish" if self.running:
                self.finish(self.running.pop(number % len(self.running)), outcome)
            case "commit":
                commit = self.made()
                self.at_server(commit)
                self.partition.committed(commit, None)
            case "lost commit":
                self.at_server(self.made())
            case "late":
                self.late.append(self.made())
            case "crash":
                self.begin()
        while len(self.late) > 2:
            self.at_server(self.late.pop(0))

    def read(self, count: int) -> None:
        records, self.unread = self.unread[:count], self.unread[count:]
        read_to = self.unread[0].offset if self.unread else self.end
        new = self.partition.read(records, read_to)
        assert {record.offset for record in new} <= self.again, "only what no commit covers comes again"
        self.lanes.add(NAME, new)

    def finish(self, work: LaneWork, outcome: Outcome) -> None:
        if self.lanes.finish(work, outcome, self.now_ms):
            key = work.record.offset if work.record.key is None else work.record.key
            assert self.handled.get(key, -1) < work.record.offset, "each key in order"
            self.handled[key] = work.record.offset
            self.finished.add(work.record.offset)
            assert self.partition.done is not None
            self.partition.done.done(work.record.offset)

    def made(self) -> ProgressCommit:
        commit = self.partition.commit()
        assert commit is not None
        assert len(commit.rectangles) <= 2 * commit.holes + 2
        assert commit.holes <= self.most_holes
        assert all(earlier.offset in self.finished for earlier in self.records if earlier.offset < commit.stable_offset)
        united = CommittedProgress(0).with_committed(commit.rectangles)
        for record in self.records:
            if united.is_committed(record.offset, hash_of(record.key, record.offset)):
                assert record.offset in self.finished, "nothing is covered that is not done"
                assert record.offset < self.partition.read_to
        assert united.end_offset <= self.partition.read_to
        return commit

    def at_server(self, commit: ProgressCommit) -> None:
        before = self.committed or CommittedProgress(0)
        if self.knows_ranges:
            self.committed = before.with_committed(commit.rectangles)
        elif commit.stable_offset >= before.stable_offset:  # a late one would be of a generation before
            self.committed = CommittedProgress(commit.stable_offset)

    def finish_all(self) -> None:
        """Read to the end and have everything succeed."""
        self.read(len(self.unread))
        while self.lanes.records:
            self.now_ms += 60_000
            self.running += self.lanes.take(self.now_ms)
            while self.running:
                self.finish(self.running.pop(), Done())
        commit = self.made()
        assert (commit.stable_offset, commit.holes) == (self.end, 0)
        self.at_server(commit)


@settings(max_examples=examples(200))
@given(LOG, st.integers(0, 3), st.booleans(), st.integers(0, 5), st.lists(STEP, min_size=5, max_size=60))
def test_after_a_crash_only_what_no_commit_covers_comes_again_and_all_of_it(
    log: list[tuple[bytes | None, int]], most_holes: int, knows_ranges: bool, start: int, steps: list[Any]
) -> None:
    tried = GroupUnderTest(log, most_holes, knows_ranges=knows_ranges, start=start)
    for step in steps:
        tried.step(*step)
    tried.finish_all()
    assert tried.finished == {record.offset for record in tried.records}
    assert tried.committed is not None
    assert tried.committed == CommittedProgress(tried.end), "in one rectangle"


def test_a_commit_covers_all_that_is_done_but_for_what_the_rule_leaves_out() -> None:
    """With no limit, at the second commit in a row: all but the records in hand and later ones of their keys."""
    chance = random.Random(1)
    for _ in range(50):
        log: list[tuple[bytes | None, int]] = [(b"%d" % chance.randrange(20), 1) for _ in range(100)]
        tried = GroupUnderTest(log, 256, knows_ranges=True, start=0)
        tried.read(80)
        for _ in range(60):
            tried.running += tried.lanes.take(0)
            tried.finish(tried.running.pop(chance.randrange(len(tried.running))), Done())
        for _ in range(2):
            commit = tried.made()
            tried.at_server(commit)
            tried.partition.committed(commit, None)
        covered = {record.offset for record in tried.records if tried.is_covered(record)}
        assert covered == tried.finished
