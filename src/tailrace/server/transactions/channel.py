"""Requests to the coordinator of a transactional id about its transaction, on this node or on another broker.

Producers of KIP-890 begin a transaction without waiting for the end of the last transaction, so a partition may be
added before that end is complete. Then this channel, not the producer, repeats the request for a while.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tailrace.coordinators.transactions.commands import AddPartitions, Response
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import EPOCH_PER_TRANSACTION, NO_LEADER, BrokerId
from tailrace.model.key_hash import coordinator_partition
from tailrace.model.partitions import TRANSACTION_STATE_TOPIC, TopicPartition
from tailrace.model.sinks import coordinator_key
from tailrace.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTransaction,
    topics_to_add,
)
from tailrace.server.ports import Clock, Peer
from tailrace.server.produce.transactional_appends import OnVerified, VerificationRequest
from tailrace.server.quorum.metadata_partition_wire import known_code
from tailrace.server.transactions.host import TransactionCoordinatorService

_FIRST_OF_BROKERS: Final = 4
_TIMEOUT_MS: Final = 5_000
_RETRY_MS: Final = 20
_RETRIES: Final = 60


class TransactionChannel:
    """Verifies and adds partitions of transactions, as `TransactionVerifier`."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        coordinators: TransactionCoordinatorService,
        peer: Peer,
        clock: Clock,
    ) -> None:
        """`image` returns the present image; `peer` sends to the other brokers."""
        self._broker_id = broker_id
        self._image = image
        self._coordinators = coordinators
        self._peer = peer
        self._clock = clock

    def verify(self, request: VerificationRequest, on_done: OnVerified) -> None:
        """Ask the coordinator, see `TransactionVerifier.verify`."""
        self._try(request, on_done, retries=_RETRIES if request.adds_partitions else 0)

    def _try(self, request: VerificationRequest, on_done: OnVerified, *, retries: int) -> None:
        def on_codes(codes: Mapping[TopicPartition, ErrorCode]) -> None:
            if retries and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values():
                again = partial(self._try, request, on_done, retries=retries - 1)
                self._clock.call_at(self._clock.monotonic_ms() + _RETRY_MS, again)
            else:
                on_done(codes)

        leader = self._leader_of(request.transactional_id)
        if leader == NO_LEADER:
            on_codes(dict.fromkeys(request.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif leader == self._broker_id:
            self._verify_here(request, on_codes)
        else:
            self._peer.send(
                leader,
                _request(request),
                lambda response: on_codes(_codes(request, response)),
                oldest_version=_FIRST_OF_BROKERS,
                timeout_ms=_TIMEOUT_MS,
            )

    def _leader_of(self, transactional_id: str) -> BrokerId:
        image = self._image()
        topic = image.topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return NO_LEADER
        number = coordinator_partition(coordinator_key(transactional_id), len(topic.partitions))
        return topic.partitions[number].leader

    def _verify_here(self, request: VerificationRequest, on_done: OnVerified) -> None:
        command = AddPartitions(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            partitions=frozenset(request.partitions),
            client_version=EPOCH_PER_TRANSACTION,
        )

        def added(outcome: Response | KafkaError) -> None:
            code = outcome.code if isinstance(outcome, KafkaError) else ErrorCode.NONE
            on_done(dict.fromkeys(request.partitions, code))

        try:
            host = self._coordinators.host_of(request.transactional_id)
            if not request.adds_partitions:
                codes = host.machine.verify(command)
        except KafkaError as refusal:
            added(refusal)
            return
        if request.adds_partitions:
            host.submit(command, added)
        else:
            on_done(codes)


def _request(request: VerificationRequest) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=(
            AddPartitionsToTxnTransaction(
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                verify_only=not request.adds_partitions,
                topics=topics_to_add(request.partitions),
            ),
        )
    )


def _codes(wanted: VerificationRequest, response: AddPartitionsToTxnResponse | None) -> dict[TopicPartition, ErrorCode]:
    if response is None:
        return dict.fromkeys(wanted.partitions, ErrorCode.NETWORK_EXCEPTION)
    if response.error_code:
        return dict.fromkeys(wanted.partitions, known_code(response.error_code))
    return {
        TopicPartition(topic.name, partition.partition_index): known_code(partition.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
