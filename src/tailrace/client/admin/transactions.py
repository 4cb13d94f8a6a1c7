"""Transactions: listed, described, and aborted when they hang (KIP-664)."""

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.client.errors import check
from tailrace.client.partition_names import Pair, partition_named
from tailrace.client.router import TRANSACTION_COORDINATOR, Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.transactions import (
    ActiveProducer,
    DescribedPartitions,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id in a list."""

    transactional_id: str
    coordinator_id: BrokerId
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id, and its open transaction, if any."""

    transactional_id: str
    coordinator_id: BrokerId
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_at_ms: int | None
    """ms since 1970; None if no transaction has begun."""
    partitions: tuple[TopicPartition, ...]


async def list_transactions(
    router: Router, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
) -> list[TransactionListing]:
    """The transactional ids that pass every filter, by name; empty and -1 let all pass.

    Brokers before 3.8 ignore `longer_than_ms`.
    """
    request = ListTransactionsRequest(
        state_filters=tuple(states), producer_id_filters=tuple(producer_ids), duration_filter=longer_than_ms
    )

    async def attempt() -> list[TransactionListing]:
        await router.refresh(())
        found: list[TransactionListing] = []
        for node_id in router.view.brokers:
            connection = await router.node_connection(node_id)
            response = await router.ask(connection, request, ListTransactionsResponse)
            check(response.error_code, f"the transactions of node {node_id} cannot be listed")
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"no transaction is ever in state {unknown}")
            found += [
                TransactionListing(
                    transactional_id=each.transactional_id,
                    coordinator_id=node_id,
                    producer_id=each.producer_id,
                    state=each.transaction_state,
                )
                for each in response.transaction_states
            ]
        return sorted(found, key=lambda each: each.transactional_id)

    return await router.retry(attempt)


async def describe_transaction(router: Router, transactional_id: str) -> TransactionDescription:
    """The description of a transactional id. Raises KafkaError TRANSACTIONAL_ID_NOT_FOUND (105)."""

    async def ask(connection: Connection) -> TransactionDescription:
        response = await router.ask(
            connection, DescribeTransactionsRequest(transactional_ids=(transactional_id,)), DescribeTransactionsResponse
        )
        (described,) = response.transaction_states
        check(
            described.error_code,
            f"there is no transactional id {transactional_id!r} (`tailrace transactions list` shows which there are)"
            if described.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            else f"transactional id {transactional_id!r} cannot be described",
        )
        coordinator = await router.coordinator(transactional_id, key_type=TRANSACTION_COORDINATOR)
        return TransactionDescription(
            transactional_id=transactional_id,
            coordinator_id=coordinator.node_id,
            producer_id=described.producer_id,
            producer_epoch=described.producer_epoch,
            state=described.transaction_state,
            timeout_ms=described.transaction_timeout_ms,
            started_at_ms=described.transaction_start_time_ms if described.transaction_start_time_ms >= 0 else None,
            partitions=tuple(
                TopicPartition(topic.topic, index) for topic in described.topics for index in topic.partitions
            ),
        )

    return await router.ask_coordinator(transactional_id, ask, key_type=TRANSACTION_COORDINATOR)


async def abort_transaction(router: Router, topic_partition: Pair, start_offset: int) -> None:
    """Abort the hanging transaction that began at this offset of the partition: no coordinator will end it.

    Only this partition gets an abort marker, so never use it for a transaction that its producer may still commit.
    Raises KafkaError INVALID_TXN_STATE (48) if no open transaction began there.
    """
    topic_partition = partition_named(topic_partition)
    producer = await _producer_at(router, topic_partition, start_offset)
    topic = WritableTxnMarkerTopic(name=topic_partition.topic, partition_indexes=(topic_partition.partition,))
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=(topic,),
        # -1: no coordinator has ended a transaction of the producer in this partition yet.
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )

    async def attempt() -> None:
        connection = await router.leader_connection(topic_partition)
        response = await router.ask(connection, WriteTxnMarkersRequest(markers=(marker,)), WriteTxnMarkersResponse)
        (result,) = response.markers[0].topics[0].partitions
        if result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            router.view.mark_stale(topic_partition.topic)
        check(result.error_code, f"the transaction in {topic_partition} cannot be aborted")

    await router.retry(attempt)


async def _producer_at(router: Router, topic_partition: TopicPartition, start_offset: int) -> ActiveProducer:
    wanted = DescribedPartitions(name=topic_partition.topic, partition_indexes=(topic_partition.partition,))

    async def attempt() -> tuple[ActiveProducer, ...]:
        connection = await router.leader_connection(topic_partition)
        response = await router.ask(connection, DescribeProducersRequest(topics=(wanted,)), DescribeProducersResponse)
        (found,) = response.topics[0].partitions
        if found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            router.view.mark_stale(topic_partition.topic)
        check(found.error_code, found.error_message or f"the producers of {topic_partition} cannot be described")
        return found.active_producers

    for producer in await router.retry(attempt, final=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)):
        if producer.current_txn_start_offset == start_offset:
            return producer
    raise KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"no transaction is open in {topic_partition} that began at offset {start_offset}"
    )
