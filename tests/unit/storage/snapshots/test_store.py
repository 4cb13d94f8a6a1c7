"""Snapshots as files: written in slices, fetched in parts, read by many, deleted when no reader is left."""

from pathlib import Path

import pytest

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.records.control import KRaftVersionRecord
from tailrace.protocol.records.record import read_records
from tailrace.storage.file_system import append_all
from tailrace.storage.snapshots.format import SnapshotHeader
from tailrace.storage.snapshots.store import SnapshotStore
from tailrace.storage.snapshots.writer import Publication
from tailrace.testing.disk import SimulatedDisk

GOLDEN = Path(__file__).parents[3] / "golden"
ROOT = "/log"
ID = OffsetAndEpoch(17, LeaderEpoch(3))
NEWER = OffsetAndEpoch(40, LeaderEpoch(3))
NAME = f"{ROOT}/00000000000000000017-0000000003.checkpoint"
HEADER = SnapshotHeader(1_700_000_000_000, (KRaftVersionRecord(k_raft_version=1),))
VALUES = [f"record {number}".encode() for number in range(100)]


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs(ROOT)
    return disk


@pytest.fixture
def store(disk: SimulatedDisk) -> SnapshotStore:
    return SnapshotStore.open(ROOT, files=disk)


def write(store: SnapshotStore, snapshot_id: OffsetAndEpoch = ID, values: list[bytes] = VALUES) -> None:
    writer = store.begin_writing(snapshot_id, HEADER)
    for first in range(0, len(values), 30):
        writer.append(values[first : first + 30])
    writer.seal()
    publication = Publication(writer.part)
    publication.carry_out()
    store.finish(publication)


def values_in(store: SnapshotStore, snapshot_id: OffsetAndEpoch = ID) -> list[bytes | None]:
    reader = store.open_reader(snapshot_id)
    found = [record.value for content in reader.batches() for record in read_records(content)]
    reader.close()
    return found


def fetch(store: SnapshotStore, data: bytes, snapshot_id: OffsetAndEpoch = ID, step: int = 100) -> Publication:
    for position in range(0, len(data), step):
        store.write_part(snapshot_id, position, data[position : position + step])
    part = store.part(snapshot_id)
    assert part is not None
    publication = Publication(part)
    publication.carry_out()
    return publication


