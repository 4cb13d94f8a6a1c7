"""Fetches of key ranges as a node carries them out (KIP-X): full fetches, fetches of sessions, and waiting fetches."""

import dataclasses
from collections.abc import Sequence

import pytest
from crc32c import crc32c

from tailrace.client.reading.fetching import visible_batches
from tailrace.metadata.feature_levels import FIRST_WITH_KEY_RANGES, METADATA_VERSION_FEATURE
from tailrace.metadata.image import EMPTY_IMAGE
from tailrace.model.errors import ErrorCode
from tailrace.model.key_ranges import HASH_SPACE, contains, hash_of, of_slots
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.declaration import replace
from tailrace.protocol.messages.api_versions import ApiVersionsRequest
from tailrace.protocol.messages.fetch import (
    KEY_RANGES_FEATURES,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
    WireKeyRange,
)
from tailrace.protocol.records.batch import HEADER_SIZE, iter_batches
from tailrace.protocol.records.compression import Codec, compress
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.replication.outcomes import READ_COMMITTED
from tailrace.server.fetch import key_reads
from tailrace.storage import Log, ReadLimits, ReadResult
from tailrace.storage.keys import batch_slots
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange, topic_id_of, unlooking, verified_by
from testkit.nodes.ports import NoCluster, ScriptedVerifier


def wire(*ranges: tuple[int, int]) -> tuple[WireKeyRange, ...]:
    return tuple(WireKeyRange(first=first, last=last) for first, last in ranges)


LOW = wire(of_slots(0, 127))
HIGH = wire(of_slots(128, 255))
KEYS = [b"key-%d" % number for number in range(40)]


def new_node(*, topic: TopicConfig | None = None, **settings: str) -> DataPath:
    node = DataPath(
        "/logs",
        files=SimulatedDisk(),
        own_handlers=verified_by(ScriptedVerifier(), is_verified=False),
        settings={name.replace("_", "."): value for name, value in settings.items()},
    )
    node.create(config=topic)
    return node


@pytest.fixture
def node() -> DataPath:
    return new_node()


@pytest.fixture
def of_the_release_before(monkeypatch: pytest.MonkeyPatch) -> DataPath:
    """A node of a cluster that has brokers of the release before."""
    older = dataclasses.replace(EMPTY_IMAGE, features={METADATA_VERSION_FEATURE: FIRST_WITH_KEY_RANGES - 1})
    monkeypatch.setattr(NoCluster, "image", older)
    return new_node()


def batch_of(keys: Sequence[bytes]) -> bytes:
    return bytes(build_batch([Record(number, 0, key, b"value", ()) for number, key in enumerate(keys)]))


def write(node: DataPath, *keys: bytes) -> None:
    node.produce("orders", records=batch_of(keys))


def send(
    node: DataPath,
    offset: int,
    ranges: tuple[WireKeyRange, ...],
    *,
    max_bytes: int = 1 << 20,
    max_wait_ms: int = 0,
    is_for_all: bool = False,
    session: tuple[int, int] = (0, -1),
    names: bool = True,
    isolation: int = 0,
    hash_scheme: int = 0,
) -> Exchange:
    wanted = FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=max_bytes, key_ranges=() if is_for_all else ranges
    )
    return node.send(
        FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=isolation,
            session_id=session[0],
            session_epoch=session[1],
            topics=(FetchTopic(topic_id=topic_id_of("orders"), partitions=(wanted,)),) if names else (),
            key_ranges=ranges if is_for_all else (),
            hash_scheme=hash_scheme,
        ),
        17,
    )


def only(exchange: Exchange) -> PartitionData:
    (topic,) = exchange.response.responses
    data: PartitionData
    (data,) = topic.partitions
    return data


def records(data: PartitionData) -> list[Record]:
    view = bytes(data.records or b"")
    return [
        record
        for position, header in iter_batches(view)
        for record in read_records(view[position : position + header.size_bytes])
    ]


def expected(ranges: tuple[WireKeyRange, ...], keys: list[bytes]) -> list[bytes]:
    wanted = [of_slots(0, 127)] if ranges is LOW else [of_slots(128, 255)]
    return [key for offset, key in enumerate(keys) if contains(wanted, hash_of(key, offset))]


@pytest.mark.parametrize("is_for_all", [False, True])
def test_a_fetch_gets_the_records_of_its_ranges(node: DataPath, is_for_all: bool) -> None:
    write(node, *KEYS)
    for ranges in (LOW, HIGH):
        data = only(send(node, 0, ranges, is_for_all=is_for_all))
        assert [record.key for record in records(data)] == expected(ranges, KEYS)
        assert (data.applied_key_ranges, data.scanned_to, data.high_watermark) == (ranges, len(KEYS), len(KEYS))


def test_an_ordinary_fetch_says_nothing_of_ranges(node: DataPath) -> None:
    write(node, *KEYS)
    data = only(send(node, 0, ()))
    assert (data.applied_key_ranges, data.scanned_to) == ((), -1)
    assert [record.key for record in records(data)] == KEYS


