"""Writes the ends of transactions into the partitions that this node leads, and reports their commit.

A marker in a partition of `__consumer_offsets` also commits or drops the offsets of the transaction. The group
coordinator of that partition writes such a marker.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.replication.outcomes import Appended
from tailrace.server.context import RequestContext
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock
from tailrace.server.waiters import Deadlines


class DecisionNumber(NamedTuple):
    """The place of the end of a transaction among the ends of the same producer's transactions: a later end compares as
    greater."""

    coordinator_epoch: int
    """The leader epoch of the coordinator's partition."""
    offset: int
    """The end of the coordinator's log at a time when the log has the record of the decision, and not yet the record of
    its completion."""


class TransactionMarker(NamedTuple):
    """The end of one producer's transaction, and its partitions."""

    producer_id: int
    producer_epoch: int
    transaction_version: int
    """The transaction.version of the producer. From version 2 on the marker's epoch is above the epoch of the
    transaction (KIP-1228)."""
    decision: DecisionNumber
    """The number of the decision. Its offset is NO_DECISION in a marker from a Kafka broker or an administrator, and
    for a producer of version 2 or later."""
    is_commit: bool
    partitions: tuple[TopicPartition, ...]

    @property
    def control_record(self) -> EndTransactionMarker:
        """The record for the log."""
        return EndTransactionMarker(ControlType.COMMIT if self.is_commit else ControlType.ABORT, *self.decision)


class OffsetTransactions(Protocol):
    """The group coordinators: they write markers into `__consumer_offsets`."""

    def complete_transaction(
        self, partition: TopicPartition, marker: TransactionMarker, on_done: Callable[[ErrorCode], None]
    ) -> None:
        """Write the marker to this partition of `__consumer_offsets`; commit or drop the offsets of its transaction.

        `on_done` is called once, when the marker is committed or cannot be committed, perhaps before
        `complete_transaction` returns.
        """
        ...


MarkerCodes = Mapping[TopicPartition, ErrorCode]
OnWritten = Callable[[Sequence[MarkerCodes]], None]
"""Called once with the codes of each marker, in order, per partition of the marker."""


def write_markers(
    partitions: PartitionTable,
    markers: Sequence[TransactionMarker],
    on_done: OnWritten,
    *,
    now_ms: int,
    pending_offsets: OffsetTransactions,
) -> Sequence[MarkerCodes]:
    """Write these markers to partitions that this node leads; `on_done` is called when every marker is committed or
    refused.

    Returns the codes that are known by now; later codes are added to the same object. `on_done` may be called before
    `write_markers` returns, and is not called while replicas are behind. A partition that is not on this node gets
    UNKNOWN_TOPIC_OR_PARTITION (3), a partition that another broker leads gets NOT_LEADER_OR_FOLLOWER (6); see also
    `Staging.append_marker`.
    """
    writing = _Writing(markers, on_done)
    for at, marker in enumerate(markers):
        for topic_partition in marker.partitions:
            done = partial(writing.done, at, topic_partition)
            try:
                if topic_partition.topic == GROUP_OFFSETS_TOPIC:
                    pending_offsets.complete_transaction(topic_partition, marker, done)
                    continue
                partitions.get(*topic_partition).staging.append_marker(
                    marker.control_record,
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    transaction_version=marker.transaction_version,
                    now_ms=now_ms,
                    on_done=partial(_appended, done),
                )
            except KafkaError as refusal:
                done(refusal.code)
    writing.complete_one()  # the count of this loop itself
    return writing.codes


def _appended(done: Callable[[ErrorCode], None], outcome: Appended | KafkaError) -> None:
    done(outcome.code if isinstance(outcome, KafkaError) else ErrorCode.NONE)


