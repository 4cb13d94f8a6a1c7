"""A read whose records are not here yet: the fetch waits, and wakes when they come (decision 0094)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.replication.outcomes import PartitionRead, PendingRead
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from tailrace.storage import ReadLimits
from testkit.nodes.data_path import DataPath, records_of
from testkit.nodes.session_reader import SessionReader, answers

WAIT_MS = 1_000


class Elsewhere:
    """Records of partition 0 that are on another medium, and have to be brought."""

    def __init__(self) -> None:
        self.is_here = False
        self.reads = 0
        self._read = Partition.read

    def read(self, partition: Partition, limits: ReadLimits) -> PartitionRead:
        if self.is_here or partition.topic_partition.partition:
            return self._read(partition, limits)
        self.reads += 1
        fault = KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the records are being brought")
        return PendingRead(limits.offset, partition.log.log_start_offset, fault)

    def bring(self, node: DataPath) -> None:
        self.is_here = True
        node.table.get("orders", 0).notify(Change.AVAILABLE)
        node.end_turn()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DataPath]:
    node = DataPath(str(tmp_path))
    for number in range(2):
        node.create(partition=number)
    node.produce("orders", b"far away")
    yield node
    node.table.close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    elsewhere = Elsewhere()
    monkeypatch.setattr(Partition, "read", lambda partition, limits: elsewhere.read(partition, limits))
    return elsewhere


def test_a_full_fetch_waits_for_what_is_pending(node: DataPath, elsewhere: Elsewhere) -> None:
    waiting = node.fetch("orders", 0, max_wait_ms=WAIT_MS)
    assert not waiting.is_answered
    node.table.get("orders", 0).notify(Change.HIGH_WATERMARK)
    node.end_turn()
    assert not waiting.is_answered
    elsewhere.bring(node)
    assert [record.value for record in records_of(waiting.fetched.records)] == [b"far away"]


def test_an_incremental_fetch_waits_for_what_is_pending(node: DataPath, elsewhere: Elsewhere) -> None:
    reader = SessionReader(node)
    reader.open({0: 0, 1: 0})
    waiting = reader.send(max_wait_ms=WAIT_MS)
    assert not waiting.is_answered
    elsewhere.bring(node)
    assert [answer.partition_index for answer in answers(waiting.response)] == [0]


@pytest.mark.parametrize("version", [10, 11, 17])
def test_a_fetch_that_has_waited_in_vain_gets_the_fault_if_its_version_knows_it(
    node: DataPath, elsewhere: Elsewhere, version: int
) -> None:
    waiting = node.fetch("orders", 0, max_wait_ms=WAIT_MS, version=version)
    node.clock.advance(WAIT_MS)
    expected = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 11 else ErrorCode.NONE
    assert (waiting.fetched.error_code, waiting.fetched.records) == (expected, b"")


def test_a_pending_partition_of_a_session_holds_no_other_back_and_gets_its_fault_in_time(
    node: DataPath, elsewhere: Elsewhere
) -> None:
    reader = SessionReader(node)
    reader.open({0: 0, 1: 0})
    node.produce("orders", b"here", partition=1)
    assert [answer.partition_index for answer in reader.next(max_wait_ms=WAIT_MS)] == [1]
    node.clock.advance(WAIT_MS)
    (late,) = reader.next({1: 1}, max_wait_ms=WAIT_MS)
    assert (late.partition_index, late.error_code) == (0, ErrorCode.OFFSET_NOT_AVAILABLE)


def test_a_pending_partition_stays_due(node: DataPath, elsewhere: Elsewhere) -> None:
    reader = SessionReader(node)
    reader.open({0: 0})
    before = elsewhere.reads
    reader.next()
    reader.next()
    assert elsewhere.reads > before
    elsewhere.is_here = True  # without a notice
    assert [answer.partition_index for answer in reader.next()] == [0]
