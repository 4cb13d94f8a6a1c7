"""Requests of a transactional producer to the coordinators of its id and of a group (KIP-98, KIP-447, KIP-890)."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from tailrace.client.errors import check
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from tailrace.client.router import TRANSACTION_COORDINATOR, Router
from tailrace.client.transactions.producer_transaction import EPOCH_OF_EACH, Identity
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.declaration import schema_of
from tailrace.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    topics_to_add,
)

T = TypeVar("T")

_USE = "transactions"
"""A connection of its own: the coordinator may hold back an answer until the markers of the last end are written."""
_FEATURE = "transaction.version"
_LAST_OF_CLIENTS = 3
"""Later versions of AddPartitionsToTxn are for brokers."""
_FIRST_WITH_IDENTITY = 3
"""InitProducerId that names a producer (KIP-360, Kafka 2.5)."""
_FIRST_WITH_MEMBERS = 3
"""TxnOffsetCommit that names a member of the group (KIP-447, Kafka 2.5)."""
_LAST_BEFORE_EPOCHS = 4
"""The newest EndTxn and TxnOffsetCommit here: the next version is for producers with an epoch for each transaction."""
_NO_IDENTITY = Identity(-1, -1)


class CoordinatorAnswer(NamedTuple):
    """The identity that the coordinator has given, None without an identity, and the cluster's transaction.version."""

    identity: Identity | None
    version: int


class TransactionRequests:
    """Requests to the coordinator. A call is retried while its error is retriable, for `timeout_ms`; then it raises the
    last KafkaError."""

    def __init__(self, router: Router, transactional_id: str, *, transaction_timeout_ms: int, timeout_ms: int) -> None:
        self._router = router
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._timeout_ms = timeout_ms

    async def _ask_coordinator(self, ask: Callable[[Connection], Awaitable[T]], *, timeout_ms: int) -> T:
        return await self._router.ask_coordinator(
            self._transactional_id, ask, key_type=TRANSACTION_COORDINATOR, use=_USE, timeout_ms=timeout_ms
        )

    async def init_producer_id(self, present: Identity | None) -> CoordinatorAnswer:
        """The next identity of the transactional id. With the present identity given, the answer fences no other
        producer."""
        producer_id, epoch, _ = present or _NO_IDENTITY
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._transaction_timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

        async def ask(connection: Connection) -> CoordinatorAnswer:
            if present is not None and connection.version_of(InitProducerIdRequest) < _FIRST_WITH_IDENTITY:
                detail = f"{connection.address} gives no next epoch after a failed transaction (Kafka before 2.5)"
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
            response = await self._router.ask(connection, request, InitProducerIdResponse)
            check(response.error_code, f"{connection.address} gave no identity to {self._transactional_id!r}")
            identity = Identity(response.producer_id, response.producer_epoch, is_transactional=True)
            return CoordinatorAnswer(identity, connection.feature_level(_FEATURE))

        return await self._ask_coordinator(ask, timeout_ms=self._timeout_ms)

    async def add_partitions(
        self, identity: Identity, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> None:
        """Add all partitions or no partition; for transaction.version below 2. `timeout_ms` 0: one attempt."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=topics_to_add(partitions),
        )

        async def ask(connection: Connection) -> None:
            response = await self._router.ask(
                connection, request, AddPartitionsToTxnResponse, max_version=_LAST_OF_CLIENTS
            )
            codes = {
                TopicPartition(topic.name, each.partition_index): each.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            # A partition that was not attempted says nothing: the error of another partition is the reason.
            for partition, code in sorted(codes.items(), key=lambda item: item[1] == ErrorCode.OPERATION_NOT_ATTEMPTED):
                check(code, f"{partition} is not added to the transaction of {self._transactional_id!r}")

        await self._ask_coordinator(ask, timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms)

    async def add_group(self, identity: Identity, group: str) -> None:
        """Add the partition that keeps the offsets of this group; before transaction.version 2."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=group,
        )

        async def ask(connection: Connection) -> None:
            response = await self._router.ask(connection, request, AddOffsetsToTxnResponse)
            detail = f"the offsets of group {group!r} are not added to the transaction of {self._transactional_id!r}"
            check(response.error_code, detail)

        await self._ask_coordinator(ask, timeout_ms=self._timeout_ms)

    async def commit_offsets(
        self,
        identity: Identity,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: ConsumerGroupMetadata,
        *,
        version: int,
    ) -> None:
        """Send the offsets to the group's coordinator, which keeps them until the end of the transaction. Raises the
        first error."""
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
        for partition, offset in offsets.items():
            topics[partition.topic].append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=member.group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=tuple(
                TxnOffsetCommitRequestTopic(name=name, partitions=tuple(each)) for name, each in topics.items()
            ),
        )
        latest = _latest(TxnOffsetCommitRequest, version)

        async def ask(connection: Connection) -> None:
            is_known = connection.version_of(TxnOffsetCommitRequest, latest) >= _FIRST_WITH_MEMBERS
            if member.member_id and not is_known:
                detail = f"{connection.address} does not compare members of groups (Kafka before 2.5)"
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
            response = await self._router.ask(connection, request, TxnOffsetCommitResponse, max_version=latest)
            for topic in response.topics:
                for each in topic.partitions:
                    partition = TopicPartition(topic.name, each.partition_index)
                    check(each.error_code, f"offset of {partition} for group {member.group_id!r}")

        await self._router.ask_coordinator(member.group_id, ask, use=_USE, timeout_ms=self._timeout_ms)

    async def end(self, identity: Identity, *, committed: bool, version: int) -> CoordinatorAnswer:
        """Decide the end of the transaction. From version 2 on the answer has the identity for the next transaction."""
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=committed,
        )
        latest = _latest(EndTxnRequest, version)

        async def ask(connection: Connection) -> CoordinatorAnswer:
            response = await self._router.ask(connection, request, EndTxnResponse, max_version=latest)
            end = "committed" if committed else "aborted"
            check(response.error_code, f"the transaction of {self._transactional_id!r} is not {end}")
            following: Identity | None = None
            if response.producer_id >= 0:
                following = Identity(response.producer_id, response.producer_epoch, is_transactional=True)
            return CoordinatorAnswer(following, connection.feature_level(_FEATURE))

        return await self._ask_coordinator(ask, timeout_ms=self._timeout_ms)


def _latest(request_type: type[TxnOffsetCommitRequest] | type[EndTxnRequest], version: int) -> int:
    """The newest version of the request for producers of this transaction.version."""
    return schema_of(request_type).versions.last if version >= EPOCH_OF_EACH else _LAST_BEFORE_EPOCHS