def test_small_answers_to_fetches_of_key_ranges_lead_through_the_log(node: DataPath) -> None:
    for first in range(0, len(KEYS), 4):
        write(node, *KEYS[first : first + 4])
    found: list[bytes | None] = []
    offset = 0
    while offset < len(KEYS):
        data = only(send(node, offset, HIGH, max_bytes=1))
        found += [record.key for record in records(data) if record.offset >= offset]
        assert data.scanned_to > offset
        offset = data.scanned_to
    assert found == expected(HIGH, KEYS)


def test_a_fetch_waits_for_records_of_its_ranges_alone(node: DataPath) -> None:
    high = next(key for key in KEYS if contains([of_slots(128, 255)], hash_of(key, 0)))
    low = next(key for key in KEYS if key != high and contains([of_slots(0, 127)], hash_of(key, 0)))
    waiting = send(node, 0, HIGH, max_wait_ms=500)
    write(node, low, low)
    assert not waiting.is_answered
    write(node, high)
    assert [record.offset for record in records(only(waiting))] == [2]


@pytest.mark.parametrize(
    "ranges",
    [
        wire((5, 4)),
        wire((-1, 4)),
        wire((0, HASH_SPACE)),
        wire((0, 10), (10, 20)),
        wire(*((2 * number, 2 * number) for number in range(1_025))),
    ],
)
def test_bad_ranges_are_an_invalid_request_of_the_partition(node: DataPath, ranges: tuple[WireKeyRange, ...]) -> None:
    write(node, b"a")
    assert only(send(node, 0, ranges)).error_code == ErrorCode.INVALID_REQUEST


def test_a_hash_that_is_not_known_is_an_invalid_request_of_the_partition(node: DataPath) -> None:
    write(node, b"a")
    assert only(send(node, 0, LOW, hash_scheme=1)).error_code == ErrorCode.INVALID_REQUEST
    assert only(send(node, 0, (), hash_scheme=1)).error_code == 0  # nothing is hashed


def announced(node: DataPath) -> bool:
    supported = node.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
    names = {feature.name for feature in supported.response.supported_features}
    assert names.isdisjoint(KEY_RANGES_FEATURES) or names.issuperset(KEY_RANGES_FEATURES), "the former name too"
    return not names.isdisjoint(KEY_RANGES_FEATURES)


def test_ranges_are_announced(node: DataPath) -> None:
    assert announced(node)


def test_ranges_are_ignored_while_a_broker_may_not_know_them(of_the_release_before: DataPath) -> None:
    assert not announced(of_the_release_before)
    assert_ignored(of_the_release_before)


def test_ranges_are_ignored_by_a_broker_that_may_not_serve_them() -> None:
    node = new_node(group_key_ranges_enable="false")
    assert not announced(node)
    assert_ignored(node)


def test_ranges_of_a_topic_that_is_not_shared_are_ignored() -> None:
    node = new_node(topic=TopicConfig(key_ranges_enable=False))
    assert announced(node)
    assert_ignored(node)


def assert_ignored(node: DataPath) -> None:
    """Every record comes, and no echo: the reader filters the records itself."""
    write(node, *KEYS)
    data = only(send(node, 0, HIGH))
    assert [record.key for record in records(data)] == KEYS
    assert (data.applied_key_ranges, data.scanned_to) == ((), -1)


def lying(keys: Sequence[bytes]) -> bytes:
    """A batch whose checksum is right, and whose records are something else."""
    batch = bytearray(batch_of(keys)[:HEADER_SIZE]) + bytes(compress(Codec.LZ4, b"no records at all"))
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] |= Codec.LZ4
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def test_a_batch_that_lies_about_its_records_comes_as_it_is_stored(node: DataPath) -> None:
    write(node, *KEYS)
    with unlooking(node.table.get("orders", 0)):
        node.produce("orders", records=lying(KEYS))
    write(node, *KEYS)
    before = only(send(node, 0, HIGH))
    assert [record.key for record in records(before)] == expected(HIGH, KEYS)
    assert (before.applied_key_ranges, before.scanned_to) == (HIGH, len(KEYS))
    it = only(send(node, len(KEYS), HIGH))
    assert (it.applied_key_ranges, it.scanned_to) == ((), -1)
    assert bytes(it.records or b"")[HEADER_SIZE : len(lying(KEYS))] == lying(KEYS)[HEADER_SIZE:]
    behind = only(send(node, 2 * len(KEYS), HIGH))
    assert [record.key for record in records(behind)] == expected(HIGH, KEYS)


def test_a_batch_that_would_take_too_long_comes_as_it_is_stored(
    node: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_slots, "SPLIT_LIMITS", batch_slots.BatchLimits(1 << 20, len(KEYS) - 1))
    write(node, KEYS[0])
    write(node, *KEYS)
    assert only(send(node, 0, HIGH)).scanned_to == 1
    data = only(send(node, 1, HIGH))
    assert [record.key for record in records(data)] == KEYS
    assert (data.applied_key_ranges, data.scanned_to) == ((), -1)


