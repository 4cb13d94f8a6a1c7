"""ListOffsets and OffsetForLeaderEpoch of views (decision 0057)."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.key_ranges import contains, hash_of
from tailrace.model.views import key_range_of
from tailrace.protocol.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.server import callbacks, slices
from tailrace.server.dispatch import Dispatcher
from tailrace.server.fetch import key_reads
from tailrace.server.partition_work import MAX_WAIT_MS
from tailrace.storage.keys import key_ends, key_times
from tailrace.storage.keys.key_times import first_at_least
from tailrace.storage.keys.log_keys import LogKeys
from testkit.nodes.data_path import raise_broken_invariant
from testkit.nodes.view_readers import ViewNode, ViewReader, offsets_of

VIEW = "orders.shared-4"
KEYS = [b"key-%d" % number for number in range(60)]
EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -2, -3, -4


def key_in(number: int) -> bytes:
    wanted = [key_range_of(number, 4)]
    return next(key for key in KEYS if contains(wanted, hash_of(key, 0)))


@pytest.fixture
def node() -> ViewNode:
    return ViewNode()


@pytest.mark.parametrize("version", range(1, 11))
def test_the_end_of_a_view_is_behind_its_last_record(node: ViewNode, version: int) -> None:
    node.write(*KEYS)
    ends = node.ends(VIEW, 0, 1, 2, 3, version=version)
    assert [end.error_code for end in ends] == [0] * 4
    assert [end.offset for end in ends] == [offsets_of(KEYS, number, 4)[-1] + 1 for number in range(4)]
    assert [end.timestamp for end in ends] == [-1] * 4


def test_a_view_starts_and_ends_behind_its_last_deleted_record(node: ViewNode) -> None:
    assert [end.offset for end in node.ends(VIEW, 0, 1)] == [0, 0]
    node.write(key_in(2), *[key_in(1)] * 9)
    assert [end.offset for end in node.ends(VIEW, 0, 1, 2)] == [0, 10, 1]
    for log_start, starts in ((1, [0, 0, 1]), (4, [0, 4, 1]), (10, [0, 10, 1])):
        node.table.get("orders", 0).delete_records(log_start)
        for timestamp in (EARLIEST, EARLIEST_LOCAL):
            answers = node.ends(VIEW, 0, 1, 2, timestamp=timestamp)
            found = [(start.error_code, start.timestamp, start.leader_epoch, start.offset) for start in answers]
            assert found == [(0, -1, 0, start) for start in starts]
        assert [end.offset for end in node.ends(VIEW, 0, 1, 2)] == [0, 10, 1]


def test_a_start_that_is_not_known_yet_is_waited_for(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are examined in slices between other work."""
    node.write(*KEYS)
    node.table.get("orders", 0).delete_records(30)
    monkeypatch.setattr(key_reads, "SCAN_MS", 0)
    monkeypatch.setattr(key_ends, "STEP_MS", 0)
    wanted = (ListOffsetsPartition(partition_index=0, timestamp=EARLIEST),)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=VIEW, partitions=wanted),))
    waiting = node.send(request, 9, same_turn=True)
    assert not waiting.is_answered
    node.end_turn()
    (answer,) = waiting.response.topics[0].partitions
    deleted = [offset for offset in offsets_of(KEYS, 0, 4) if offset < 30]
    assert (answer.error_code, answer.offset) == (0, deleted[-1] + 1)


