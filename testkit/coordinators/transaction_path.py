"""The transactions of one node, from frame to `__transaction_state`, without sockets, threads and a real clock.

node = TransactionPath("/data", files=SimulatedDisk(seed=1))
node.create_topics("orders")
producer = TransactionalClient(node, "pay")
producer.initialize()
producer.add("orders")
producer.send("orders", b"one")
producer.end(is_commit=True)
"""

from collections.abc import Sequence
from typing import Any

from tailrace.coordinators.transactions.transaction import Transaction
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribedTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WriteTxnMarkersRequest,
)
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.server.transactions.marker_sender import on_the_wire
from tailrace.server.transactions.markers import OnWritten, TransactionMarker
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.data_path import Exchange, batch_of

READ_COMMITTED = 1
_ADDS_PARTITIONS = 2
_TRANSACTION = 1


class TransactionPath(GroupPath):
    """A node that coordinates transactions. Its defaults are those of `--dev`: four partitions of
    `__transaction_state`."""

    def transaction(self, name: str = "pay") -> Transaction:
        """The transaction as its coordinator knows it."""
        return self.transactions.host_of(name).machine.transactions[name]

    def find_transaction_coordinator(self, transactional_id: str) -> ErrorCode:
        """Find the coordinator; the topic is there and loaded afterwards, if flushes are immediate."""
        request = FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=(transactional_id,))
        return ErrorCode(self.send(request, 4).response.coordinators[0].error_code)

    def committed_values(self, topic: str, *, partition: int = 0) -> list[bytes | None]:
        """The values that a consumer of committed data gets: without aborted records and markers."""
        found: list[bytes | None] = []
        offset = 0
        while True:
            answer = self.fetch(topic, offset, partition=partition, isolation=READ_COMMITTED).fetched
            assert answer.error_code == 0
            aborted = {(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()}
            if not answer.records:
                return found
            for position, header in iter_batches(answer.records):
                begun = {each for each in aborted if each[1] <= header.base_offset}
                if header.is_control:
                    aborted -= {each for each in begun if each[0] == header.producer_id}
                elif not (header.is_transactional and any(each[0] == header.producer_id for each in begun)):
                    found += [record.value for record in read_records(answer.records, position)]
                offset = header.end_offset

    def describe_transaction(self, transactional_id: str) -> DescribedTransaction:
        """The description of the transaction that tools get."""
        request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
        described: DescribedTransaction = self.send(request, 0).response.transaction_states[0]
        return described

    def stable_offset(self, group_id: str, topic: str) -> int | ErrorCode:
        """The group's stable offset in the first partition; -1: no offset; or the error."""
        asked = OffsetFetchRequestTopics(name=topic, partition_indexes=(0,))
        request = OffsetFetchRequest(
            groups=(OffsetFetchRequestGroup(group_id=group_id, topics=(asked,)),), require_stable=True
        )
        ((partition,),) = (each.partitions for each in self.send(request, 8).response.groups[0].topics)
        return ErrorCode(partition.error_code) if partition.error_code else int(partition.committed_offset)


def transaction_node(files: SimulatedDisk | None = None, *, start: int = 1, **options: Any) -> TransactionPath:
    """A node with the topics "orders" and "bills" and a coordinator of group "g", made at its first start."""
    node = TransactionPath("/data", files=files or SimulatedDisk(seed=1), start=start, **options)
    if start == 1:
        node.create_topics("orders", "bills")
        assert node.find_coordinator("g") is ErrorCode.NONE
    return node


class MarkerCopies:
    """Copies of the markers that a node's coordinators have sent: a network may bring them again at any time."""

    def __init__(self, node: TransactionPath) -> None:
        self.markers: list[TransactionMarker] = []
        """The markers in the order in which they were sent."""
        self._node = node
        self.attach(node)

    def attach(self, node: TransactionPath) -> None:
        """Keep copies of the markers of this node too: the same node, after a restart."""
        self._node, sender = node, node.broker.coordination.marker_sender
        deliver = sender.write_here

        def write(markers: Sequence[TransactionMarker], on_done: OnWritten) -> None:
            self.markers += markers
            deliver(markers, on_done)

        sender.write_here = write

    def send_again(
        self, markers: Sequence[TransactionMarker] | None = None, *, to: TransactionPath | None = None
    ) -> dict[str, ErrorCode]:
        """Send copies of `markers`, by default of every marker; returns the codes by topic."""
        request = WriteTxnMarkersRequest(markers=tuple(map(on_the_wire, self.markers if markers is None else markers)))
        node = self._node if to is None else to
        answer = node.send(request, 2)
        node.end_turn()
        return {
            topic.name: ErrorCode(partition.error_code)
            for marker in answer.response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }


class TransactionalClient:
    """A producer with a transactional id. `version` is its transaction.version: 0, or 2 (KIP-890)."""

    def __init__(self, node: TransactionPath, transactional_id: str, *, version: int = 0) -> None:
        self.node = node
        self.transactional_id = transactional_id
        self.version = version
        self.producer_id = self.producer_epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}

    def initialize(self, *, timeout_ms: int = 60_000, tries: int = 3) -> ErrorCode:
        """Take over the transactional id, as a new instance; an open transaction is aborted before."""
        assert self.node.find_transaction_coordinator(self.transactional_id) is ErrorCode.NONE
        code = ErrorCode.CONCURRENT_TRANSACTIONS
        while code is ErrorCode.CONCURRENT_TRANSACTIONS and tries:
            answer = self.ask_for_identity(timeout_ms=timeout_ms).response
            assert isinstance(answer, InitProducerIdResponse)
            code, tries = ErrorCode(answer.error_code), tries - 1
        if code is ErrorCode.NONE:
            self.take(answer.producer_id, answer.producer_epoch)
        return code

    @classmethod
    def begun(cls, node: TransactionPath, transactional_id: str = "pay", *, version: int = 0) -> "TransactionalClient":
        """A producer that is initialized."""
        client = cls(node, transactional_id, version=version)
        assert client.initialize() is ErrorCode.NONE
        return client

    def write(self, topic: str, *values: bytes) -> ErrorCode:
        """Add the topic's partition to the transaction, and send these records in it."""
        if self.version < 2:
            assert self.add(topic) is ErrorCode.NONE
        return self.send(topic, *values)

    def set_offset(self, offset: int, **member: Any) -> ErrorCode:
        """Add group "g" to the transaction, and set the group's offset in "orders" in it."""
        if self.version < 2:
            assert self.add_offsets("g") is ErrorCode.NONE
        return self.commit_offset("g", "orders", offset, **member)

    def ask_for_identity(self, *, timeout_ms: int = 60_000) -> Exchange:
        """Send InitProducerId once."""
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms)
        return self.node.send(request, 5)

    def take(self, producer_id: int, producer_epoch: int) -> None:
        """Go on with this identity."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._sequences = {}

    def add(self, topic: str, *, partition: int = 0, version: int = 3) -> ErrorCode:
        """Send AddPartitionsToTxn; returns the code."""
        (result,) = self.ask_to_add(topic, partition=partition, version=version).response.results_by_topic_v3_and_below
        return ErrorCode(result.results_by_partition[0].partition_error_code)

    def ask_to_add(self, topic: str, *, partition: int = 0, version: int = 3) -> Exchange:
        """Send AddPartitionsToTxn: up to version 3 as a producer does, from 4 on as a broker does for the producer."""
        topics = (AddPartitionsToTxnTopic(name=topic, partitions=(partition,)),)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=topics,
        )
        request = AddPartitionsToTxnRequest(
            transactions=(transaction,),
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=topics,
        )
        return self.node.send(request, version)

    def send(self, topic: str, *values: bytes, partition: int = 0) -> ErrorCode:
        """Produce one batch within the transaction."""
        code = ErrorCode(self.ask_to_write(topic, *values, partition=partition).produced.error_code)
        if code is not ErrorCode.NONE:
            self._sequences[topic, partition] -= len(values)
        return code

    def ask_to_write(self, topic: str, *values: bytes, partition: int = 0) -> Exchange:
        """Send one batch within the transaction."""
        sequence = self._sequences.get((topic, partition), 0)
        batch = batch_of(
            *values,
            now=self.node.clock.now_ms,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=(
                TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=partition, records=batch),)),
            ),
        )
        self._sequences[topic, partition] = sequence + len(values)
        return self.node.send(request, 12 if self.version >= _ADDS_PARTITIONS else 11)

    def add_offsets(self, group_id: str) -> ErrorCode:
        """Send AddOffsetsToTxn; returns the code."""
        return ErrorCode(self.ask_to_add_offsets(group_id).response.error_code)

    def ask_to_add_offsets(self, group_id: str) -> Exchange:
        """Send AddOffsetsToTxn."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group_id,
        )
        return self.node.send(request, 3)

    def commit_offset(
        self, group_id: str, topic: str, offset: int, *, generation_id: int = -1, member_id: str = ""
    ) -> ErrorCode:
        """Send TxnOffsetCommit for the first partition; returns the code."""
        exchange = self.ask_for_offset(group_id, topic, offset, generation_id=generation_id, member_id=member_id)
        return ErrorCode(exchange.response.topics[0].partitions[0].error_code)

    def ask_for_offset(
        self, group_id: str, topic: str, offset: int, *, generation_id: int = -1, member_id: str = ""
    ) -> Exchange:
        """Send TxnOffsetCommit."""
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            generation_id=generation_id,
            member_id=member_id,
            topics=(
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=(
                        TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=offset, committed_metadata=""
                        ),
                    ),
                ),
            ),
        )
        return self.node.send(request, 5 if self.version >= _ADDS_PARTITIONS else 4)

    def ask_for_end(self, *, is_commit: bool) -> Exchange:
        """Send EndTxn."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=is_commit,
        )
        return self.node.send(request, 5 if self.version >= _ADDS_PARTITIONS else 4)

    def end(self, *, is_commit: bool) -> ErrorCode:
        """Send EndTxn; the producer goes on with the identity in the answer. Returns the code."""
        answer = self.ask_for_end(is_commit=is_commit).response
        assert isinstance(answer, EndTxnResponse)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE and self.version >= _ADDS_PARTITIONS:
            self.take(answer.producer_id, answer.producer_epoch)
        return code
