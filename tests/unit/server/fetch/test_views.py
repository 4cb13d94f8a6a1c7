"""Fetches of views by clients that know nothing of key ranges (decision 0057)."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from crc32c import crc32c

from tailrace.client.reading.fetching import visible_batches
from tailrace.model.errors import ErrorCode
from tailrace.model.key_ranges import contains, hash_of
from tailrace.model.views import FAN_OUTS, key_range_of
from tailrace.protocol.declaration import replace
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
    WireKeyRange,
)
from tailrace.protocol.messages.topics import DeleteTopicsRequest
from tailrace.protocol.records.batch import HEADER_SIZE, check_crc, iter_batches
from tailrace.protocol.records.compression import Codec, compress
from tailrace.protocol.records.kernels import SteppedSplit
from tailrace.protocol.records.record import Record, build_batch
from tailrace.replication.outcomes import READ_COMMITTED, PartitionRead
from tailrace.replication.partition import Partition
from tailrace.server.fetch import key_reads, large_splits, view_reads
from tailrace.storage import ReadLimits
from tailrace.storage.keys import batch_slots
from tailrace.storage.keys.batch_slots import BatchLimits
from tailrace.storage.keys.log_keys import LogKeys
from testkit.nodes.clocks import BusyClock
from testkit.nodes.data_path import unlooking
from testkit.nodes.view_readers import ViewNode, ViewReader, batches_of, offsets_of

VIEW = "orders.shared-4"
KEYS = [b"key-%d" % number for number in range(60)]


def key_in(number: int, *, nth: int = 0) -> bytes:
    """A key whose records are in this partition of the view."""
    wanted = [key_range_of(number, 4)]
    return [key for key in KEYS if contains(wanted, hash_of(key, 0))][nth]


@pytest.fixture
def node() -> ViewNode:
    return ViewNode()


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads_a_view(node: ViewNode, version: int) -> None:
    node.write(*KEYS)
    for number in range(4):
        reader = ViewReader(node, VIEW, number, version=version)
        reader.fetch()
        assert reader.offsets == offsets_of(KEYS, number, 4)


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
def test_compressed_records_are_shared_out(node: ViewNode, codec: Codec) -> None:
    node.write(*KEYS, codec=codec)
    for number in range(4):
        reader = ViewReader(node, VIEW, number)
        reader.fetch()
        assert reader.offsets == offsets_of(KEYS, number, 4)


def test_records_without_a_key_are_shared_out_by_blocks(node: ViewNode) -> None:
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


def test_checksums_are_right(node: ViewNode) -> None:
    node.write(*KEYS)
    for number in range(4):
        records = bytes(ViewReader(node, VIEW, number).fetch().records or b"")
        for position, header in iter_batches(records):
            check_crc(records, position, header)


def test_small_answers_lead_through_the_log(node: ViewNode) -> None:
    for first in range(0, len(KEYS), 4):
        node.write(*KEYS[first : first + 4])
    for number in range(4):
        reader = ViewReader(node, VIEW, number, max_bytes=1)
        reader.read_on(until=node.end(VIEW, number))
        assert reader.offsets == offsets_of(KEYS, number, 4)


@pytest.mark.parametrize("hashing", ["0", "67108864"])
def test_a_fetch_that_finds_nothing_gets_on(monkeypatch: pytest.MonkeyPatch, hashing: str) -> None:
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


def test_other_partitions_have_their_turn_while_a_session_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ViewNode(partitions=2, settings={"key.range.fetch.max.scan.bytes": "1024"})
    for _ in range(9):
        node.write(*[key_in(1)] * 9, value=bytes(200))
        node.write(*[key_in(0)] * 9, value=bytes(200), partition=1)
    node.write(key_in(0))
    monkeypatch.setattr(node.broker.readable_views.key_reads, "chunk_bytes", 1)
    session = ViewSession(node)
    session.open({0: 0, 4: 0})
    found = [session.next().get(4) for _ in range(3)]
    assert any(data is not None and data.records for data in found)


def test_a_scan_may_not_take_longer_than_its_time(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_wake_reads_new_batches_alone(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
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
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = tuple(FetchTopic(topic=name, partitions=(wanted,)) for name in ("orders", VIEW))
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)
    answers = [topic.partitions[0] for topic in node.send(request, 12).response.responses]
    assert [sum(len(records) for _, records in batches_of(data)) for data in answers] == [
        60,
        len(offsets_of(KEYS, 0, 4)),
    ]


@pytest.mark.parametrize("is_for_all", [False, True])
def test_key_ranges_of_a_view_are_an_invalid_request(node: ViewNode, is_for_all: bool) -> None:
    ranges = (WireKeyRange(first=0, last=10),)
    wanted = FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20, key_ranges=() if is_for_all else ranges
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=(FetchTopic(topic_id=node.view_id(VIEW), partitions=(wanted,)),),
        key_ranges=ranges if is_for_all else (),
    )
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


def share_orders(node: ViewNode, value: str) -> None:
    change = IncrementallyAlterableConfig(name="key.ranges.enable", config_operation=0, value=value)
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="orders", configs=(change,))
    node.send(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False), 1)


@pytest.mark.parametrize(("version", "code"), [(12, 3), (17, 100)])
def test_a_session_learns_that_the_topic_is_not_shared_any_more(node: ViewNode, version: int, code: int) -> None:
    node.write(*KEYS)
    session = ViewSession(node, version=version)
    (data,) = session.open({0: 0}).values()
    session.next({0: batches_of(data)[-1][0].end_offset})
    assert session.next() == {}
    share_orders(node, "false")
    assert session.next()[0].error_code == code
    share_orders(node, "true")
    assert session.next()[0].error_code == 0


def test_a_session_at_the_end_of_the_log_learns_it_too(node: ViewNode) -> None:
    """The last answer has the offsets of the partition itself: for a topic nothing else is looked at."""
    node.write(key_in(0))
    session = ViewSession(node)
    session.open({0: 0})
    assert session.next({0: 1}) == {}
    share_orders(node, "false")
    assert session.next()[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_view_follows_its_topic(node: ViewNode) -> None:
    node.write(*KEYS)
    before = node.view_id(VIEW)
    node.send(DeleteTopicsRequest(topic_names=("orders",), timeout_ms=1_000), 5)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=(FetchTopic(topic_id=before, partitions=(wanted,)),)
    )
    assert node.send(request, 17).fetched.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    node.create_topics("orders", partitions=2)
    assert node.send(request, 17).fetched.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    node.write(*KEYS, partition=1)
    reader = ViewReader(node, VIEW, 6)
    reader.fetch()
    assert reader.offsets == offsets_of(KEYS, 6, 4)


class ViewSession:
    """A reader of a view with a fetch session."""

    def __init__(self, node: ViewNode, *, version: int = 17, view: str = VIEW) -> None:
        self.node, self.version, self.view = node, version, view
        self.id = self.epoch = 0

    def send(self, offsets: dict[int, int], **options: Any) -> Any:
        by_id = self.version >= 13
        wanted = tuple(
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in offsets.items()
        )
        topic = FetchTopic(
            topic="" if by_id else self.view,
            topic_id=self.node.view_id(self.view) if by_id else bytes(16),
            partitions=wanted,
        )
        request = FetchRequest(
            max_wait_ms=options.get("max_wait_ms", 0),
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=(topic,) if wanted else (),
        )
        return self.node.send(request, self.version)

    def open(self, offsets: dict[int, int]) -> dict[int, PartitionData]:
        response = self.send(offsets).response
        assert response.error_code == 0
        self.id, self.epoch = response.session_id, 1
        return answers(response)

    def next(self, offsets: dict[int, int] | None = None, **options: Any) -> dict[int, PartitionData]:
        return answers(self.begin(offsets, **options).response)

    def begin(self, offsets: dict[int, int] | None = None, **options: Any) -> Any:
        exchange = self.send(offsets or {}, **options)
        self.epoch += 1
        return exchange


def answers(response: Any) -> dict[int, PartitionData]:
    assert response.error_code == 0
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


@pytest.mark.parametrize("version", [*range(7, 19)])
def test_a_session_reads_a_view(node: ViewNode, version: int) -> None:
    session = ViewSession(node, version=version)
    positions = dict.fromkeys(range(4), 0)
    opened = session.open(positions)
    assert all(not data.records for data in opened.values())
    found: dict[int, list[int]] = {number: [] for number in range(4)}
    for first in range(0, len(KEYS), 5):
        node.write(*KEYS[first : first + 5])
        moved: dict[int, int] = {}
        while True:
            data_of = session.next(moved)
            moved = {}
            for number, data in data_of.items():
                assert (data.applied_key_ranges, data.scanned_to) == ((), -1)
                for header, records in batches_of(data):
                    found[number] += [record.offset for record in records if record.offset >= positions[number]]
                    moved[number] = positions[number] = header.end_offset
            if not moved:
                break
    for number in range(4):
        assert found[number] == offsets_of(KEYS, number, 4)
        assert positions[number] == node.end(VIEW, number)
    assert session.next() == {}
    kept = next(iter(node.broker.fetch_sessions.cache.sessions()))
    assert not kept.due


def test_a_waiting_session_wakes_for_records_of_its_partitions_alone(node: ViewNode) -> None:
    session = ViewSession(node)
    session.open({0: 0})
    waiting = session.begin(max_wait_ms=500)
    node.write(key_in(1), key_in(2))
    assert not waiting.is_answered
    node.write(key_in(1), key_in(0))
    (data,) = answers(waiting.response).values()
    assert [record.offset for _, records in batches_of(data) for record in records] == [3]


def test_a_waiting_session_learns_at_last_that_an_end_is_not_known(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ViewSession(node)
    session.open({0: 0})
    monkeypatch.setattr(LogKeys, "end", lambda self, *wanted: None)
    monkeypatch.setattr(LogKeys, "index_on", lambda self, monotonic_ms: False)
    node.write(*KEYS)
    waiting = session.begin(max_wait_ms=500)
    node.clock.advance(499)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert answers(waiting.response)[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    monkeypatch.undo()
    (data,) = session.next().values()
    assert [record.offset for _, records in batches_of(data) for record in records] == offsets_of(KEYS, 0, 4)


def test_an_offset_above_the_high_watermark_is_not_available_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_batch_that_lies_about_its_records_is_corrupt(node: ViewNode) -> None:
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


def too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slots, "SPLIT_LIMITS", BatchLimits(1 << 20, 10))


def too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_slots, "SPLIT_LIMITS", BatchLimits(100, 1_000))


@pytest.mark.parametrize("limit", [too_many, too_large])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_that_would_take_too_long_is_filtered(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch, limit: Callable[[pytest.MonkeyPatch], None], codec: Codec
) -> None:
    limit(monkeypatch)
    node.write(KEYS[0])
    node.write(*KEYS, codec=codec)
    node.write(KEYS[0])
    keys = [KEYS[0], *KEYS, KEYS[0]]
    for number in range(4):
        reader = ViewReader(node, VIEW, number)
        reader.read_on(until=node.end(VIEW, number))
        assert reader.offsets == offsets_of(keys, number, 4)


class SlowSplit(SteppedSplit):
    """Splits one record in a step, which takes 4 ms."""

    clock: BusyClock

    def step(self, max_records: int) -> bool:
        self.clock.spend(4)
        return bool(super().step(1))


@pytest.fixture
def slow_node(monkeypatch: pytest.MonkeyPatch) -> ViewNode:
    """A node on which each batch takes many turns."""
    too_many(monkeypatch)
    SlowSplit.clock = BusyClock()
    monkeypatch.setattr(large_splits, "SteppedSplit", SlowSplit)
    return ViewNode(clock=SlowSplit.clock)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_large_batch_is_split_in_steps_of_some_fetches(slow_node: ViewNode, codec: Codec) -> None:
    slow_node.write(*KEYS, codec=codec)
    readers = [ViewReader(slow_node, VIEW, number, max_wait_ms=500) for number in range(4)]
    ends = [slow_node.end(VIEW, number) for number in range(4)]
    while not all(reader.position for reader in readers):
        for reader in readers:
            before_ms = slow_node.clock.monotonic_ms()
            assert reader.position or reader.fetch().error_code == 0
            assert slow_node.clock.monotonic_ms() - before_ms <= key_reads.SCAN_MS + 4, "others have their turn"
    for number, reader in enumerate(readers):
        reader.read_on(until=ends[number])
        assert reader.offsets == offsets_of(KEYS, number, 4)
    assert sum(reader.fetches for reader in readers) < 60, "a fetch goes on where another fetch has ended"
    assert not len(slow_node.broker.readable_views.reads._key_reads.large)


def test_a_reader_that_comes_while_a_batch_is_split_has_it_split_again(slow_node: ViewNode) -> None:
    slow_node.write(*KEYS)
    first, second = ViewReader(slow_node, VIEW, 0), ViewReader(slow_node, "orders.shared-8", 1)
    first.fetch()
    while not (first.position and second.position):
        second.fetch()
        first.fetch()
    assert (first.offsets, second.offsets) == (offsets_of(KEYS, 0, 4), offsets_of(KEYS, 1, 8))


def test_a_large_batch_ends_with_its_last_record(slow_node: ViewNode) -> None:
    """A reader that has begun behind that record must not get the batch: it would get it again and again."""
    slow_node.write(*[key_in(0)] * 20, *[key_in(1)] * 20)
    reader = ViewReader(slow_node, VIEW, 0)
    while not reader.position:
        reader.fetch()
    assert reader.position == slow_node.end(VIEW, 0)
    slow_node.write(key_in(0))
    late = ViewReader(slow_node, VIEW, 0)
    late.position = 20
    while late.position == 20:
        late.fetch()
    assert late.offsets == [40]


@pytest.fixture
def many_large(slow_node: ViewNode) -> ViewNode:
    """A node on which as many splits as may be are on their way; there are more large batches."""
    for _ in range(2 * large_splits.MOST_RUNNING):
        slow_node.write(*KEYS)
    for number in range(large_splits.MOST_RUNNING):
        slow_node.fetch_views(VIEW, {0: number * len(KEYS)})
    return slow_node


def running(node: ViewNode) -> int:
    return len(node.broker.readable_views.reads._key_reads.large)


def test_a_large_batch_waits_until_others_are_split(many_large: ViewNode) -> None:
    """The batch's reader is not answered at once, to ask again and again, and nothing is read for it."""
    next_batch = large_splits.MOST_RUNNING * len(KEYS)
    before_ms = many_large.clock.monotonic_ms()
    waiting = many_large.fetch_views(VIEW, {0: next_batch}, max_wait_ms=100)
    assert not waiting.is_answered
    assert many_large.clock.monotonic_ms() - before_ms < 4, "no step was taken"
    many_large.clock.advance(101)
    assert waiting.fetched.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    first = ViewReader(many_large, VIEW, 0)
    while not first.position:
        first.fetch()
    reader = ViewReader(many_large, VIEW, 0)
    reader.position = next_batch
    while reader.position == next_batch:
        reader.fetch()
    assert reader.offsets == offsets_of(KEYS, 0, 4, first=next_batch)


