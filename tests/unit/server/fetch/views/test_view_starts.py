"""Readers of views whose offset is below the log start (decision 0099).

A client that is out of range begins at the end, if it has `auto.offset.reset=latest`, and misses records that are
there.
"""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.views import key_range_of
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, WireKeyRange
from tailrace.server.fetch import key_reads
from tailrace.server.fetch.view_reads import ScannedOffsets
from tailrace.storage.keys.log_keys import LogKeys
from testkit.nodes.view_readers import ViewNode, ViewReader
from unit.server.fetch.views.view_keys import KEYS, VIEW, key_in

EARLIEST = -2


@pytest.fixture
def node() -> ViewNode:
    return ViewNode()


def read_view(node: ViewNode) -> ViewReader:
    """A reader of view partition 0 that has read the only record, and stands at offset 1."""
    node.write(key_in(0))
    reader = ViewReader(node, VIEW, 0)
    reader.fetch()
    assert reader.position == 1
    return reader


@pytest.fixture
def forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node forgets at once what it has scanned, as at a start."""
    monkeypatch.setattr(ScannedOffsets, "after", lambda self, where, offset: offset)


@pytest.mark.usefixtures("forgets")
def test_a_reader_that_has_lost_no_record_goes_on_at_the_log_start(node: ViewNode) -> None:
    reader = read_view(node)
    node.write(*[key_in(1)] * 50)
    node.table.get("orders", 0).delete_records(40)
    node.write(key_in(0), key_in(1), key_in(0))
    data = reader.fetch()
    assert reader.offsets == [0, 51, 53]
    assert (data.log_start_offset, data.high_watermark) == (1, 54)


@pytest.mark.usefixtures("forgets")
def test_a_reader_that_has_lost_no_record_and_has_none_to_read_waits(node: ViewNode) -> None:
    reader = read_view(node)
    node.write(*[key_in(1)] * 50)
    node.table.get("orders", 0).delete_records(51)
    waiting = node.fetch_views(VIEW, {0: reader.position}, max_wait_ms=500)
    assert not waiting.is_answered
    node.write(key_in(0))
    reader.take(waiting.fetched)
    assert reader.offsets == [0, 51]


def test_a_reader_that_has_lost_a_record_is_out_of_range(node: ViewNode) -> None:
    reader = read_view(node)
    node.write(*[key_in(1)] * 20, key_in(0), *[key_in(1)] * 20)
    partition = node.table.get("orders", 0)
    partition.delete_records(21)
    reader.fetch()
    assert reader.offsets == [0, 21]
    partition.delete_records(22)
    for offset, code in ((0, 1), (1, 1), (21, 1), (22, 0)):
        assert node.fetch_views(VIEW, {0: offset}).fetched.error_code == code, offset


def test_a_reader_waits_until_it_is_known_what_was_deleted(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = read_view(node)
    node.write(*[key_in(1)] * 50, key_in(0))
    node.table.get("orders", 0).delete_records(40)
    with monkeypatch.context() as unknown:
        unknown.setattr(LogKeys, "has_lost", lambda *_: None)
        unknown.setattr(LogKeys, "index_on", lambda *_: False)
        waiting = node.fetch_views(VIEW, {0: 1}, max_wait_ms=500)
        node.clock.advance(500)
        assert waiting.fetched.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    with monkeypatch.context() as short:
        short.setattr(key_reads, "SCAN_MS", 0)
        waiting = node.fetch_views(VIEW, {0: 1}, max_wait_ms=500, same_turn=True)
        assert not waiting.is_answered
    node.end_turn()
    reader.take(waiting.fetched)
    assert reader.offsets == [0, 51]


def test_a_reader_of_an_offset_above_the_end_of_the_log_is_out_of_range(node: ViewNode) -> None:
    read_view(node)
    assert node.fetch_views(VIEW, {0: 2}).fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_follower_below_whose_log_start_the_leader_has_records_sends_readers_to_the_leader(node: ViewNode) -> None:
    read_view(node)
    node.write(*[key_in(1)] * 50)
    node.table.get("orders", 0).delete_records(40)
    partition = node.create(leader=2, leader_epoch=9, in_sync=(1, 2), replicas=(1, 2), topic_id=node.topic_id("orders"))
    partition.following.take_leader_offsets(high_watermark=51, log_start_offset=0)
    assert node.fetch_views(VIEW, {0: 1}).fetched.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    partition.following.take_leader_offsets(high_watermark=51, log_start_offset=40)
    assert node.fetch_views(VIEW, {0: 1}).fetched.error_code == 0


def range_read(node: ViewNode, offset: int, *numbers: int) -> PartitionData:
    """A fetch of key ranges, those of these partitions of the view."""
    ranges = tuple(
        WireKeyRange(first=first, last=last) for first, last in (key_range_of(number, 4) for number in numbers)
    )
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, key_ranges=ranges)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=(FetchTopic(topic="orders", partitions=(wanted,)),))
    data: PartitionData = node.send(request, 12).fetched
    return data


def test_a_reader_of_key_ranges_below_the_log_start_has_lost_records_of_its_ranges_only(node: ViewNode) -> None:
    node.write(*KEYS)
    assert range_read(node, 0, 0).error_code == 0
    node.write(*[key_in(1)] * 50, key_in(0))
    node.table.get("orders", 0).delete_records(100)
    data = range_read(node, 60, 0)
    assert (data.error_code, data.log_start_offset, data.scanned_to) == (0, 100, 111)
    assert len(data.applied_key_ranges) == 1
    assert data.records
    for offset, numbers in ((5, [0]), (60, [1]), (60, [0, 1]), (60, [0, 1, 2, 3])):
        assert range_read(node, offset, *numbers).error_code == ErrorCode.OFFSET_OUT_OF_RANGE, (offset, numbers)


def test_a_reader_of_the_whole_partition_is_out_of_range_below_the_log_start(node: ViewNode) -> None:
    node.write(*KEYS)
    node.table.get("orders", 0).delete_records(10)
    assert node.fetch("orders", 9).fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_view_without_records_starts_at_its_end_behind_a_deleted_marker(node: ViewNode) -> None:
    """A reader from the start to the end would wait for a record that never comes."""
    read_view(node)
    node.write(
        key_in(1), producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True, transactional_id="t9"
    )
    node.end_transaction("orders", producer_id=9, is_commit=True)
    assert [answer.offset for answer in node.ends(VIEW, 0, timestamp=EARLIEST)] == [0]
    node.table.get("orders", 0).delete_records(3)
    assert [node.end(VIEW, 0), node.end(VIEW, 0, timestamp=EARLIEST)] == [3, 3]
    node.write(key_in(0))
    assert [node.end(VIEW, 0), node.end(VIEW, 0, timestamp=EARLIEST)] == [4, 1]
