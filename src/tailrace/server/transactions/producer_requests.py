"""AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26): requests of transactional producers (KIP-98, KIP-890).

AddPartitionsToTxn: up to v3 from producers: either every partition is added, or none. From v4 on from brokers, for many
transactions, and with verify_only only to verify that the partitions are in the transactions. AddOffsetsToTxn adds the
group's partition of `__consumer_offsets`. EndTxn is answered when the decision is committed; the markers follow. From
v5 the answer has the producer's next epoch. Requests to add partitions to the next transaction wait until the markers
are written.

A fenced producer gets PRODUCER_FENCED (90), and before v2 of each of the three requests INVALID_PRODUCER_EPOCH (47).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.transactions.commands import AddPartitions, EndTransaction, ProducerIdentity, Response
from tailrace.metadata.views import view_refusal
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import EPOCH_PER_TRANSACTION
from tailrace.model.key_hash import coordinator_partition
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS, TopicPartition
from tailrace.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.ports import Controller
from tailrace.server.slices import STEP, Stepwise, mapped_in, once
from tailrace.server.transactions.host import TransactionCoordinatorService
from tailrace.server.transactions.next_transactions import QueuedRequest

T = TypeVar("T")

FIRST_WITH_FENCED = 2
_FIRST_OF_BROKERS = 4
_FIRST_WITH_ABORTABLE = 5
_FIRST_END_WITH_NEXT_EPOCH = 5
_CHARACTERS_OF_PARTITION = 200
"""Characters of a topic name that take as much memory as a partition of a waiting request."""

Codes = Mapping[TopicPartition, ErrorCode]


def as_version_says(
    outcome: T | KafkaError, version: int, *, first_with_fenced: int = FIRST_WITH_FENCED
) -> T | KafkaError:
    """The outcome of a command, with the error code that the version of the request has."""
    is_too_new = version < first_with_fenced
    if is_too_new and isinstance(outcome, KafkaError) and outcome.code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, outcome.detail)
    return outcome


def _code(outcome: Response | KafkaError, version: int) -> ErrorCode:
    said = as_version_says(outcome, version)
    return said.code if isinstance(said, KafkaError) else ErrorCode.NONE


class AddPartitionsToTxnHandler:
    """Answers when the added partitions are committed."""

    def __init__(self, *, coordinators: TransactionCoordinatorService, controller: Controller) -> None:
        self._coordinators = coordinators
        self._controller = controller

    def handle(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> Stepwise[AddPartitionsToTxnResponse | None]:
        if context.api_version < _FIRST_OF_BROKERS:
            transactions: tuple[AddPartitionsToTxnTransaction, ...] = (_sole(request),)
        else:
            transactions = request.transactions
        if not transactions:
            return AddPartitionsToTxnResponse()
        yield from _Addition(transactions, context, self._coordinators, self._controller).carry_out()
        return None


def _sole(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    """A producer's request, in the form that brokers send."""
    return AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


