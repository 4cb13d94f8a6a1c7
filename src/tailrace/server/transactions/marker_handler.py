"""WriteTxnMarkers (27): writes the ends of transactions into partitions that this node leads (KIP-98).

The coordinators of transactions ask for it, and administrators, to end one that hangs (KIP-664). The answer leaves
when the markers are as safe as acks=all makes them, or after `REQUEST_TIMEOUT_MS` with REQUEST_TIMED_OUT (7) for those
that are not: they stay in the log then, and a second request writes others, which change nothing. A request holds
markers of many transactions, so one partition that cannot commit must not keep back what is known of the others.
"""

from collections.abc import Sequence
from typing import Final

from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock
from tailrace.server.transactions.markers import MarkerCodes, OffsetTransactions, TransactionMarker, write_markers
from tailrace.server.waiters import Deadlines

REQUEST_TIMEOUT_MS: Final = 10_000
"""A third of the sender's timeout, here and in Kafka: a sender that gave up first would learn of no marker at all."""


class WriteTxnMarkersHandler:
    """Answers WriteTxnMarkers."""

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        clock: Clock,
        deadlines: Deadlines,
        pending_offsets: OffsetTransactions,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._partitions = partitions
        self._clock = clock
        self._deadlines = deadlines
        self._pending_offsets = pending_offsets
        self._timeout_ms = timeout_ms

    def handle(self, request: WriteTxnMarkersRequest, context: RequestContext) -> None:
        waiting = _WaitingMarkers(request, context, self._deadlines, self._timeout_ms)
        self._deadlines.add(waiting, self._timeout_ms)
        waiting.known = write_markers(
            self._partitions,
            waiting.markers,
            waiting.written,
            now_ms=self._clock.now_ms(),
            pending_offsets=self._pending_offsets,
        )


class _WaitingMarkers:
    """One request until it is answered."""

    def __init__(
        self, request: WriteTxnMarkersRequest, context: RequestContext, deadlines: Deadlines, timeout_ms: int
    ) -> None:
        self._request = request
        self._context = context
        self._deadlines = deadlines
        self._timeout_ms = timeout_ms
        self._is_answered = False
        self.markers = [
            TransactionMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                is_commit=marker.transaction_result,
                partitions=tuple(
                    TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes
                ),
            )
            for marker in request.markers
        ]
        self.known: Sequence[MarkerCodes] = [{} for _ in self.markers]
        """The codes that are known of each so far."""

    def written(self, codes: Sequence[MarkerCodes]) -> None:
        """All markers are safe or refused."""
        if not self._is_answered:
            self._deadlines.remove(self, self._timeout_ms)
            self._answer(codes)

    def expire(self) -> None:
        """The time is over for the partitions of which nothing is known yet."""
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
