"""An instance of a transactional producer that behaves as the clients of both generations do.

The first generation (transaction.version 0): AddPartitionsToTxn and AddOffsetsToTxn before the first write, EndTxn up
to v4, and a new epoch only when a batch is left without an answer (KIP-360). Their epochs do not tell transactions
apart: only the order of one connection keeps a late EndTxn away from the next transaction. So their requests to
coordinators come once, and never after the client has given up. Batches come late and twice in both generations.

The second generation (KIP-890): the first write adds the partition, EndTxn v5 answers with the identity of the next
transaction.
"""

from typing import Any, Final

from simulation.transactions.book import ClientTransaction, GroupOffset, Identity
from simulation.transactions.brokers import TransactionBrokers
from simulation.transactions.script import LeaderRequest, Pause, Script, insist
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import EPOCH_PER_TRANSACTION
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tailrace.model.sinks import coordinator_key
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    topics_to_add,
)
from tailrace.protocol.records.record import Record, build_batch

_PRODUCE_TIMEOUT_MS: Final = 500
_OF_THE_TRANSACTION: Final = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    )
)
"""Error codes of a write after which a client aborts the transaction. With any other code it gives up."""


class AbortNeeded(Exception):
    """A write failed: the transaction has to be aborted."""


class GaveUp(Exception):
    """A code that ends a client: it was fenced."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class ScriptedClient:
    """The protocol of one instance. All methods are scripts."""

    def __init__(self, cluster: TransactionBrokers, transactional_id: str, instance: str, *, generation: int) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.instance = instance
        self.generation = generation
        self._identity = Identity(-1, -1)
        self._sequences: dict[TopicPartition, int] = {}
        self._is_unsure = False
        """Whether a batch is left without an answer: its records may still be written."""

    @property
    def _has_kip_890(self) -> bool:
        return self.generation >= EPOCH_PER_TRANSACTION

    @property
    def _coordinator(self) -> TopicPartition:
        return self.cluster.partition_for(TRANSACTION_STATE_TOPIC, coordinator_key(self.transactional_id))

    # The transaction coordinator

    def initialize(self) -> Script[None]:
        """Send InitProducerId, with the client's identity if it has one (KIP-360). Raises GaveUp."""
        laws = self.cluster.laws
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.cluster.plan.transaction_timeout_ms,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
        )
        asked = LeaderRequest(
            self._coordinator, request, 4, on_leave=lambda answer: laws.identity_leaves(self.transactional_id, answer)
        )
        code, answer = yield from insist(asked, _code)
        self._check(code, "InitProducerId")
        self._take(Identity(answer.producer_id, answer.producer_epoch))

    def _take(self, identity: Identity) -> None:
        if identity != self._identity:
            self.cluster.laws.identity_given(identity, self.instance)
        self._identity, self._sequences, self._is_unsure = identity, {}, False

    def begin(self) -> ClientTransaction:
        """Begin the next transaction, which is about to write."""
        return self.cluster.book.begin(self.transactional_id, self.instance, self.generation, self._identity)

    def _add(self, transaction: ClientTransaction, name: TopicPartition) -> Script[None]:
        if name in transaction.partitions:
            return
        transaction.partitions.add(name)
        if self._has_kip_890:
            return  # the leader adds it
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.producer_epoch,
            v3_and_below_topics=topics_to_add((name,)),
        )
        code, _ = yield from insist(LeaderRequest(self._coordinator, request, 3, is_ordered=True), _added_code)
        self._check(code, "AddPartitionsToTxn")

    def end(self, transaction: ClientTransaction, *, is_commit: bool) -> Script[None]:
        """Send EndTxn until an answer comes. Raises GaveUp."""
        laws = self.cluster.laws
        transaction.wants_commit = is_commit
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            committed=is_commit,
        )
        asked = LeaderRequest(
            self._coordinator,
            request,
            5 if self._has_kip_890 else self.cluster.world.choice((3, 4), "EndTxn", self.instance),
            is_ordered=not self._has_kip_890,
            on_leave=lambda answer: laws.end_leaves(request, answer),
        )
        code, answer = yield from insist(asked, _code)
        self._check(code, "EndTxn")
        transaction.answered = is_commit
        if self._has_kip_890:
            self._take(Identity(answer.producer_id, answer.producer_epoch))
        elif self._is_unsure:
            yield from self.initialize()

    # Writes

    def write(self, transaction: ClientTransaction, name: TopicPartition, *texts: str) -> Script[None]:
        """Write a batch, until its acknowledgement. Raises AbortNeeded, GaveUp."""
        yield from self._add(transaction, name)
        sequence = self._sequences.get(name, 0)
        values = [transaction.value(text) for text in texts]
        batch = build_batch(
            [Record(number, 1_700_000_000_000, b"k", value) for number, value in enumerate(values)],
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        data = PartitionProduceData(index=name.partition, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=_PRODUCE_TIMEOUT_MS,
            topic_data=(TopicProduceData(name=name.topic, partition_data=(data,)),),
        )
        version = 12 if self._has_kip_890 else 11
        code, answer = yield from insist(
            LeaderRequest(name, request, version), _produced_code, tries=self.cluster.plan.delivery_tries
        )
        self._check_write(code, "Produce")
        self._sequences[name] = sequence + len(values)
        first = answer.responses[0].partition_responses[0].base_offset
        acknowledged = transaction.written.setdefault(name, {})
        acknowledged.update({value: first + index for index, value in enumerate(values)})

    def set_offset(self, transaction: ClientTransaction, offset: GroupOffset) -> Script[None]:
        """Send AddOffsetsToTxn (only in the first generation) and TxnOffsetCommit. Raises AbortNeeded, GaveUp."""
        group = self.cluster.partition_for(GROUP_OFFSETS_TOPIC, offset.group_id)
        if not self._has_kip_890 and group not in transaction.partitions:
            adds = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.producer_epoch,
                group_id=offset.group_id,
            )
            code, _ = yield from insist(LeaderRequest(self._coordinator, adds, 3, is_ordered=True), _code)
            self._check(code, "AddOffsetsToTxn")
        transaction.partitions.add(group)
        name = offset.topic_partition
        partition = TxnOffsetCommitRequestPartition(
            partition_index=name.partition, committed_offset=offset.offset, committed_metadata=str(transaction.number)
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=offset.group_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            topics=(TxnOffsetCommitRequestTopic(name=name.topic, partitions=(partition,)),),
        )
        asked = LeaderRequest(group, request, 5 if self._has_kip_890 else 4, is_ordered=not self._has_kip_890)
        code, _ = yield from insist(asked, _offset_code, tries=self.cluster.plan.delivery_tries)
        self._check_write(code, "TxnOffsetCommit")
        transaction.offsets.append(offset)

    def pause(self, longest_ms: int, what: str) -> Script[None]:
        """Wait for up to so long."""
        yield Pause(self.cluster.world.between(1, longest_ms, what, self.instance))

    # Codes

    def _check(self, code: ErrorCode, request: str) -> None:
        if code is not ErrorCode.NONE:
            self.cluster.world.sometimes[f"{request} ends a client: {code.name}"] += 1
            raise GaveUp(code)

    def _check_write(self, code: ErrorCode, request: str) -> None:
        if code in _OF_THE_TRANSACTION:
            self._is_unsure = True
            self.cluster.world.sometimes[f"{request} aborts: {code.name}"] += 1
            raise AbortNeeded(code.name)
        self._check(code, request)


def _code(response: Any) -> int:
    return int(response.error_code)


def _added_code(response: Any) -> int:
    return int(response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


def _produced_code(response: Any) -> int:
    return int(response.responses[0].partition_responses[0].error_code)


def _offset_code(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)
