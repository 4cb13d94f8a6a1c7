"""A partition with transactions and several replicas: a follower has the same state of them as its leader (KIP-98)."""

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.replication.outcomes import READ_COMMITTED, Appended
from tailrace.replication.partition import Partition
from tailrace.replication.verification import UNVERIFIED
from tailrace.storage import AbortedTxn, ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of, topic_id_of

NOW_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)
ABORT = EndTransactionMarker(ControlType.ABORT, coordinator_epoch=3)
COMMIT = EndTransactionMarker(ControlType.COMMIT, coordinator_epoch=3)


def led_by(leader: int, epoch: int) -> PartitionState:
    return PartitionState(
        topic_id=topic_id_of("orders"),
        replicas=(BrokerId(1), BrokerId(2)),
        in_sync_replicas=(BrokerId(leader),),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=epoch,
    )


class TransactionalReplica:
    """Broker 1's copy."""

    def __init__(self, leader: int) -> None:
        self.node = DataPath("/logs", files=SimulatedDisk())
        created = self.node.table.create(ORDERS, state=led_by(leader, 0), config=TopicConfig())
        assert created is not None
        self.partition: Partition = created
        self.outcomes: list[Appended | KafkaError] = []

    def write(self, *values: bytes, sequence: int = 0, producer_id: int = 7) -> None:
        records = batch_of(
            *values, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
        self.partition.append_as_leader(
            records,
            acks=1,
            produce_version=11,
            now_ms=NOW_MS,
            on_done=self.outcomes.append,
            verification=UNVERIFIED,
        )
        self.node.end_turn()

    def end(self, marker: EndTransactionMarker, producer_id: int = 7, epoch: int = 0) -> None:
        self.partition.staging.append_marker(
            marker, producer_id=producer_id, producer_epoch=epoch, now_ms=NOW_MS, on_done=self.outcomes.append
        )
        self.node.end_turn()

    def copy_from(self, leader: "TransactionalReplica", high_watermark: int) -> None:
        end = self.partition.log.log_end_offset
        read = leader.partition.read_for_replica(ReadLimits(end, 1 << 20))
        if read.size_bytes:
            self.partition.following.append(bytes(read.records))
        self.partition.following.flush(lambda _: None)
        self.node.end_turn()
        self.partition.following.take_leader_offsets(high_watermark=high_watermark, log_start_offset=0)

    @property
    def ends(self) -> tuple[int, int]:
        """High watermark and last stable offset."""
        return self.partition.high_watermark, self.partition.last_stable_offset


@pytest.fixture
def leader() -> TransactionalReplica:
    return TransactionalReplica(leader=1)


@pytest.fixture
def follower() -> TransactionalReplica:
    return TransactionalReplica(leader=2)


def test_a_follower_holds_committed_data_back_as_its_leader_does(
    leader: TransactionalReplica, follower: TransactionalReplica
) -> None:
    leader.write(b"a", b"b")
    follower.copy_from(leader, 2)
    assert leader.ends == follower.ends == (2, 0)
    leader.end(ABORT)
    follower.copy_from(leader, 2)
    assert follower.ends == (2, 0), "the marker is there, and not safe"
    follower.copy_from(leader, 3)
    assert leader.ends == follower.ends == (3, 3)
    assert follower.partition.log.aborted_transactions(0, 3) == [AbortedTxn(7, 0, 2, 3)]


def test_a_consumer_gets_the_same_from_a_follower_as_from_its_leader(
    leader: TransactionalReplica, follower: TransactionalReplica
) -> None:
    """KIP-392: committed transactions; the aborted transactions are named."""
    leader.write(b"a", b"b")
    leader.write(b"x", producer_id=8)
    leader.end(ABORT)
    leader.end(COMMIT, producer_id=8)
    leader.write(b"c", sequence=2)
    committed = ReadLimits(0, 1 << 20, isolation=READ_COMMITTED)
    follower.copy_from(leader, 0)
    assert follower.partition.read(committed).size_bytes == 0
    follower.copy_from(leader, leader.partition.high_watermark)
    there, here = leader.partition.read(committed), follower.partition.read(committed)
    assert bytes(there.records) == bytes(here.records)
    assert list(there.aborted) == list(here.aborted) == [AbortedTxn(7, 0, 3, 2)]
    assert (here.next_offset, here.last_stable_offset, here.high_watermark) == (5, 5, 6)


def test_after_a_cut_a_follower_shows_no_transaction_of_the_part_that_is_gone(
    leader: TransactionalReplica, follower: TransactionalReplica
) -> None:
    leader.write(b"a")
    leader.end(ABORT)
    follower.copy_from(leader, 1)
    follower.partition.following.truncate_to(1)
    read = follower.partition.read(ReadLimits(0, 1 << 20, isolation=READ_COMMITTED))
    assert (read.size_bytes, list(read.aborted), read.last_stable_offset) == (0, [], 0)


def test_a_follower_that_is_elected_refuses_the_markers_of_earlier_transactions(
    leader: TransactionalReplica, follower: TransactionalReplica
) -> None:
    """The follower has the number of the last decision from the marker that it has copied."""
    first, second = (EndTransactionMarker(ControlType.COMMIT, 3, decision_offset=offset) for offset in (20, 30))
    leader.write(b"a")
    leader.end(first)
    leader.write(b"b", sequence=1)
    follower.copy_from(leader, 3)
    follower.node.table.update(ORDERS, led_by(1, 1), follower.partition.config)
    follower.end(first)
    (refused,) = follower.outcomes
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert follower.ends == (3, 2)
    follower.end(second)
    assert follower.ends == (4, 4)


def test_a_follower_that_is_elected_goes_on_with_the_transactions_it_has_copied(
    leader: TransactionalReplica, follower: TransactionalReplica
) -> None:
    leader.write(b"a")
    leader.end(COMMIT)
    leader.write(b"b", sequence=1)
    follower.copy_from(leader, 3)
    follower.node.table.update(ORDERS, led_by(1, 1), follower.partition.config)
    assert follower.ends == (3, 2)
    follower.write(b"c", sequence=2)
    follower.end(EndTransactionMarker(ControlType.COMMIT, coordinator_epoch=2))
    refused = follower.outcomes.pop()
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    follower.end(ABORT)
    assert follower.ends == (5, 5)
    read = follower.partition.read(ReadLimits(0, 1 << 20, isolation=READ_COMMITTED))
    assert list(read.aborted) == [AbortedTxn(7, 2, 4, 5)]


def test_a_truncation_opens_its_transactions_again(
    leader: TransactionalReplica, follower: TransactionalReplica
) -> None:
    leader.write(b"a")
    leader.end(ABORT)
    follower.copy_from(leader, 1)
    follower.partition.following.truncate_to(1)
    assert follower.partition.log.producers.first_open_offset == 0
    assert follower.partition.log.aborted_transactions(0, 1) == []
    assert follower.ends == (1, 0)
    follower.copy_from(leader, 2)
    assert follower.ends == (2, 2)


def test_markers_need_enough_replicas_and_a_leader(
    leader: TransactionalReplica, follower: TransactionalReplica
) -> None:
    follower.end(COMMIT)
    assert isinstance(follower.outcomes[0], KafkaError)
    assert follower.outcomes[0].code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.partition.update_config(TopicConfig(min_insync_replicas=2))
    leader.end(COMMIT)
    assert isinstance(leader.outcomes[0], KafkaError)
    assert leader.outcomes[0].code is ErrorCode.NOT_ENOUGH_REPLICAS


def commit_offset(leader: TransactionalReplica, value: bytes) -> None:
    """Append a record of a group coordinator in the transaction."""
    leader.partition.staging.append_records(
        [(b"group", value)],
        now_ms=NOW_MS,
        on_done=leader.outcomes.append,
        producer_id=7,
        producer_epoch=0,
        verification=UNVERIFIED,
    )
    leader.node.end_turn()


def test_records_of_a_coordinator_in_a_transaction_are_part_of_it(leader: TransactionalReplica) -> None:
    """A consumer commits offsets in the transaction. The commits have no sequence numbers of the producer's."""
    for _ in range(2):
        commit_offset(leader, b"offset")
    assert leader.partition.log.log_end_offset == 2, "the second is no duplicate"
    assert leader.ends == (2, 0)
    leader.end(COMMIT, epoch=1)
    assert leader.ends == (3, 3)
    commit_offset(leader, b"late")
    refused = leader.outcomes[-1]
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.INVALID_PRODUCER_EPOCH
