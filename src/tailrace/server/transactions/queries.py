"""DescribeTransactions (65), ListTransactions (66), DescribeProducers (61): transactions, for tools (KIP-664).

The answers have the committed state of the transactional ids that this broker coordinates. ListTransactions: v1 a
minimal duration (KIP-994); v2 a pattern (KIP-1152), which is refused with INVALID_REGULAR_EXPRESSION (128): 100,000 ids
would have to be matched in slices.
"""

from itertools import groupby

from tailrace.coordinators.transactions.commands import ListedTransactions
from tailrace.coordinators.transactions.transaction import Transaction, TransactionState
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import topic_name_fault
from tailrace.protocol.messages.transactions import (
    ActiveProducer,
    DescribedTransaction,
    DescribedTransactionTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionProducers,
    TopicProducers,
)
from tailrace.server.context import RequestContext
from tailrace.server.errors import refused_part
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock
from tailrace.server.slices import STEP, Stepwise, mapped, mapped_in
from tailrace.server.transactions.host import TransactionCoordinatorService
from tailrace.storage.producers.entries import ProducerEntry

_STATES = {state.label: state for state in TransactionState}


class DescribeTransactionsHandler:
    """Answers from the committed records."""

    def __init__(self, *, coordinators: TransactionCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(
        self, request: DescribeTransactionsRequest, context: RequestContext
    ) -> Stepwise[DescribeTransactionsResponse]:
        states = yield from mapped(self._describe, dict.fromkeys(request.transactional_ids))
        return DescribeTransactionsResponse(transaction_states=states)

    def _describe(self, transactional_id: str) -> DescribedTransaction:
        try:
            found = self._coordinators.host_of(transactional_id).machine.transactions.get(transactional_id)
            if found is None:
                raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        except KafkaError as refusal:
            return refused_part(DescribedTransaction, refusal, transactional_id=transactional_id)
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=found.state.label,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.started_at_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=_topics(found),
        )


def _topics(transaction: Transaction) -> tuple[DescribedTransactionTopic, ...]:
    by_topic = groupby(sorted(transaction.partitions), key=lambda partition: partition.topic)
    return tuple(
        DescribedTransactionTopic(topic=topic, partitions=tuple(partition.partition for partition in group))
        for topic, group in by_topic
    )


class ListTransactionsHandler:
    """Answers from the committed records."""

    def __init__(self, *, coordinators: TransactionCoordinatorService, clock: Clock) -> None:
        self._coordinators = coordinators
        self._clock = clock

    def handle(self, request: ListTransactionsRequest, context: RequestContext) -> Stepwise[ListTransactionsResponse]:
        if request.transactional_id_pattern:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                "patterns are not resolved by this release; list all transactional ids and filter them",
            )
        unknown = tuple(name for name in dict.fromkeys(request.state_filters) if name not in _STATES)
        states = frozenset(_STATES[name] for name in request.state_filters if name in _STATES)
        wanted = ListedTransactions(
            states=states if request.state_filters else None,
            producer_ids=frozenset(request.producer_id_filters),
            longer_than_ms=request.duration_filter,
        )
        now_ms = self._clock.now_ms()
        listed = [named for host in self._coordinators.active_hosts() for named in host.machine.listed(wanted, now_ms)]
        found = yield from mapped(
            lambda named: ListedTransaction(
                transactional_id=named[0], producer_id=named[1].producer_id, transaction_state=named[1].state.label
            ),
            listed,
        )
        return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)


_NO_SEQUENCE = -1


class DescribeProducersHandler:
    """DescribeProducers (61): the producers in the state of a partition's leader (KIP-664); each partition once."""

    def __init__(self, *, partitions: PartitionTable) -> None:
        self._partitions = partitions

    def handle(self, request: DescribeProducersRequest, context: RequestContext) -> Stepwise[DescribeProducersResponse]:
        indexes_by_topic: dict[str, dict[int, None]] = {}
        for number, topic in enumerate(request.topics, 1):
            if not number % STEP:
                yield
            indexes_by_topic.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        topics = yield from mapped_in(
            indexes_by_topic,
            lambda name: indexes_by_topic[name],
            self._describe,
            lambda name, described: TopicProducers(name=name, partitions=described),
        )
        return DescribeProducersResponse(topics=topics)

    def _describe(self, topic: str, index: int) -> PartitionProducers:
        try:
            if (fault := topic_name_fault(topic)) is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            partition = self._partitions.get(topic, index)
            partition.check_leader()
        except KafkaError as refusal:
            return PartitionProducers(
                partition_index=index, error_code=refusal.code, error_message=refusal.detail, active_producers=()
            )
        producers = partition.log.producers.producers
        return PartitionProducers(
            partition_index=index,
            active_producers=tuple(_state(producer_id, entry) for producer_id, entry in producers.items()),
        )


def _state(producer_id: int, entry: ProducerEntry) -> ActiveProducer:
    return ActiveProducer(
        producer_id=producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.batches[-1].last_sequence if entry.batches else _NO_SEQUENCE,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )
