"""Fetches of views by clients that know nothing of key ranges (decision 0057)."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from crc32c import crc32c

from tailrace.client.reading.fetching import visible_batches
from tailrace.model.errors import ErrorCode
from tailrace.model.views import FAN_OUTS
from tailrace.protocol.declaration import replace
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, WireKeyRange
from tailrace.protocol.messages.topics import DeleteTopicsRequest
from tailrace.protocol.records.batch import HEADER_SIZE, check_crc, iter_batches
from tailrace.protocol.records.compression import Codec, compress
from tailrace.protocol.records.record import Record, build_batch
from tailrace.replication.outcomes import READ_COMMITTED, PartitionRead
from tailrace.replication.partition import Partition
from tailrace.server.fetch import key_reads, view_reads
from tailrace.storage import ReadLimits
from tailrace.storage.keys.log_keys import LogKeys
from testkit.nodes.data_path import unlooking
from testkit.nodes.view_readers import ViewNode, ViewReader, batches_of, offsets_of
from unit.server.fetch.views.view_keys import KEYS, VIEW, key_in


@pytest.fixture
def node() -> ViewNode:
    return ViewNode()


def each_gets_its_records(node: ViewNode, **options: Any) -> None:
    """A fetch of each partition of the view gets the records of the partition."""
    for number in range(4):
        reader = ViewReader(node, VIEW, number, **options)
        reader.fetch()
        assert reader.offsets == offsets_of(KEYS, number, 4)


def fetch_of(*topics: Mapping[str, Any], key_ranges: Sequence[WireKeyRange] = ()) -> FetchRequest:
    """A full fetch of partition 0 of topics by their name or their id."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20, key_ranges=tuple(key_ranges))
    named = tuple(FetchTopic(**topic, partitions=(wanted,)) for topic in topics)
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=named)


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads_a_view(node: ViewNode, version: int) -> None:
    node.write(*KEYS)
    each_gets_its_records(node, version=version)


@pytest.mark.parametrize("fan_out", FAN_OUTS)
def test_the_partitions_of_a_view_share_the_records_out(fan_out: int) -> None:
    node, found = ViewNode(partitions=2), {}
    for partition in range(2):
        for _ in range(5):
            node.write(*KEYS, partition=partition)
    for number in range(2 * fan_out):
        reader = ViewReader(node, f"orders.shared-{fan_out}", number)
        reader.read_on(until=node.end(reader.view, number))
        assert reader.offsets == offsets_of(KEYS * 5, number, fan_out)
        found[number] = reader.offsets
    for partition in range(2):
        mine = [offset for number in range(fan_out) for offset in found[partition * fan_out + number]]
        assert sorted(mine) == list(range(5 * len(KEYS)))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_the_partitions_of_a_view_share_compressed_records_out(node: ViewNode, codec: Codec) -> None:
    node.write(*KEYS, codec=codec)
    each_gets_its_records(node)


def test_the_partitions_of_a_view_share_records_without_a_key_out_by_blocks(node: ViewNode) -> None:
    keys: list[bytes | None] = [None] * 1_000
    for first in range(0, 1_000, 100):
        node.write(*keys[first : first + 100])
    for number in range(4):
        reader = ViewReader(node, VIEW, number)
        reader.read_on(until=node.end(VIEW, number))
        assert reader.offsets == offsets_of(keys, number, 4)


@pytest.mark.parametrize("isolation", [0, READ_COMMITTED])
def test_a_reader_that_has_all_stands_at_the_end(node: ViewNode, isolation: int) -> None:
    """Batches have records of other views behind the last record: a client's position would be past the view's end."""
    for first in range(0, 60, 10):
        node.write(*KEYS[first : first + 10])
        for number in range(4):
            end = node.end(VIEW, number, isolation=isolation)
            reader = ViewReader(node, VIEW, number, isolation=isolation)
            reader.read_on(until=end)
            assert reader.position == end == max([-1, *offsets_of(KEYS[: first + 10], number, 4)]) + 1
            data = reader.fetch()
            assert (data.high_watermark, data.last_stable_offset, bytes(data.records or b"")) == (end, end, b"")


