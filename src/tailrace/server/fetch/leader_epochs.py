"""OffsetForLeaderEpoch (23): where a leader epoch ends, so that a reader notices that its records are gone (KIP-320).

Only the leader answers. A consumer (any reader that is no follower) is never told of an end above the high watermark
(KIP-392): what lies there may be cut off yet. While the high watermark of a new leader is below the start of its epoch,
an answer that this cap would lower is OFFSET_NOT_AVAILABLE (78) instead: the consumer would take it for a truncation.
"""

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.list_offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tailrace.server.context import RequestContext
from tailrace.server.fetch.replica_fetches import may_see_log_end
from tailrace.server.partitions.table import PartitionTable


class OffsetForLeaderEpochHandler:
    """Answers OffsetForLeaderEpoch."""

    def __init__(self, *, partitions: PartitionTable) -> None:
        self._partitions = partitions

    def handle(self, request: OffsetForLeaderEpochRequest, context: RequestContext) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=tuple(
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=tuple(
                        self._answer(topic.topic, wanted, request.replica_id) for wanted in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def _answer(self, topic: str, wanted: OffsetForLeaderPartition, replica_id: int) -> EpochEndOffset:
        try:
            partition = self._partitions.get(topic, wanted.partition)
            partition.check_leader(wanted.current_leader_epoch)
            is_consumer = not may_see_log_end(partition, replica_id, wanted.current_leader_epoch)
            end = partition.end_offset_for_epoch(wanted.leader_epoch)
            end_offset, high_watermark = end.offset, partition.high_watermark
            if is_consumer and end_offset > high_watermark:
                if high_watermark < partition.leader_epoch_start_offset:
                    raise KafkaError(
                        ErrorCode.OFFSET_NOT_AVAILABLE,
                        f"the new leader of {partition.topic_partition} does not know the high watermark yet",
                    )
                end_offset = high_watermark
        except KafkaError as error:
            return EpochEndOffset(error_code=error.code, partition=wanted.partition)
        return EpochEndOffset(partition=wanted.partition, leader_epoch=end.epoch, end_offset=end_offset)