def test_the_partitions_of_a_fetch_share_its_scan() -> None:
    node = new_node(key_range_fetch_max_scan_bytes="1024")
    node.create(partition=1)
    for partition in (0, 1):
        for _ in range(3):
            node.produce("orders", records=batch_of(KEYS), partition=partition)
    wanted = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20, key_ranges=HIGH)
        for number in (0, 1)
    ]
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1 << 20,
        max_bytes=1 << 20,
        topics=(FetchTopic(topic_id=topic_id_of("orders"), partitions=tuple(wanted)),),
    )
    (topic,) = node.send(request, 17).response.responses
    assert [data.scanned_to > 0 for data in topic.partitions] == [True, False]


def test_a_fetch_whose_time_is_over_looks_at_no_further_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_reads, "SCAN_MS", 0)
    node = new_node()
    write(node, *KEYS)
    data = only(send(node, 5, HIGH))
    assert (data.error_code, data.records, data.applied_key_ranges, data.scanned_to) == (0, b"", HIGH, 5)


def test_a_follower_serves_ranges(node: DataPath) -> None:
    write(node, *KEYS)
    partition = node.create(leader=2, leader_epoch=1, in_sync=(1, 2), replicas=(1, 2))
    partition.following.take_leader_offsets(high_watermark=len(KEYS), log_start_offset=0)
    data = only(send(node, 0, HIGH))
    assert [record.key for record in records(data)] == expected(HIGH, KEYS)
    assert (data.applied_key_ranges, data.scanned_to) == (HIGH, len(KEYS))


def test_an_offset_that_is_gone_is_out_of_range(node: DataPath) -> None:
    write(node, *KEYS)
    only(send(node, 0, LOW))
    assert only(send(node, len(KEYS) + 1, LOW)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_session_keeps_the_ranges(node: DataPath) -> None:
    opened = send(node, 0, HIGH, session=(0, 0)).response
    session = opened.session_id
    write(node, *KEYS)
    data = only(send(node, 0, HIGH, session=(session, 1), names=False))
    assert [record.key for record in records(data)] == expected(HIGH, KEYS)
    behind = send(node, data.scanned_to, HIGH, session=(session, 2)).response
    assert behind.responses == ()
    again = only(send(node, 0, LOW, session=(session, 3)))  # a changed range is a changed partition
    assert [record.key for record in records(again)] == expected(LOW, KEYS)


def test_a_session_with_too_many_ranges_ends(node: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.fetch_session.session.MAX_KEY_RANGES", 2)
    opened = send(node, 0, HIGH, session=(0, 0)).response
    two = wire((0, 10), (20, 30))
    assert send(node, 0, two, session=(opened.session_id, 1)).response.session_id == opened.session_id
    three = wire((0, 10), (20, 30), (40, 50))
    assert send(node, 0, three, session=(opened.session_id, 2)).response.session_id == 0
    assert send(node, 0, three, session=(0, 0)).response.session_id == 0


@pytest.mark.parametrize("ranges", [LOW, HIGH])
def test_a_reader_of_committed_records_gets_markers_and_learns_of_aborted_ones(
    node: DataPath, ranges: tuple[WireKeyRange, ...]
) -> None:
    for number, (producer, commits) in enumerate([(7, True), (8, False)]):
        batch = build_batch(
            [Record(place, 0, key, b"value", ()) for place, key in enumerate(KEYS)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        node.produce("orders", records=bytes(batch), transactional_id=f"t{number}")
        node.end_transaction("orders", producer_id=producer, is_commit=commits)
    data = only(send(node, 0, ranges, isolation=READ_COMMITTED))
    assert data.scanned_to == data.last_stable_offset == 2 * len(KEYS) + 2
    assert [(transaction.producer_id, transaction.first_offset) for transaction in data.aborted_transactions or ()] == [
        (8, len(KEYS) + 1)
    ]
    seen = visible_batches(data.records or b"", 0, data.aborted_transactions or ())
    keys = [record.key for buffer in seen.stretches for record in records(replace(data, records=buffer))]
    assert keys == expected(ranges, KEYS)


def test_a_reader_of_other_keys_passes_over_batches_that_were_split_before(monkeypatch: pytest.MonkeyPatch) -> None:
    node = new_node(topic=TopicConfig(segment_bytes=1_000, index_interval_bytes=100), max_bytes_key_range_hashing="0")
    high = [key for key in KEYS if expected(HIGH, [key])]
    for _ in range(4):
        write(node, *high)
    write(node, *KEYS)
    assert only(send(node, 0, HIGH)).scanned_to == 4 * len(high) + len(KEYS)
    log = node.table.get("orders", 0).log
    read: list[int] = []
    read_log = Log.read

    def noted(log: Log, limits: ReadLimits, end_offset: int | None = None) -> ReadResult:
        read.append(limits.offset)
        return read_log(log, limits, end_offset)

    monkeypatch.setattr(Log, "read", noted)
    data = only(send(node, 0, LOW))
    assert [record.key for record in records(data)] == expected(LOW, KEYS)
    assert data.scanned_to == 4 * len(high) + len(KEYS)
    assert read == [4 * len(high)]
    assert [name for name in node.files.list_dir(log.directory) if name.endswith(".khx")]