def test_a_reader_of_the_last_record_alone_gets_no_batch_again(node: ViewNode) -> None:
    """librdkafka commits the offset behind the last record, which is inside of the batch."""
    node.write(key_in(0), key_in(1), key_in(1, nth=1))
    node.write(key_in(0), key_in(1), key_in(1, nth=1))
    reader = ViewReader(node, VIEW, 0)
    reader.position = 1
    reader.fetch()
    assert reader.offsets == [3]
    reader.position = 4
    assert bytes(reader.fetch().records or b"") == b""
    node.broker.readable_views.reads.scanned._stretches.clear()
    assert bytes(reader.fetch().records or b"") == b""


def test_a_batch_with_an_earlier_and_a_later_record_comes_whole(node: ViewNode) -> None:
    node.write(key_in(0), key_in(1), key_in(0, nth=1))
    reader = ViewReader(node, VIEW, 0)
    reader.position = 1
    reader.fetch()
    assert reader.offsets == [2]


def test_checksums_of_a_views_batches_are_right(node: ViewNode) -> None:
    node.write(*KEYS)
    for number in range(4):
        records = bytes(ViewReader(node, VIEW, number).fetch().records or b"")
        for position, header in iter_batches(records):
            check_crc(records, position, header)


def test_small_answers_lead_a_reader_of_a_view_through_the_log(node: ViewNode) -> None:
    for first in range(0, len(KEYS), 4):
        node.write(*KEYS[first : first + 4])
    for number in range(4):
        reader = ViewReader(node, VIEW, number, max_bytes=1)
        reader.read_on(until=node.end(VIEW, number))
        assert reader.offsets == offsets_of(KEYS, number, 4)


@pytest.mark.parametrize("hashing", ["0", "67108864"])
def test_a_fetch_of_a_view_that_finds_nothing_gets_on(monkeypatch: pytest.MonkeyPatch, hashing: str) -> None:
    """A fetch scans one batch, and its reader names offset 0 again and again: no stretch of other readers helps, and no
    key index."""
    monkeypatch.setattr(LogKeys, "next_match", lambda _keys, _slots, offset, _end_offset: offset)
    node = ViewNode(settings={"key.range.fetch.max.scan.bytes": "1024", "max.bytes.key.range.hashing": hashing})
    for _ in range(30):
        node.write(*[key_in(1)] * 9, value=bytes(200))
    node.write(key_in(0))
    monkeypatch.setattr(node.broker.readable_views.key_reads, "chunk_bytes", 1)
    reader = ViewReader(node, VIEW, 0, max_wait_ms=500)
    reader.read_on(until=271, most=40)
    assert reader.offsets == [270]
    assert reader.fetches > 20


