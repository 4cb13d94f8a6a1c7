"""The counts of the key filter: the work for readers of views and of key ranges (KIP-X)."""

import pytest

from tailrace.model.key_ranges import of_slots
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, WireKeyRange
from tailrace.server.fetch import key_reads
from tailrace.server.fetch.key_reads import FilterCounts, KeyRangeReads
from tailrace.storage.keys.log_keys import LogKeys
from testkit.nodes.view_readers import ViewNode
from unit.server.fetch.views.view_keys import KEYS, VIEW


@pytest.fixture
def node() -> ViewNode:
    return ViewNode()


def reads_of(node: ViewNode) -> KeyRangeReads:
    return node.broker.readable_views.key_reads


def log_bytes(node: ViewNode) -> int:
    return node.table.get("orders", 0).log.size_bytes


def test_one_split_serves_all_readers_of_a_view(node: ViewNode) -> None:
    for number in range(4):
        node.fetch_views(VIEW, {number: 0})
    before = log_bytes(node)
    node.write(*KEYS)
    delivered = sum(len(node.fetch_views(VIEW, {number: 0}).fetched.records or b"") for number in range(4))
    counts = reads_of(node).of_views
    assert delivered > log_bytes(node) - before > 0, "four batches"
    assert (counts.scanned_bytes, counts.delivered_bytes) == (log_bytes(node) - before, delivered)
    assert reads_of(node).of_ranges == FilterCounts()


def test_a_fetch_that_waits_has_delivered_nothing_yet(node: ViewNode) -> None:
    node.write(*KEYS)
    waiting = node.fetch_views(VIEW, {0: 0}, min_bytes=1 << 20, max_wait_ms=500)
    assert not waiting.is_answered
    assert reads_of(node).of_views.delivered_bytes == 0
    node.clock.advance(500)
    assert reads_of(node).of_views.delivered_bytes == len(waiting.fetched.records or b"") > 0


def test_the_work_for_key_ranges_is_counted_by_itself(node: ViewNode) -> None:
    node.write(*KEYS)
    low = of_slots(0, 127)
    ranges = (WireKeyRange(first=low.first, last=low.last),)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20, key_ranges=ranges)
    topic = FetchTopic(topic="", topic_id=node.topic_id("orders"), partitions=(wanted,))
    data = node.send(FetchRequest(max_wait_ms=0, min_bytes=1, topics=(topic,)), 17).fetched
    assert data.records
    counts = reads_of(node).of_ranges
    assert (counts.scanned_bytes, counts.delivered_bytes) == (log_bytes(node), len(data.records))
    assert reads_of(node).of_views == FilterCounts()


def test_answers_that_have_to_wait_for_an_index_are_counted(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write(*KEYS)
    counts = reads_of(node).of_views
    with monkeypatch.context() as unknown:
        unknown.setattr(LogKeys, "end", lambda self, *wanted: None)
        unknown.setattr(LogKeys, "index_on", lambda self, monotonic_ms: False)
        node.fetch_views(VIEW, {0: 0})
        assert counts.unavailable == 1
        node.ends(VIEW, 0)
        assert counts.unavailable == 2
    node.fetch_views(VIEW, {0: 0})
    node.fetch_views(VIEW, {1: 0}, version=10)
    assert counts.unavailable == 2


def test_the_index_that_a_reader_waits_for_has_so_many_bytes_left(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write(*KEYS)
    keys, ends = node.table.get("orders", 0).log.keys, node.broker.readable_views.reads.ends
    assert (keys.left_bytes, ends.incomplete) == (0, ()), "nothing asks for keys"
    with monkeypatch.context() as short:
        short.setattr(key_reads, "SCAN_MS", 0)
        node.fetch_views(VIEW, {0: 0}, max_wait_ms=500, same_turn=True)
        assert (keys.left_bytes, ends.incomplete) == (log_bytes(node), (node.table.get("orders", 0),))
        node.end_turn()
    assert (keys.left_bytes, ends.incomplete) == (0, ())