class _Writing:
    """The markers of one call, until the last is written."""

    def __init__(self, markers: Sequence[TransactionMarker], on_done: OnWritten) -> None:
        self.codes: list[dict[TopicPartition, ErrorCode]] = [{} for _ in markers]
        self._left = sum(len(marker.partitions) for marker in markers) + 1
        self._on_done = on_done

    def done(self, at: int, topic_partition: TopicPartition, code: ErrorCode) -> None:
        self.codes[at][topic_partition] = code
        self.complete_one()

    def complete_one(self) -> None:
        """Count one awaited marker as complete."""
        self._left -= 1
        if not self._left:
            self._on_done(self.codes)


REQUEST_TIMEOUT_MS: Final = 10_000
"""A third of the sender's timeout, here and in Kafka: a sender whose timeout ends first gets no code at all."""


class WriteTxnMarkersHandler:
    """WriteTxnMarkers (27): writes the ends of transactions into partitions that this node leads (KIP-98).

    Sent by transaction coordinators, and by administrators to end a hanging transaction (KIP-664). The answer is sent
    when the markers are committed, or after `REQUEST_TIMEOUT_MS` with REQUEST_TIMED_OUT (7) for the rest. Written
    markers stay in the log; a second request then changes nothing. A request has markers of many transactions, and a
    partition that cannot commit must not delay the codes of other partitions: so there is the time limit.
    """

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        clock: Clock,
        deadlines: Deadlines,
        pending_offsets: OffsetTransactions,
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._deadlines = deadlines
        self._pending_offsets = pending_offsets

    def handle(self, request: WriteTxnMarkersRequest, context: RequestContext) -> None:
        waiting = _WaitingMarkers(request, context, self._deadlines)
        self._deadlines.add(waiting, REQUEST_TIMEOUT_MS)
        waiting.known = write_markers(
            self._partitions,
            waiting.markers,
            waiting.written,
            now_ms=self._clock.now_ms(),
            pending_offsets=self._pending_offsets,
        )


class _WaitingMarkers:
    """A request from its arrival to its answer."""

    def __init__(self, request: WriteTxnMarkersRequest, context: RequestContext, deadlines: Deadlines) -> None:
        self._request = request
        self._context = context
        self._deadlines = deadlines
        self._is_answered = False
        self.markers = [
            TransactionMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_version=marker.transaction_version,
                decision=DecisionNumber(marker.coordinator_epoch, marker.decision_offset),
                is_commit=marker.transaction_result,
                partitions=tuple(
                    TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes
                ),
            )
            for marker in request.markers
        ]
        self.known: Sequence[MarkerCodes] = [{} for _ in self.markers]
        """The codes of each marker that are known so far."""

    def written(self, codes: Sequence[MarkerCodes]) -> None:
        """Answer the request: all markers are committed or refused."""
        if not self._is_answered:
            self._deadlines.remove(self, REQUEST_TIMEOUT_MS)
            self._answer(codes)

    def expire(self) -> None:
        """Answer REQUEST_TIMED_OUT for the partitions without a code."""
        late = ErrorCode.REQUEST_TIMED_OUT
        self._answer(
            [
                {**dict.fromkeys(marker.partitions, late), **known}
                for marker, known in zip(self.markers, self.known, strict=True)
            ]
        )

    def _answer(self, codes: Sequence[MarkerCodes]) -> None:
        self._is_answered = True
        self._context.respond(
            WriteTxnMarkersResponse(
                markers=tuple(
                    WritableTxnMarkerResult(
                        producer_id=marker.producer_id,
                        topics=tuple(
                            WritableTxnMarkerTopicResult(
                                name=topic.name,
                                partitions=tuple(
                                    WritableTxnMarkerPartitionResult(
                                        partition_index=index, error_code=of_marker[TopicPartition(topic.name, index)]
                                    )
                                    for index in topic.partition_indexes
                                ),
                            )
                            for topic in marker.topics
                        ),
                    )
                    for marker, of_marker in zip(self._request.markers, codes, strict=True)
                )
            )
        )