@pytest.mark.parametrize("isolation", [0, 1])
def test_the_first_record_of_the_view_is_found_by_time(node: ViewNode, isolation: int) -> None:
    """An offset of another record, at the end of the view or beyond, is never reached by a reader of the view."""
    node.write(key_in(2), *[key_in(1)] * 9, key_in(2))
    for timestamp, of_1, of_2 in ((0, 1, 0), (1_000, 1, 0), (1_001, 1, 10), (1_009, 9, 10), (1_010, -1, 10)):
        answers = node.ends(VIEW, 0, 1, 2, timestamp=timestamp, isolation=isolation)
        assert [answer.error_code for answer in answers] == [0] * 3
        assert [answer.offset for answer in answers] == [-1, of_1, of_2]
        assert [answer.timestamp for answer in answers] == [-1 if at < 0 else 1_000 + at for at in (-1, of_1, of_2)]
        assert [answer.leader_epoch for answer in answers] == [-1 if at < 0 else 0 for at in (-1, of_1, of_2)]
    answers = node.ends(VIEW, 0, 1, 2, timestamp=MAX_TIMESTAMP, isolation=isolation)
    assert [(answer.offset, answer.timestamp) for answer in answers] == [(-1, -1), (9, 1_009), (10, 1_010)]


def test_a_deleted_record_is_not_found_by_time(node: ViewNode) -> None:
    node.write(*[key_in(2)] * 3, *[key_in(1)] * 9)
    node.table.get("orders", 0).delete_records(2)
    assert [answer.offset for answer in node.ends(VIEW, 0, 1, 2, timestamp=1_000)] == [-1, 3, 2]
    node.table.get("orders", 0).delete_records(5)
    assert [answer.offset for answer in node.ends(VIEW, 0, 1, 2, timestamp=1_000)] == [-1, 5, -1]
    assert [answer.offset for answer in node.ends(VIEW, 0, 1, 2, timestamp=MAX_TIMESTAMP)] == [-1, 11, -1]


def test_lookups_by_time_in_all_partitions_of_a_view_are_one_walk(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        node.write(*KEYS)
    walks: list[int] = []

    def counted(*wanted: Any) -> Any:
        walks.append(len(wanted[-1]))
        return first_at_least(*wanted)

    monkeypatch.setattr("tailrace.server.fetch.view_times.first_at_least", counted)
    answers = node.ends(VIEW, 0, 1, 2, 3, timestamp=1_030)
    expected = [next(at for at in offsets_of(KEYS, number, 4) if at >= 30) for number in range(4)]
    assert [answer.offset for answer in answers] == expected
    assert walks == [4]


def test_a_lookup_by_time_has_many_turns(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(40):
        node.write(*[key_in(1)] * 5)
    node.write(key_in(0))
    assert node.end(VIEW, 0) == 201
    monkeypatch.setattr(key_times, "GROUP_BATCHES", 1)
    monkeypatch.setattr(LogKeys, "next_match", lambda self, slots, offset, end_offset: offset)
    monkeypatch.setattr(slices, "run_slice", lambda steps, clock: callbacks.run_slice(steps, clock, slice_ms=0))
    node.dispatcher = Dispatcher(
        node.broker.handlers,
        on_broken_invariant=raise_broken_invariant,
        finalized=node.broker.finalized_features,
        long=node.broker.long,
    )
    wanted = (ListOffsetsPartition(partition_index=0, timestamp=1_000),)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=VIEW, partitions=wanted),))
    sent = node.send(request, 9, same_turn=True)
    assert not sent.is_answered
    node.end_turn()
    (answer,) = sent.response.topics[0].partitions
    assert (answer.error_code, answer.offset) == (0, 200)