class _Addition:
    """A request, until every transaction of the request has its result."""

    def __init__(
        self,
        transactions: tuple[AddPartitionsToTxnTransaction, ...],
        context: RequestContext,
        coordinators: TransactionCoordinatorService,
        controller: Controller,
    ) -> None:
        self._transactions = transactions
        self._context = context
        self._coordinators = coordinators
        self._controller = controller
        self._codes: dict[int, Codes] = {}

    def carry_out(self) -> Stepwise[None]:
        for index, transaction in enumerate(self._transactions):
            if index % STEP == STEP - 1:
                yield
            yield from self._carry_out_one(transaction, partial(self._has_result, index))

    def _carry_out_one(
        self, transaction: AddPartitionsToTxnTransaction, on_done: Callable[[Codes], None]
    ) -> Stepwise[None]:
        partitions = frozenset((yield from once(_partitions(transaction.topics))))
        faults = yield from self._faults(partitions)
        if faults:
            on_done({partition: faults.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED) for partition in partitions})
            return
        command = AddPartitions(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            partitions=partitions,
            client_version=EPOCH_PER_TRANSACTION if self._is_from_broker else 0,
        )

        def done(outcome: Response | KafkaError) -> None:
            on_done(dict.fromkeys(partitions, _code(outcome, self._context.api_version)))

        try:
            host = self._coordinators.host_of(transaction.transactional_id)
            if transaction.verify_only:
                on_done(host.machine.verify(command))
            elif self._is_from_broker:
                host.submit(command, done)
            else:
                host.begin(command, done, QueuedRequest(self._context.connection, sum(map(_size, transaction.topics))))
        except KafkaError as refusal:
            done(refusal)

    @property
    def _is_from_broker(self) -> bool:
        return self._context.api_version >= _FIRST_OF_BROKERS

    def _faults(self, partitions: Iterable[TopicPartition]) -> Stepwise[Codes]:
        """The codes of partitions that cannot be added. If there is such a code, no partition is added."""
        image, faults = self._controller.image, {}
        for number, partition in enumerate(partitions, 1):
            if not number % STEP:
                yield
            if partition.topic in INTERNAL_TOPICS and not self._is_from_broker:
                faults[partition] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif image.partition(partition.topic, partition.partition) is None:
                refusal = view_refusal(image, partition.topic)
                faults[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if refusal is None else refusal.code
        return faults

    def _has_result(self, index: int, codes: Codes) -> None:
        self._codes[index] = codes
        if len(self._codes) == len(self._transactions):
            self._context.respond_in_steps(self._response())

    def _result(self, index: int) -> Stepwise[AddPartitionsToTxnResult]:
        transaction, codes = self._transactions[index], self._codes[index]
        topics = yield from mapped_in(
            transaction.topics,
            lambda topic: topic.partitions,
            lambda topic, number: AddPartitionsToTxnPartitionResult(
                partition_index=number,
                partition_error_code=self._as_version_says(codes[TopicPartition(topic.name, number)]),
            ),
            lambda topic, results: AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results),
        )
        return AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topics)

    def _as_version_says(self, code: ErrorCode) -> ErrorCode:
        if code is ErrorCode.TRANSACTION_ABORTABLE and self._context.api_version < _FIRST_WITH_ABORTABLE:
            return ErrorCode.INVALID_TXN_STATE
        return code

    def _response(self) -> Stepwise[AddPartitionsToTxnResponse]:
        results: list[AddPartitionsToTxnResult] = []
        for index in range(len(self._transactions)):
            if index % STEP == STEP - 1:
                yield
            results.append((yield from self._result(index)))
        if self._is_from_broker:
            return AddPartitionsToTxnResponse(results_by_transaction=tuple(results))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)


def _size(topic: AddPartitionsToTxnTopic) -> int:
    """The size of the topic in the request, counted in partitions. A topic without partitions counts by the length of
    its name, which may be large."""
    return len(topic.partitions) or 1 + len(topic.name) // _CHARACTERS_OF_PARTITION


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)


class AddOffsetsToTxnHandler:
    """Answers when the record that adds the group's partition to the transaction is committed."""

    def __init__(
        self, *, coordinators: TransactionCoordinatorService, controller: Controller, group_config: GroupConfig
    ) -> None:
        self._coordinators = coordinators
        self._controller = controller
        self._group_config = group_config

    def handle(self, request: AddOffsetsToTxnRequest, context: RequestContext) -> None:
        command = AddPartitions(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            partitions=frozenset((self._partition_of(request.group_id),)),
        )

        def answer(outcome: Response | KafkaError) -> None:
            context.respond(AddOffsetsToTxnResponse(error_code=_code(outcome, context.api_version)))

        host = self._coordinators.host_of(request.transactional_id)
        host.begin(command, answer, QueuedRequest(context.connection, size=1))

    def _partition_of(self, group_id: str) -> TopicPartition:
        topic = self._controller.image.topics.get(GROUP_OFFSETS_TOPIC)
        # The producer may be the first client of the group: the first request for a group creates the topic.
        count = self._group_config.offsets_topic_num_partitions if topic is None else len(topic.partitions)
        return TopicPartition(GROUP_OFFSETS_TOPIC, coordinator_partition(group_id, count))


class EndTxnHandler:
    """Answers when the decision is committed."""

    def __init__(self, *, coordinators: TransactionCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: EndTxnRequest, context: RequestContext) -> None:
        command = EndTransaction(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            is_commit=request.committed,
            client_version=EPOCH_PER_TRANSACTION if context.api_version >= _FIRST_END_WITH_NEXT_EPOCH else 0,
        )

        def response(outcome: Response) -> EndTxnResponse:
            if isinstance(outcome, ProducerIdentity):
                return EndTxnResponse(producer_id=outcome.producer_id, producer_epoch=outcome.producer_epoch)
            return EndTxnResponse()

        answer = context.answering(request, response)
        host = self._coordinators.host_of(request.transactional_id)
        host.submit(command, lambda outcome: answer(as_version_says(outcome, context.api_version)))