def test_a_large_batch_that_waits_wakes_when_a_split_is_over(many_large: ViewNode) -> None:
    waiting = many_large.fetch_views(VIEW, {0: large_splits.MOST_RUNNING * len(KEYS)}, max_wait_ms=20_000)
    first = ViewReader(many_large, VIEW, 0)
    while not first.position:
        assert not waiting.is_answered
        first.fetch()
    assert running(many_large) == large_splits.MOST_RUNNING, "the split of the batch that waited has begun"
    assert waiting.fetched.error_code == ErrorCode.NONE


def test_splits_that_no_fetch_goes_on_with_are_given_up(many_large: ViewNode) -> None:
    assert running(many_large) == large_splits.MOST_RUNNING
    many_large.clock.advance(2 * large_splits.IDLE_MS + 100)
    assert not running(many_large)


def test_a_split_that_fetches_go_on_with_stays(many_large: ViewNode) -> None:
    many_large.clock.advance(large_splits.IDLE_MS)
    many_large.fetch_views(VIEW, {0: 0})
    many_large.clock.advance(large_splits.IDLE_MS)
    assert running(many_large) == 1


def test_a_batch_that_no_reader_would_unpack_is_corrupt(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    too_large(monkeypatch)
    monkeypatch.setattr(large_splits, "MAX_DECOMPRESSED", 1_000)
    node.write(*KEYS, codec=Codec.ZSTD)
    assert node.fetch_views(VIEW, {0: 0}).fetched.error_code == ErrorCode.CORRUPT_MESSAGE
    monkeypatch.undo()
    node.write(b"a")
    assert node.fetch_views(VIEW, {0: 0}).fetched.error_code == 0


def test_a_batch_that_is_too_large_for_an_answer_waits_for_its_turn(
    node: ViewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_many(monkeypatch)
    node.write(*KEYS)
    (topic,) = node.fetch_views(VIEW, {0: 0, 1: 0}, max_bytes=200).response.responses
    assert [bool(data.records) for data in topic.partitions] == [True, False]


def test_an_offset_that_is_gone_is_out_of_range(node: ViewNode) -> None:
    node.write(*KEYS)
    assert node.fetch_views(VIEW, {0: 61}).fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    node.table.get("orders", 0).delete_records(30)
    data = node.fetch_views(VIEW, {0: 10}).fetched
    assert (data.error_code, data.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 30)


def test_a_reader_without_records_loses_nothing_when_the_log_start_passes_it(node: ViewNode) -> None:
    """A client that is out of range may begin at the end: it would miss a record that has just come."""
    node.write(key_in(0))
    reader = ViewReader(node, VIEW, 0)
    reader.fetch()
    node.write(*[key_in(1)] * 50)
    reader.fetch()
    node.table.get("orders", 0).delete_records(40)
    assert reader.position == 1
    reader.fetch()
    node.write(key_in(0))
    reader.fetch()
    assert reader.offsets == [0, 51]


def test_a_reader_that_lost_records_is_out_of_range(node: ViewNode) -> None:
    node.write(key_in(0))
    reader = ViewReader(node, VIEW, 0)
    reader.fetch()
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
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=2, max_wait_ms=0, min_bytes=1, max_bytes=1, topics=(FetchTopic(topic=VIEW, partitions=(wanted,)),)
    )
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


def test_an_open_transaction_holds_the_end_of_committed_records_back(node: ViewNode) -> None:
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


def test_stretches_are_few(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_reads, "MOST_VIEW_PARTITIONS", 3)
    node.write(key_in(0))
    for number in range(256):
        node.fetch_views("orders.shared-256", {number: 0})
    assert len(node.broker.readable_views.reads.scanned) == 3