def test_a_scan_for_a_view_may_not_take_longer_than_its_time(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write(*KEYS)
    node.end(VIEW, 0)
    monkeypatch.setattr(key_reads, "SCAN_MS", 0)
    data = node.fetch_views(VIEW, {0: 0}).fetched
    assert (data.error_code, bytes(data.records or b"")) == (0, b"")


def test_a_long_poll_wakes_for_records_of_its_view_alone(node: ViewNode) -> None:
    node.write(key_in(0), key_in(1))
    reader = ViewReader(node, VIEW, 0)
    reader.fetch()
    waiting = node.fetch_views(VIEW, {0: reader.position}, max_wait_ms=500)
    for _ in range(3):
        node.write(key_in(1), key_in(2))
        assert not waiting.is_answered
    node.write(key_in(2), key_in(0), key_in(2))
    reader.take(waiting.fetched)
    assert reader.offsets == [0, 9]
    assert reader.position == node.end(VIEW, 0) == 10


def test_a_fetch_waits_for_so_many_bytes_of_its_view(node: ViewNode) -> None:
    waiting = node.fetch_views(VIEW, {0: 0}, max_wait_ms=500, min_bytes=150)
    node.write(key_in(0))
    for _ in range(5):
        node.write(key_in(1), value=bytes(500))
        assert not waiting.is_answered, "bytes of others do not count"
    node.write(key_in(0))
    reader = ViewReader(node, VIEW, 0)
    reader.take(waiting.fetched)
    assert reader.offsets == [0, 6]


def test_a_wake_of_a_views_reader_reads_new_batches_alone(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        node.write(*[key_in(1)] * 9)
    waiting = node.fetch_views(VIEW, {0: 0}, max_wait_ms=500)
    read, read_from = Partition.read, []

    def noted(partition: Partition, limits: ReadLimits) -> PartitionRead:
        read_from.append(limits.offset)
        return read(partition, limits)

    monkeypatch.setattr(Partition, "read", noted)
    node.write(key_in(1))
    node.write(key_in(1))
    assert not waiting.is_answered
    node.write(key_in(0))
    assert waiting.is_answered
    assert min(read_from) >= 45


def test_a_reader_at_the_end_of_its_view_costs_no_scan(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write(key_in(0))
    for _ in range(9):
        node.write(*[key_in(1)] * 9)
    node.end(VIEW, 0)
    monkeypatch.setattr(node.broker.readable_views.key_reads, "read", None)
    data = node.fetch_views(VIEW, {0: 1}).fetched
    assert (data.error_code, data.high_watermark, data.records) == (0, 1, b"")
    monkeypatch.undo()
    node.write(key_in(0))
    reader = ViewReader(node, VIEW, 0)
    reader.position = 1
    reader.fetch()
    assert reader.offsets == [82]


def test_a_view_of_a_log_that_is_offline_is_not_empty(node: ViewNode) -> None:
    node.write(key_in(0))
    node.end(VIEW, 0)
    node.table.get("orders", 0).log.condemn("a test")
    assert node.fetch_views(VIEW, {0: 1}).fetched.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_long_poll_over_several_partitions_of_a_view_wakes(node: ViewNode) -> None:
    waiting = node.fetch_views(VIEW, {0: 0, 1: 0, 2: 0, 3: 0}, max_wait_ms=500)
    node.write(key_in(2))
    (topic,) = waiting.response.responses
    assert [data.partition_index for data in topic.partitions if data.records] == [2]


def test_a_topic_and_its_view_may_be_in_one_fetch(node: ViewNode) -> None:
    node.write(*KEYS)
    request = fetch_of(*({"topic": name} for name in ("orders", VIEW)))
    answers = [topic.partitions[0] for topic in node.send(request, 12).response.responses]
    assert [sum(len(records) for _, records in batches_of(data)) for data in answers] == [
        60,
        len(offsets_of(KEYS, 0, 4)),
    ]


@pytest.mark.parametrize("is_for_all", [False, True])
def test_key_ranges_of_a_view_are_an_invalid_request(node: ViewNode, is_for_all: bool) -> None:
    ranges = (WireKeyRange(first=0, last=10),)
    of_partition, of_request = ((), ranges) if is_for_all else (ranges, ())
    request = fetch_of({"topic_id": node.view_id(VIEW)}, key_ranges=of_partition)
    request = replace(request, key_ranges=of_request)
    assert node.send(request, 17).fetched.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [12, 17])
@pytest.mark.parametrize("partition", [-1, 4, 2**31 - 1])
def test_a_partition_that_a_view_does_not_have_is_unknown(node: ViewNode, version: int, partition: int) -> None:
    data = node.fetch_views(VIEW, {partition: 0}, version=version).fetched
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("version", "code"), [(12, 3), (17, 100)])
def test_there_are_no_views_where_they_are_switched_off(version: int, code: int) -> None:
    node = ViewNode(settings={"group.key.ranges.enable": "false"})
    assert node.fetch_views(VIEW, {0: 0}, version=version).fetched.error_code == code


def test_a_view_follows_its_topic(node: ViewNode) -> None:
    node.write(*KEYS)
    before = node.view_id(VIEW)
    node.send(DeleteTopicsRequest(topic_names=("orders",), timeout_ms=1_000), 5)
    request = fetch_of({"topic_id": before})
    assert node.send(request, 17).fetched.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    node.create_topics("orders", partitions=2)
    assert node.send(request, 17).fetched.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    node.write(*KEYS, partition=1)
    reader = ViewReader(node, VIEW, 6)
    reader.fetch()
    assert reader.offsets == offsets_of(KEYS, 6, 4)


def test_an_offset_of_a_view_above_the_high_watermark_is_not_available_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ViewNode()
    node.write(*KEYS)
    monkeypatch.setattr(Partition, "high_watermark", property(lambda self: 30))
    monkeypatch.setattr(Partition, "last_stable_offset", property(lambda self: 30))
    monkeypatch.setattr(LogKeys, "end", lambda self, *wanted: 30)
    waiting = node.fetch_views(VIEW, {0: 40}, max_wait_ms=500)
    assert not waiting.is_answered
    node.clock.advance(500)
    data = waiting.fetched
    assert (data.error_code, data.records) == (ErrorCode.OFFSET_NOT_AVAILABLE, b"")


def lying(keys: Sequence[bytes]) -> bytes:
    """A batch whose checksum is right, and whose compressed records are something else."""
    built = build_batch([Record(number, 0, key, b"value", ()) for number, key in enumerate(keys)])
    batch = bytearray(built[:HEADER_SIZE]) + bytes(compress(Codec.LZ4, b"no records at all"))
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] |= Codec.LZ4
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def test_a_batch_that_lies_about_its_records_is_corrupt_in_a_view(node: ViewNode) -> None:
    node.write(*KEYS)
    with unlooking(node.table.get("orders", 0)):
        node.produce("orders", records=lying(KEYS))
    node.write(*KEYS)
    for number in range(4):
        reader = ViewReader(node, VIEW, number)
        reader.fetch()
        assert reader.offsets == offsets_of(KEYS, number, 4)
        it = node.fetch_views(VIEW, {number: reader.position}).fetched
        assert (it.error_code, bytes(it.records or b"")) == (ErrorCode.CORRUPT_MESSAGE, b"")
        reader.position = 2 * len(KEYS)
        reader.fetch()
        assert reader.offsets[len(offsets_of(KEYS, number, 4)) :] == offsets_of(KEYS, number, 4, first=120)


