"""KIP-98 and KIP-890 at the leader of a partition: what of transactions is written, what is read, and when.

KIP-98: "The consumer will only read up to the LSO when in READ_COMMITTED mode", and "the LSO is the latest offset such
that the status of all transactional messages at lower offsets have been determined". KIP-890 has the leader ask the
transaction's coordinator before the first batch of a transaction is written.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.client.reading.fetching import visible_batches
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.server.produce.transactional_appends import VerificationRequest
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange, batch_of, records_of, verified_by
from testkit.nodes.ports import DeferredDisk, ScriptedVerifier

COMMITTED = 1
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def verifier() -> ScriptedVerifier:
    return ScriptedVerifier()


@pytest.fixture
def node(verifier: ScriptedVerifier) -> DataPath:
    node = DataPath("/data", files=SimulatedDisk(seed=1), own_handlers=verified_by(verifier))
    node.create("orders")
    return node


class TransactionalProducer:
    """A transactional producer as the leader of its partition sees it."""

    def __init__(self, node: DataPath, producer_id: int, *, version: int = 11) -> None:
        self.node = node
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0
        self.version = version

    def send(self, *values: bytes, is_transactional: bool = True, same_turn: bool = False) -> Exchange:
        records = batch_of(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            is_transactional=is_transactional,
        )
        self.sequence += len(values)
        return self.node.produce(
            "orders",
            records=records,
            version=self.version,
            transactional_id=f"id-{self.producer_id}",
            same_turn=same_turn,
        )

    def end(self, *, is_commit: bool, coordinator_epoch: int = 0, bumps: bool = False) -> int:
        """The error code."""
        if bumps:
            self.epoch, self.sequence = self.epoch + 1, 0
        answer = self.node.end_transaction(
            "orders",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            is_commit=is_commit,
            coordinator_epoch=coordinator_epoch,
        )
        (marker,) = answer.response.markers
        assert marker.producer_id == self.producer_id
        code: int = marker.topics[0].partitions[0].error_code
        return code


def read(node: DataPath, offset: int = 0) -> list[bytes | None]:
    """The records that our own consumer takes from one fetch of committed data."""
    answer = node.fetch("orders", offset, isolation=COMMITTED).fetched
    stretches = visible_batches(answer.records or b"", offset, answer.aborted_transactions or ()).stretches
    return [record.value for stretch in stretches for record in records_of(stretch) if record.offset >= offset]


def aborted_of(node: DataPath, offset: int = 0, **options: Any) -> list[tuple[int, int]]:
    answer = node.fetch("orders", offset, isolation=COMMITTED, **options).fetched
    return [(transaction.producer_id, transaction.first_offset) for transaction in answer.aborted_transactions or ()]


def ends(node: DataPath) -> tuple[int, int]:
    """High watermark and last stable offset."""
    answer = node.fetch("orders", 0, isolation=COMMITTED).fetched
    return answer.high_watermark, answer.last_stable_offset


def latest(node: DataPath, isolation: int) -> int:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=(ListOffsetsTopic(name="orders", partitions=(ListOffsetsPartition(partition_index=0, timestamp=-1),)),),
    )
    offset: int = node.send(request, 7).response.topics[0].partitions[0].offset
    return offset


def test_committed_data_ends_where_the_oldest_open_transaction_begins(node: DataPath) -> None:
    first, second = TransactionalProducer(node, 1), TransactionalProducer(node, 2)
    node.produce("orders", b"plain")
    first.send(b"a")
    second.send(b"b")
    assert ends(node) == (3, 1)
    assert read(node) == [b"plain"]
    assert (latest(node, 0), latest(node, COMMITTED)) == (3, 1)
    assert second.end(is_commit=True) == 0
    assert ends(node) == (4, 1)
    assert first.end(is_commit=True) == 0
    assert ends(node) == (5, 5)
    assert read(node) == [b"plain", b"a", b"b"]
    assert latest(node, COMMITTED) == 5


def test_a_reader_of_uncommitted_data_sees_everything(node: DataPath) -> None:
    TransactionalProducer(node, 1).send(b"a")
    answer = node.fetch("orders", 0).fetched
    assert [record.value for record in records_of(answer.records)] == [b"a"]
    assert answer.aborted_transactions is None
    assert (answer.high_watermark, answer.last_stable_offset) == (1, 0)


def test_aborted_transactions_are_named_to_readers_of_their_range_alone(node: DataPath) -> None:
    first, second = TransactionalProducer(node, 1), TransactionalProducer(node, 2)
    first.send(b"a")  # 0
    second.send(b"b")  # 1
    second.end(is_commit=False)  # 2
    first.send(b"c")  # 3
    first.end(is_commit=False)  # 4
    first.send(b"d")  # 5
    first.end(is_commit=True)  # 6
    assert aborted_of(node) == [(2, 1), (1, 0)]
    assert aborted_of(node, 3) == [(1, 0)]
    assert aborted_of(node, 5) == []
    assert aborted_of(node, partition_max_bytes=1) == [(1, 0)]
    assert read(node) == [b"d"]


def test_a_marker_that_is_not_safe_yet_holds_committed_data_back(verifier: ScriptedVerifier) -> None:
    """Another leader might not have it: then the transaction would be open again."""
    disk = DeferredDisk()
    node = DataPath("/data", files=SimulatedDisk(seed=1), disk=disk, own_handlers=verified_by(verifier))
    partition = node.create("orders")
    producer = TransactionalProducer(node, 1)
    producer.send(b"a")
    disk.run()
    node.end_transaction("orders", producer_id=1, is_commit=True)
    assert partition.log.log_end_offset == 2
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
    disk.run()
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)


def test_a_marker_is_answered_when_it_is_safe(verifier: ScriptedVerifier) -> None:
    disk = DeferredDisk()
    node = DataPath("/data", files=SimulatedDisk(seed=1), disk=disk, own_handlers=verified_by(verifier))
    node.create("orders")
    answer = node.end_transaction("orders", producer_id=1, is_commit=True, partitions=(0, 7))
    assert not answer.is_answered
    disk.run()
    node.end_turn()
    codes = [partition.error_code for partition in answer.response.markers[0].topics[0].partitions]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_marker_that_never_gets_safe_is_answered_as_timed_out(verifier: ScriptedVerifier) -> None:
    node = DataPath("/data", files=SimulatedDisk(seed=1), disk=DeferredDisk(), own_handlers=verified_by(verifier))
    node.create("orders")
    answer = node.end_transaction("orders", producer_id=1, is_commit=True)
    node.clock.advance(30_000)
    assert answer.response.markers[0].topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_long_poll_for_committed_data_wakes_with_all_that_a_commit_sets_free(node: DataPath) -> None:
    """The poll's `min_bytes` are there, though the marker itself is much smaller."""
    producer = TransactionalProducer(node, 1)
    producer.send(b"a" * 2000)
    poll = node.fetch("orders", 0, isolation=COMMITTED, max_wait_ms=500, min_bytes=1500)
    node.produce("orders", b"b")
    assert not poll.is_answered
    producer.end(is_commit=True)
    node.end_turn()
    assert poll.is_answered
    assert len(records_of(poll.fetched.records)) == 3


