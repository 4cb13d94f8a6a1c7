"""Lookups and retention over a log of an older release, whose headers state times that its records do not have."""

import weakref

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.protocol.records.batch import read_header
from tailrace.server import callbacks
from tailrace.server.partition_work import MAX_WAIT_MS
from tailrace.server.partitions.segment_removal import new_time_checks
from tailrace.storage import AppendBatch, Log, checkpoints
from tailrace.storage.flushed_note import FLUSHED_OFFSET
from tailrace.storage.keys import key_ends
from tailrace.storage.log_times import LogTimes
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange, topic_id_of
from testkit.records.raw_batches import raw_batch, raw_bytes, raw_record

HOUR_MS = 3_600_000
CONFIG = TopicConfig(retention_ms=HOUR_MS, segment_bytes=1000, index_interval_bytes=100)
BATCHES = 40
DIRECTORY = "/logs/orders-0"


@pytest.fixture
def node() -> DataPath:
    """A node with batches of an old record and one of now each; all headers state the old time."""
    disk = SimulatedDisk()
    node = DataPath("/logs", files=disk)
    now_ms = node.clock.now_ms()
    disk.make_dirs(DIRECTORY)
    checkpoints.write_partition_metadata(disk, DIRECTORY, topic_id_of("orders"))
    log = Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=now_ms)
    for number in range(BATCHES):
        old_ms = now_ms - 2 * HOUR_MS
        records = [raw_record(0, 0), raw_record(1, 2 * HOUR_MS + number, value=raw_bytes(b"v" * 40))]
        batch = raw_batch(records, base_timestamp=old_ms, max_timestamp=old_ms, base_offset=2 * number)
        log.append([AppendBatch(bytearray(batch), read_header(batch))], checked_from=0)
    log.close()
    disk.unlink(f"{DIRECTORY}/{FLUSHED_OFFSET}")
    disk.modified_at_ms = now_ms
    node = DataPath("/logs", files=disk)
    node.create(config=CONFIG)
    return node


def lookup(node: DataPath, timestamp: int, version: int = 9, *, same_turn: bool = False) -> Exchange:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = (ListOffsetsTopic(name="orders", partitions=(wanted,)),)
    return node.send(ListOffsetsRequest(replica_id=-1, topics=topics), version, same_turn=same_turn)


def found(answer: Exchange) -> tuple[int, int]:
    (partition,) = answer.response.topics[0].partitions
    return partition.error_code, partition.offset


def test_a_lookup_finds_the_record_by_its_own_time(node: DataPath) -> None:
    now_ms = node.clock.now_ms()
    assert found(lookup(node, now_ms + 20)) == (0, 41)
    assert found(lookup(node, -3)) == (0, 2 * BATCHES - 1)
    assert found(lookup(node, now_ms + BATCHES)) == (0, -1)


def test_a_lookup_waits_while_a_large_log_is_looked_through(node: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ends, "STEP_MS", 0)
    now_ms = node.clock.now_ms()
    answers = [lookup(node, now_ms + 20, same_turn=True), lookup(node, -3, same_turn=True)]
    assert not any(answer.is_answered for answer in answers)
    assert found(lookup(node, -2)) == (0, 0)
    assert [found(answer) for answer in answers] == [(0, 41), (0, 2 * BATCHES - 1)]


@pytest.mark.parametrize(
    ("version", "code"), [(9, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)]
)
def test_a_lookup_waits_for_ten_seconds_at_most(
    node: DataPath, monkeypatch: pytest.MonkeyPatch, version: int, code: ErrorCode
) -> None:
    monkeypatch.setattr(key_ends, "STEP_MS", 0)
    monkeypatch.setattr(callbacks, "run_in_slices", lambda *_: None)  # no turn comes
    answer = lookup(node, 1, version)
    node.clock.advance(MAX_WAIT_MS - 1)
    assert not answer.is_answered
    node.clock.advance(1)
    assert found(answer) == (code, -1)


def test_retention_looks_at_the_records_before_it_judges_them(node: DataPath) -> None:
    partition = node.table.find("orders", 0)
    assert partition is not None
    node.table.segment_removal.retire(partition)
    node.clock.advance(0)
    assert partition.log.log_start_offset == 0, "records of now are kept"
    assert not partition.log.times.are_doubtful
    node.clock.advance(HOUR_MS + BATCHES)
    node.table.segment_removal.retire(partition)
    assert partition.log.segment_count == 1


def test_segments_go_when_their_records_turned_out_to_be_old(node: DataPath) -> None:
    partition = node.table.find("orders", 0)
    assert partition is not None
    node.clock.advance(HOUR_MS + BATCHES)
    node.table.segment_removal.retire(partition)
    node.clock.advance(0)
    assert partition.log.segment_count == 1


def test_a_lookup_whose_time_is_over_is_kept_no_longer(node: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at its log may take hours, and clients ask again."""
    partition = node.table.get("orders", 0)
    monkeypatch.setattr(LogTimes, "check_on", lambda *_: True)
    monkeypatch.setattr(node.clock, "call_soon", lambda _: None)  # the look does not end
    checks, called = new_time_checks(node.clock), [False]

    class Lookup:
        def answer(self) -> None:
            called[0] = True

    lookups = [Lookup()]
    assert checks.wait([partition], lookups[0].answer)
    kept = weakref.ref(lookups.pop())
    node.clock.advance(MAX_WAIT_MS)
    assert called == [True]
    assert kept() is None
