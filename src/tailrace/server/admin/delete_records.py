"""DeleteRecords (21): raises the log start offset of partitions that this broker leads (KIP-107).

The answer is sent when the new log starts are on disk: deleted records do not come back after a crash. All requests of
one turn share one write. Records that were acknowledged with acks=1 can be deleted: the request waits until they are
below the high watermark (`server.partitions.acknowledged_ends`).
"""

from collections import Counter
from collections.abc import Callable

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import INTERNAL_TOPICS, METADATA_TOPIC
from tailrace.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from tailrace.replication.partition import Partition
from tailrace.server.callbacks import call_each
from tailrace.server.context import RequestContext
from tailrace.server.errors import error_response
from tailrace.server.partitions.acknowledged_ends import AcknowledgedEnds
from tailrace.server.partitions.deletion_log import DeletionLog
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock

_NOTHING_KNOWN = -1


class DeleteRecordsHandler:
    """Raises log starts. Each partition has an error of its own."""

    def __init__(self, *, partitions: PartitionTable, clock: Clock, ends: AcknowledgedEnds) -> None:
        self._partitions = partitions
        self._ends = ends
        self._clock = clock
        self._deletions = DeletionLog(clock)
        self._waiting: list[Callable[[KafkaError | None], None]] = []
        self._moved: dict[Partition, None] = {}  # in this turn

    def handle(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse | None:
        named = [
            self._partitions.awake(topic.name, each.partition_index)
            for topic in request.topics
            for each in topic.partitions
        ]

        def readable() -> None:
            response = self._carry_out(request, context)
            if response is not None:
                context.respond(response)

        return None if self._ends.wait(named, readable) else self._carry_out(request, context)

    def _carry_out(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse | None:
        times = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
        response = DeleteRecordsResponse(
            topics=tuple(
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=tuple(
                        self._delete(
                            topic.name,
                            wanted,
                            is_twice=times[topic.name, wanted.partition_index] > 1,
                            requested_by=context.requested_by,
                        )
                        for wanted in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )
        if all(each.error_code for topic in response.topics for each in topic.partitions):
            return response

        def answer(fault: KafkaError | None) -> None:
            context.respond(response if fault is None else error_response(request, context.api_version, fault))

        if not self._waiting:
            self._clock.call_soon(self._write_log_starts)
        self._waiting.append(answer)
        return None

    def _delete(
        self, topic: str, wanted: DeleteRecordsPartition, *, is_twice: bool, requested_by: str
    ) -> DeleteRecordsPartitionResult:
        index = wanted.partition_index
        try:
            if is_twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{topic}-{index} is named twice")
            if topic == METADATA_TOPIC:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{topic} is shortened by its snapshots only (KIP-630)")
            partition = self._partitions.get(topic, index)
            if topic in INTERNAL_TOPICS:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is the cluster's own: its records stay")
            before = partition.log.log_start_offset
            log_start_offset = partition.delete_records(wanted.offset)
            self._deletions.asked_for(partition, before, requested_by)
            self._moved[partition] = None
        except KafkaError as refusal:
            return DeleteRecordsPartitionResult(
                partition_index=index, low_watermark=_NOTHING_KNOWN, error_code=refusal.code
            )
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=log_start_offset)

    def _write_log_starts(self) -> None:
        waiting, self._waiting = self._waiting, []
        moved, self._moved = self._moved, {}
        for partition in moved:
            self._partitions.segment_removal.retire(partition)
        self._partitions.checkpoints.write_log_starts(
            lambda fault: call_each(lambda answer: answer(fault), waiting),
            of=[partition for partition in moved if not partition.is_closed],
        )