def test_an_offset_of_a_view_that_is_gone_is_out_of_range(node: ViewNode) -> None:
    node.write(*KEYS)
    assert node.fetch_views(VIEW, {0: 61}).fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    node.table.get("orders", 0).delete_records(30)
    data = node.fetch_views(VIEW, {0: 10}).fetched
    assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 30)


def with_a_record(node: ViewNode) -> ViewReader:
    """A reader that has the only record of its partition."""
    node.write(key_in(0))
    reader = ViewReader(node, VIEW, 0)
    reader.fetch()
    return reader


def test_a_reader_of_a_view_without_records_loses_nothing_when_the_log_start_passes_it(node: ViewNode) -> None:
    """A client that is out of range may begin at the end: it would miss a record that has just come."""
    reader = with_a_record(node)
    node.write(*[key_in(1)] * 50)
    reader.fetch()
    node.table.get("orders", 0).delete_records(40)
    assert reader.position == 1
    reader.fetch()
    node.write(key_in(0))
    reader.fetch()
    assert reader.offsets == [0, 51]


def test_a_reader_of_a_view_that_lost_records_is_out_of_range(node: ViewNode) -> None:
    with_a_record(node)
    node.write(*[key_in(0)] * 50)
    node.table.get("orders", 0).delete_records(40)
    assert node.fetch_views(VIEW, {0: 1}).fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_follower_serves_a_view(node: ViewNode) -> None:
    node.write(*KEYS)
    partition = node.create(leader=2, leader_epoch=9, in_sync=(1, 2), replicas=(1, 2), topic_id=node.topic_id("orders"))
    partition.following.take_leader_offsets(high_watermark=len(KEYS), log_start_offset=0)
    for number in range(4):
        reader = ViewReader(node, VIEW, number, version=17)
        data = reader.fetch()
        assert reader.offsets == offsets_of(KEYS, number, 4)
        assert reader.position == data.high_watermark
        old = node.fetch_views(VIEW, {number: 0}, version=10).fetched
        assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_reads_no_view(node: ViewNode) -> None:
    node.write(*KEYS)
    request = replace(fetch_of({"topic": VIEW}), replica_id=2)
    assert node.send(request, 12).fetched.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def transact(node: ViewNode, producer: int, keys: Sequence[bytes], *, commits: bool | None) -> None:
    """A transaction of one batch; None leaves it open."""
    node.write(
        *keys,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
        transactional_id=f"t{producer}",
    )
    if commits is not None:
        node.end_transaction("orders", producer_id=producer, is_commit=commits)