def test_a_coordinator_that_was_followed_by_another_is_refused(node: DataPath) -> None:
    producer = TransactionalProducer(node, 1)
    producer.send(b"a")
    assert producer.end(is_commit=False, coordinator_epoch=5) == 0
    producer.send(b"b")
    assert producer.end(is_commit=True, coordinator_epoch=4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert producer.end(is_commit=True, coordinator_epoch=5) == 0


def test_a_marker_asked_for_again_is_written_again_and_changes_nothing(node: DataPath) -> None:
    producer = TransactionalProducer(node, 1)
    producer.send(b"a")
    assert [producer.end(is_commit=False) for _ in range(2)] == [0, 0]
    assert ends(node) == (3, 3)
    assert aborted_of(node) == [(1, 0)]


def test_a_plain_batch_within_a_transaction_is_refused(node: DataPath) -> None:
    producer = TransactionalProducer(node, 1)
    producer.send(b"a")
    assert producer.send(b"b", is_transactional=False).produced.error_code == ErrorCode.INVALID_TXN_STATE


def test_control_batches_are_not_a_clients_to_write(node: DataPath) -> None:
    records = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True, is_control=True)
    answer = node.produce("orders", records=records, transactional_id="id", version=11)
    assert answer.produced.error_code == ErrorCode.INVALID_RECORD


def test_the_coordinator_is_asked_before_the_first_batch_of_a_transaction_only(
    node: DataPath, verifier: ScriptedVerifier
) -> None:
    producer = TransactionalProducer(node, 1)
    assert [producer.send(b"a").produced.base_offset for _ in range(3)] == [0, 1, 2]
    assert verifier.requests == [VerificationRequest("id-1", 1, 0, (ORDERS,), False)]
    producer.end(is_commit=True)
    producer.send(b"b")
    assert len(verifier.requests) == 2


def test_a_new_client_has_its_partitions_added(node: DataPath, verifier: ScriptedVerifier) -> None:
    """KIP-890: Produce v12 adds partitions to the transaction implicitly."""
    TransactionalProducer(node, 1, version=12).send(b"a")
    assert verifier.requests[0].adds_partitions


def test_batches_that_come_while_the_coordinator_is_asked_keep_their_order(
    node: DataPath, verifier: ScriptedVerifier
) -> None:
    verifier.is_slow = True
    producer = TransactionalProducer(node, 1)
    sent = [producer.send(bytes([number])) for number in b"abc"]
    assert len(verifier.requests) == 1
    assert not any(answer.is_answered for answer in sent)
    verifier.answer()
    node.end_turn()
    assert [answer.produced.base_offset for answer in sent] == [0, 1, 2]
    assert node.values("orders") == [b"a", b"b", b"c"]


