"""Bytes that are a snapshot, and bytes that are not: a single byte decides."""

from collections.abc import Iterator

import pytest

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    build_control_batch,
)
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.storage.snapshots import format as snapshot_format
from tailrace.storage.snapshots.format import (
    SnapshotBatch,
    SnapshotHeader,
    footer_batch,
    header_batch,
    parse_snapshot_name,
    read_snapshot_header,
    snapshot_name,
    walk,
)

EPOCH = 3
HEADER = SnapshotHeader(1_700_000_000_000, (KRaftVersionRecord(k_raft_version=1),))
PATH = "a.checkpoint"


def data_batch(base_offset: int, *values: bytes, epoch: int = EPOCH) -> bytes:
    records = [Record(0, HEADER.last_contained_ms, None, value) for value in values]
    return bytes(build_batch(records, base_offset=base_offset, leader_epoch=epoch))


HEAD = bytes(header_batch(HEADER, leader_epoch=EPOCH))
FIRST = data_batch(2, b"one", b"two")
SECOND = data_batch(4, b"three")
FOOT = bytes(footer_batch(timestamp=HEADER.last_contained_ms, base_offset=5, leader_epoch=EPOCH))
SNAPSHOT = HEAD + FIRST + SECOND + FOOT


def batches_of(data: bytes, *, epoch: int = EPOCH) -> Iterator[SnapshotBatch]:
    def read_at(length: int, position: int) -> bytes:
        return data[position : position + length]

    return walk(read_at, size_bytes=len(data), leader_epoch=epoch, path=PATH)


def fault_of(data: bytes, *, epoch: int = EPOCH) -> str:
    with pytest.raises(CorruptRecords) as caught:
        list(batches_of(data, epoch=epoch))
    assert PATH in caught.value.detail
    return caught.value.detail


def test_a_whole_snapshot_gives_its_batches() -> None:
    found = list(batches_of(SNAPSHOT))
    assert [batch.position for batch in found] == [position for position, _ in iter_batches(SNAPSHOT)]
    assert read_snapshot_header(found[0].content) == HEADER
    data = [batch.content for batch in found if not batch.header.is_control]
    assert [record.value for content in data for record in read_records(content)] == [b"one", b"two", b"three"]


def test_a_snapshot_of_nothing_is_one() -> None:
    footer = footer_batch(timestamp=0, base_offset=1, leader_epoch=0)
    assert len(list(batches_of(bytes(header_batch(SnapshotHeader(0), leader_epoch=0) + footer), epoch=0))) == 2


def test_a_snapshot_with_any_single_byte_changed_is_refused() -> None:
    refused = 0
    for position in range(len(SNAPSHOT)):
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 0xFF, 0x55):
            damaged = bytearray(SNAPSHOT)
            damaged[position] ^= mask
            fault_of(bytes(damaged))
            refused += 1
    assert refused == 10 * len(SNAPSHOT)


def test_every_other_value_of_a_byte_that_no_checksum_covers_is_refused() -> None:
    for start, _ in iter_batches(SNAPSHOT):
        for position in range(start, start + 21):
            for value in set(range(256)) - {SNAPSHOT[position]}:
                fault_of(SNAPSHOT[:position] + bytes([value]) + SNAPSHOT[position + 1 :])


def test_a_snapshot_cut_short_anywhere_is_refused() -> None:
    for size_bytes in range(len(SNAPSHOT)):
        fault_of(SNAPSHOT[:size_bytes])


@pytest.mark.parametrize(
    "more",
    [
        b"\0",
        bytes(100),
        FOOT,
        SNAPSHOT,
        data_batch(6, b"four"),
        bytes(footer_batch(timestamp=0, base_offset=6, leader_epoch=EPOCH)),
    ],
    ids=len,
)
def test_nothing_stands_behind_the_footer(more: bytes) -> None:
    fault_of(SNAPSHOT + more)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (HEAD + SECOND + FOOT, "offset 4 stands where 2 should"),
        (HEAD + FIRST + FIRST + FOOT, "offset 2 stands where 4 should"),
        (HEAD + FIRST + data_batch(4, b"three", epoch=2) + FOOT, "leader epoch 2 in a snapshot of epoch 3"),
        (HEAD + FIRST + SECOND, "footer is missing"),
        (data_batch(0, b"one") + FOOT, "no header"),
        (FOOT, "offset 5 stands where 0 should"),
        (
            bytes(build_control_batch([SnapshotFooterRecord()], timestamp=0, leader_epoch=EPOCH)),
            "no SnapshotHeaderRecord",
        ),
        (
            bytes(
                build_control_batch(
                    [SnapshotHeaderRecord(last_contained_log_timestamp=0), LeaderChangeMessage(leader_id=1)],
                    timestamp=0,
                    leader_epoch=EPOCH,
                )
            ),
            "LeaderChangeMessage beside the header",
        ),
        (
            HEAD
            + bytes(
                build_control_batch(
                    [SnapshotFooterRecord(), SnapshotFooterRecord()], timestamp=0, base_offset=2, leader_epoch=EPOCH
                )
            ),
            "control batch between",
        ),
    ],
)
def test_batches_of_right_checksums_in_a_wrong_order_are_refused(data: bytes, why: str) -> None:
    assert why in fault_of(data)


def test_a_batch_that_no_snapshot_and_no_checkpoint_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_format, "MAX_CHECKPOINT_BATCH_BYTES", 1_000)
    assert "the largest are 1000" in fault_of(HEAD + data_batch(2, bytes(1_000)) + FOOT)


def test_a_snapshot_of_another_epoch_than_its_name_says_is_refused() -> None:
    assert "leader epoch 3 in a snapshot of epoch 4" in fault_of(SNAPSHOT, epoch=4)


def test_batches_larger_than_a_chunk_are_read_whole() -> None:
    large = data_batch(2, bytes(3 << 20))
    data = HEAD + large + data_batch(3, b"x" * (1 << 19)) + data_batch(4, b"y" * (1 << 20)) + FOOT
    assert [len(batch.content) for batch in batches_of(data)][1] == len(large)


def test_names_have_kafkas_width() -> None:
    snapshot_id = OffsetAndEpoch(5120793, LeaderEpoch(2))
    assert snapshot_name(snapshot_id) == "00000000000005120793-0000000002"
    assert parse_snapshot_name("00000000000005120793-0000000002.checkpoint") == snapshot_id


@pytest.mark.parametrize(
    "name",
    [
        "00000000000005120793-0000000002.checkpoint.part",
        "00000000000005120793-0000000002.checkpoint.deleted",
        "0000000005120793-0000000002.checkpoint",
        "00000000000005120793-2.checkpoint",
        "00000000000005120793-00000000x2.checkpoint",
        "0000000000000512079²-0000000002.checkpoint",
        "bootstrap.checkpoint",
        "00000000000000000000.log",
    ],
)
def test_other_files_are_no_snapshots(name: str) -> None:
    assert parse_snapshot_name(name) is None