def test_a_snapshot_written_in_slices_is_read_back(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    for instance in (store, SnapshotStore.open(ROOT, files=disk)):
        assert [(found.id, found.header) for found in instance.snapshots] == [(ID, HEADER)]
        assert instance.snapshots[0].size_bytes == disk.size_of(NAME)
        assert values_in(instance) == VALUES
    assert disk.list_dir(ROOT) == [NAME.removeprefix(f"{ROOT}/")]


def test_a_snapshot_is_not_listed_before_it_is_published(disk: SimulatedDisk, store: SnapshotStore) -> None:
    writer = store.begin_writing(ID, HEADER)
    writer.append(VALUES)
    writer.seal()
    assert store.snapshots == ()
    assert disk.list_dir(ROOT) == ["00000000000000000017-0000000003-own.checkpoint.part"]
    with pytest.raises(KafkaError) as caught:
        store.read(ID, 0, 100)
    assert caught.value.code is ErrorCode.SNAPSHOT_NOT_FOUND


def test_large_records_get_batches_of_their_own_and_too_large_ones_are_refused(store: SnapshotStore) -> None:
    values = [bytes([number]) * 200_000 for number in range(5)] + [b"\xff" * (7 << 20)]
    writer = store.begin_writing(ID, HEADER)
    writer.append(values)
    with pytest.raises(KafkaError) as caught:
        writer.append([bytes(8 << 20)])
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    writer.seal()
    publication = Publication(writer.part)
    publication.carry_out()
    store.finish(publication)
    assert values_in(store) == values


def test_checking_goes_on_between_the_flushes_of_others(store: SnapshotStore) -> None:
    writer = store.begin_writing(ID, HEADER)
    writer.append(bytes(1 << 20) for _ in range(20))
    writer.seal()
    publication = Publication(writer.part)
    steps = 0
    while not publication.is_over:
        publication.step()
        steps += 1
    assert steps == 3
    assert store.finish(publication).id == ID


def test_bytes_are_served_from_any_position_and_none_at_the_very_end(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    content = disk.read_bytes(NAME)
    assert bytes(store.read(ID, 0, 1 << 30)) == content
    assert bytes(store.read(ID, 10, 20)) == content[10:30]
    assert bytes(store.read(ID, len(content) - 5, 100)) == content[-5:]
    assert bytes(store.read(ID, len(content), 100)) == b""
    assert bytes(store.read(ID, 0, 0)) == b""


@pytest.mark.parametrize("position", [-1, 10**6])
def test_a_position_outside_of_the_snapshot_is_out_of_range(store: SnapshotStore, position: int) -> None:
    write(store)
    with pytest.raises(KafkaError) as caught:
        store.read(ID, position, 100)
    assert caught.value.code is ErrorCode.POSITION_OUT_OF_RANGE


def test_a_snapshot_fetched_in_parts_is_the_leaders_byte_for_byte(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    other = SimulatedDisk()
    other.make_dirs(ROOT)
    follower = SnapshotStore.open(ROOT, files=other)
    data = disk.read_bytes(NAME)
    assert follower.finish(fetch(follower, data)).header == HEADER
    assert other.read_bytes(NAME) == data
    assert values_in(follower) == VALUES


def test_a_part_is_begun_anew_at_position_0(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    data = disk.read_bytes(NAME)
    store.write_part(NEWER, 0, b"of an earlier leader")
    assert store.write_part(NEWER, 0, data[:50]) == 50
    assert store.write_part(NEWER, 50, data[50:]) == len(data)


def test_a_damaged_part_never_gets_the_name_of_a_snapshot(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    data = bytearray(disk.read_bytes(NAME))
    data[200] ^= 1
    before = disk.list_dir(ROOT)
    publication = fetch(store, bytes(data), OffsetAndEpoch(18, LeaderEpoch(3)))
    with pytest.raises(CorruptRecords, match="position"):
        store.finish(publication)
    assert disk.list_dir(ROOT) == before
    assert [snapshot.id for snapshot in store.snapshots] == [ID]


def test_leftovers_of_a_crash_are_removed(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    store.begin_writing(NEWER, HEADER).append(VALUES)
    append_all(disk.open(f"{ROOT}/00000000000000000003-0000000001-447.checkpoint.part", create=True), b"Kafka's")
    append_all(disk.open(f"{ROOT}/00000000000000000003-0000000001.checkpoint.deleted", create=True), b"Kafka's")
    assert [snapshot.id for snapshot in SnapshotStore.open(ROOT, files=disk).snapshots] == [ID]
    assert disk.list_dir(ROOT) == ["00000000000000000017-0000000003.checkpoint"]


def test_a_damaged_snapshot_is_named_when_the_store_is_opened(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    disk.flip_bit(NAME, 90)
    with pytest.raises(CorruptRecords) as caught:
        SnapshotStore.open(ROOT, files=disk)
    assert NAME in caught.value.detail


def test_a_snapshot_that_rots_while_it_is_there_is_refused_by_its_readers(
    disk: SimulatedDisk, store: SnapshotStore
) -> None:
    write(store)
    disk.flip_bit(NAME, 150)
    with pytest.raises(CorruptRecords, match="17-"):
        values_in(store)


def test_a_deleted_snapshot_is_not_listed_and_its_file_goes(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    write(store, NEWER)
    store.delete([ID, OffsetAndEpoch(99, LeaderEpoch(1))])
    assert [snapshot.id for snapshot in store.snapshots] == [NEWER]
    removal = store.take_removal()
    assert removal is not None
    assert disk.exists(NAME)
    removal()
    assert not disk.exists(NAME)
    assert store.take_removal() is None
    assert values_in(store, NEWER) == VALUES


def test_a_snapshot_that_is_read_stays_until_its_last_reader_is_done(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    first, second = store.open_reader(ID), store.open_reader(ID)
    store.delete([ID])
    first.close()
    first.close()
    assert store.take_removal() is None
    assert sum(len(content) for content in second.batches()) > 0
    second.close()
    removal = store.take_removal()
    assert removal is not None
    removal()
    assert not disk.exists(NAME)


def test_a_snapshot_that_comes_again_is_not_removed(disk: SimulatedDisk, store: SnapshotStore) -> None:
    write(store)
    reader = store.open_reader(ID)
    store.delete([ID])
    write(store)
    reader.close()
    assert store.take_removal() is None
    assert values_in(store) == VALUES


def test_a_full_disk_leaves_no_part_behind(disk: SimulatedDisk, store: SnapshotStore) -> None:
    disk.free_space = 150
    writer = store.begin_writing(ID, HEADER)
    writer.append(VALUES)
    with pytest.raises(StorageError, match="full"):
        writer.seal()
    store.abandon(writer.part)
    with pytest.raises(StorageError):
        store.write_part(NEWER, 0, bytes(1000))
    disk.free_space = 10
    with pytest.raises(StorageError):
        store.begin_writing(NEWER, HEADER)
    assert disk.list_dir(ROOT) == []
    store.discard_part(NEWER)


def test_the_leaders_snapshot_may_come_while_this_node_writes_one_of_the_same_id(
    disk: SimulatedDisk, store: SnapshotStore
) -> None:
    write(store, NEWER)
    data = disk.read_bytes(store.path_of(NEWER))
    own = store.begin_writing(ID, HEADER)
    own.append(VALUES[:10])
    store.finish(fetch(store, data))
    own.append(VALUES[10:])
    own.seal()
    publication = Publication(own.part)
    publication.carry_out()
    store.finish(publication)
    assert [snapshot.id for snapshot in store.snapshots] == [ID, NEWER]
    assert values_in(store) == VALUES
    assert len(disk.list_dir(ROOT)) == 2


def test_the_writer_makes_the_golden_file_that_kafkas_own_dump_has_read(
    disk: SimulatedDisk, store: SnapshotStore
) -> None:
    """tests/golden/log_directory and tests/golden/dump_log: the same bytes, and what Kafka's tool says of them."""
    name = "00000000000000000005-0000000001.checkpoint"
    golden = GOLDEN.joinpath("log_directory", "__cluster_metadata-0", name).read_bytes()
    append_all(disk.open(f"{ROOT}/{name}", create=True), golden)
    snapshot_id = OffsetAndEpoch(5, LeaderEpoch(1))
    found = SnapshotStore.open(ROOT, files=disk)
    header = found.find(snapshot_id).header
    assert [type(value).__name__ for value in header.control] == ["KRaftVersionRecord", "VotersRecord"]
    writer = store.begin_writing(snapshot_id, header)
    writer.append(value for value in values_in(found, snapshot_id) if value is not None)
    writer.seal()
    assert disk.read_bytes(writer.part.path) == golden