def test_a_lookup_by_time_of_a_replica_that_does_not_lead_reads_nothing(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write(*KEYS)
    node.create(leader=2, leader_epoch=9, in_sync=(1, 2), replicas=(1, 2), topic_id=node.topic_id("orders"))
    monkeypatch.setattr("tailrace.server.fetch.view_times.first_at_least", None)
    (answer,) = node.ends(VIEW, 0, timestamp=1_000)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_view_whose_end_is_not_known_finds_no_record_by_time_yet(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write(*KEYS)
    monkeypatch.setattr(LogKeys, "end", lambda self, *wanted: None)
    monkeypatch.setattr(LogKeys, "index_on", lambda self, monotonic_ms: False)
    (answer,) = node.ends(VIEW, 0, timestamp=1_000)
    assert answer.error_code == ErrorCode.OFFSET_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_an_end_that_is_not_known_yet_is_waited_for_for_ten_seconds_at_most(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch, version: int, code: ErrorCode
) -> None:
    node.write(*KEYS)
    monkeypatch.setattr(key_reads, "SCAN_MS", 0)
    with monkeypatch.context() as hung:
        hung.setattr(LogKeys, "end", lambda self, *wanted: None)
        hung.setattr(LogKeys, "index_on", lambda self, monotonic_ms: True)
        hung.setattr(callbacks, "run_in_slices", lambda *_: None)  # no turn comes
        answer = node.send(latest(VIEW), version, same_turn=True)
        node.clock.advance(MAX_WAIT_MS - 1)
        assert not answer.is_answered
        node.clock.advance(1)
        assert answer.response.topics[0].partitions[0].error_code == code


def test_a_lookup_that_waits_for_an_index_has_its_end(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in KEYS:
        node.write(key)
    monkeypatch.setattr(key_reads, "SCAN_MS", 0)
    monkeypatch.setattr(key_ends, "STEP_MS", 0)
    answer = node.send(latest(VIEW), 9, same_turn=True)
    assert not answer.is_answered
    node.end_turn()
    (end,) = answer.response.topics[0].partitions
    assert (end.error_code, end.offset) == (0, offsets_of(KEYS, 0, 4)[-1] + 1)


def latest(view: str) -> ListOffsetsRequest:
    wanted = (ListOffsetsPartition(partition_index=0, timestamp=-1),)
    return ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=view, partitions=wanted),))


def test_a_fetch_waits_while_the_end_is_not_known(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write(*KEYS)
    known: list[bool] = []
    key_end = LogKeys.end
    monkeypatch.setattr(LogKeys, "end", lambda self, *wanted: key_end(self, *wanted) if known else None)
    monkeypatch.setattr(LogKeys, "index_on", lambda self, monotonic_ms: False)
    waiting = node.fetch_views(VIEW, {0: 0}, max_wait_ms=500)
    node.clock.advance(400)
    assert not waiting.is_answered
    node.clock.advance(100)
    assert waiting.fetched.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    old = node.fetch_views(VIEW, {0: 0}, version=10).fetched
    assert (old.error_code, old.high_watermark, old.records) == (0, -1, b"")


def test_a_fetch_that_waits_for_the_end_wakes_when_it_is_known(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write(*KEYS)
    with monkeypatch.context() as short:
        short.setattr(key_reads, "SCAN_MS", 0)
        waiting = node.fetch_views(VIEW, {0: 0}, max_wait_ms=500, same_turn=True)
        assert not waiting.is_answered
    node.end_turn()
    reader = ViewReader(node, VIEW, 0)
    reader.take(waiting.fetched)
    assert reader.offsets == offsets_of(KEYS, 0, 4)


@pytest.mark.parametrize("partition", [-1, 4, 2**31 - 1])
def test_a_partition_that_a_view_does_not_have_is_unknown(node: ViewNode, partition: int) -> None:
    (answer,) = node.ends(VIEW, partition)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def epoch_end(node: ViewNode, topic: str, partition: int, epoch: int, replica_id: int = -1) -> EpochEndOffset:
    wanted = (OffsetForLeaderPartition(partition=partition, leader_epoch=epoch),)
    request = OffsetForLeaderEpochRequest(
        replica_id=replica_id, topics=(OffsetForLeaderTopic(topic=topic, partitions=wanted),)
    )
    response = node.send(request, 4).response
    end: EpochEndOffset = response.topics[0].partitions[0]
    return end


def test_the_end_of_an_epoch_of_a_view_is_that_of_the_partition(node: ViewNode) -> None:
    """The end of the view would be below the position of a reader that was sent there by a timestamp."""
    node.write(*KEYS)
    for number in range(4):
        end = epoch_end(node, VIEW, number, 0)
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, 0, 60)
    assert epoch_end(node, VIEW, 4, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