def test_batches_wait_for_the_coordinators_answer_and_get_it(node: DataPath, verifier: ScriptedVerifier) -> None:
    verifier.is_slow = True
    producer = TransactionalProducer(node, 1)
    sent = [producer.send(b"a"), producer.send(b"b")]
    verifier.code = ErrorCode.INVALID_TXN_STATE
    verifier.answer()
    node.end_turn()
    assert [answer.produced.error_code for answer in sent] == [ErrorCode.INVALID_TXN_STATE] * 2
    assert node.values("orders") == []


def test_a_verification_before_a_marker_is_void_after_it(node: DataPath, verifier: ScriptedVerifier) -> None:
    """The batch would open a transaction without an end (the hanging transactions of KIP-890)."""
    verifier.is_slow = True
    producer = TransactionalProducer(node, 1)
    late = producer.send(b"a")
    assert producer.end(is_commit=False) == 0
    verifier.answer()
    node.end_turn()
    assert late.produced.error_code == ErrorCode.INVALID_TXN_STATE
    assert ends(node) == (1, 1)


def test_a_verification_before_a_change_of_leaders_is_void_after_it(node: DataPath, verifier: ScriptedVerifier) -> None:
    verifier.is_slow = True
    late = TransactionalProducer(node, 1).send(b"a")
    node.create("orders", leader=2, leader_epoch=1)
    node.create("orders", leader_epoch=2)
    verifier.answer()
    node.end_turn()
    assert late.produced.error_code == ErrorCode.INVALID_TXN_STATE


REFUSALS: Sequence[tuple[ErrorCode, int, ErrorCode]] = (
    (ErrorCode.INVALID_TXN_STATE, 11, ErrorCode.INVALID_TXN_STATE),
    (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
    (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
    (ErrorCode.PRODUCER_FENCED, 11, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
    (ErrorCode.NOT_COORDINATOR, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.NETWORK_EXCEPTION, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 11, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
)


@pytest.mark.parametrize(("coordinator_code", "version", "produce_code"), REFUSALS)
def test_a_producer_receives_an_error_that_its_version_knows(
    node: DataPath, verifier: ScriptedVerifier, coordinator_code: ErrorCode, version: int, produce_code: ErrorCode
) -> None:
    verifier.code = coordinator_code
    assert TransactionalProducer(node, 1, version=version).send(b"a").produced.error_code == produce_code


def test_a_transactional_batch_of_a_request_without_an_id_is_refused(node: DataPath) -> None:
    records = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    produce_code = node.produce("orders", records=records).produced.error_code
    assert produce_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_without_verification_old_clients_are_believed(verifier: ScriptedVerifier) -> None:
    """transaction.partition.verification.enable=false"""
    node = DataPath("/data", files=SimulatedDisk(seed=1), own_handlers=verified_by(verifier, is_verified=False))
    node.create("orders")
    assert TransactionalProducer(node, 1).send(b"a").produced.error_code == 0
    assert verifier.requests == []
    TransactionalProducer(node, 2, version=12).send(b"b")
    assert len(verifier.requests) == 1


def test_a_transaction_whose_partitions_are_added_starts_at_0(node: DataPath) -> None:
    """Nothing is known of the producer here; what comes first may be the second batch."""
    producer = TransactionalProducer(node, 1, version=12)
    producer.sequence = 3
    assert producer.send(b"a").produced.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_epoch_of_a_marker_fences_what_is_late(node: DataPath) -> None:
    """KIP-890: the epoch is bumped with each transaction."""
    producer = TransactionalProducer(node, 1, version=12)
    producer.send(b"a")
    producer.end(is_commit=True, bumps=True)
    late = TransactionalProducer(node, 1, version=12)
    late.sequence = 1
    assert late.send(b"late").produced.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.send(b"b").produced.error_code == 0


def test_a_repeated_batch_of_a_transaction_that_has_ended_is_answered_as_before(
    node: DataPath, verifier: ScriptedVerifier
) -> None:
    producer = TransactionalProducer(node, 1)
    producer.send(b"a")
    producer.end(is_commit=True)
    producer.sequence = 0
    verifier.code = ErrorCode.INVALID_TXN_STATE
    assert producer.send(b"a").produced.base_offset == 0
    assert read(node) == [b"a"]


def test_delete_records_does_not_move_committed_data_below_the_log_start(node: DataPath) -> None:
    producer = TransactionalProducer(node, 1)
    producer.send(b"a", b"b")
    partition = node.table.get("orders", 0)
    partition.delete_records(1)
    assert partition.last_stable_offset == 1
    producer.end(is_commit=False)
    assert partition.last_stable_offset == 3
    assert aborted_of(node, 1) == [(1, 0)]