@pytest.mark.parametrize("number", range(4))
def test_a_reader_of_committed_records_gets_markers_and_learns_of_aborted_ones(node: ViewNode, number: int) -> None:
    transact(node, 7, KEYS, commits=True)
    transact(node, 8, KEYS, commits=False)
    transact(node, 9, KEYS, commits=True)
    data = node.fetch_views(VIEW, {number: 0}, isolation=READ_COMMITTED).fetched
    assert data.high_watermark == data.last_stable_offset == 3 * len(KEYS) + 3
    assert [(transaction.producer_id, transaction.first_offset) for transaction in data.aborted_transactions or ()] == [
        (8, len(KEYS) + 1)
    ]
    assert [header.base_offset for header, _ in batches_of(data) if header.is_control] == [60, 121, 182]
    seen = visible_batches(data.records or b"", 0, data.aborted_transactions or ())
    offsets = [
        record.offset
        for buffer in seen.stretches
        for _, records in batches_of(replace(data, records=buffer))
        for record in records
    ]
    assert offsets == offsets_of(KEYS, number, 4) + offsets_of(KEYS, number, 4, first=122)


def test_an_open_transaction_holds_the_end_of_a_views_committed_records_back(node: ViewNode) -> None:
    node.write(key_in(0), key_in(1))
    transact(node, 7, [key_in(1), key_in(0)], commits=None)
    node.write(key_in(0), key_in(1))
    assert node.end(VIEW, 0) == 5
    assert node.end(VIEW, 0, isolation=READ_COMMITTED) == 1
    reader = ViewReader(node, VIEW, 0, isolation=READ_COMMITTED)
    data = reader.fetch()
    assert (reader.offsets, reader.position) == ([0], 1)
    assert (data.high_watermark, data.last_stable_offset) == (5, 1)
    waiting = node.fetch_views(VIEW, {0: 1}, isolation=READ_COMMITTED, max_wait_ms=500)
    node.end_transaction("orders", producer_id=7, is_commit=True)
    reader.take(waiting.fetched)
    assert reader.offsets == [0, 3, 4]
    assert reader.position == node.end(VIEW, 0, isolation=READ_COMMITTED) == 7


def test_the_node_keeps_few_stretches_of_views(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_reads, "MOST_VIEW_PARTITIONS", 3)
    node.write(key_in(0))
    for number in range(256):
        node.fetch_views("orders.shared-256", {number: 0})
    assert len(node.broker.readable_views.reads.scanned) == 3
