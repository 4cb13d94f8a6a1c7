"""DeleteRecords (21): raises the log start offset of partitions that this broker leads (KIP-107).

The answer is sent when the new log starts are on disk: deleted records do not come back after a crash. All requests of
one turn share one write. Records that were acknowledged with acks=1 can be deleted: the request waits until the records
are below the high watermark (`server.partitions.acknowledged_ends`).
"""

from collections.abc import Callable, Mapping

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
from tailrace.server.partitions.acknowledged_ends import AcknowledgedEnds
from tailrace.server.partitions.deletion_log import DeletionLog
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock
from tailrace.server.slices import Stepwise, mapped, mapped_in, once

_NOTHING_KNOWN = -1


class DeleteRecordsHandler:
    """Raises log starts. Each partition has an error of its own."""

    def __init__(self, *, partitions: PartitionTable, clock: Clock, ends: AcknowledgedEnds) -> None:
        self._partitions = partitions
        self._ends = ends
        self._clock = clock
        self._deletions = DeletionLog(clock)
        self._waiting: list[Callable[[KafkaError | None], None]] = []
        self._moved: dict[Partition, None] = {}  # the partitions whose log start has moved in this turn
        self._is_write_planned = False

    def handle(self, request: DeleteRecordsRequest, context: RequestContext) -> Stepwise[DeleteRecordsResponse | None]:
        times = yield from once(
            (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
        )
        named = yield from mapped(lambda name: self._partitions.awake(*name), times)

        def carried_out() -> Stepwise[DeleteRecordsResponse | None]:
            return self._carry_out(request, context, times)

        if self._ends.wait(named, lambda: context.respond_in_steps(carried_out())):
            return None
        return (yield from carried_out())

    def _carry_out(
        self, request: DeleteRecordsRequest, context: RequestContext, times: Mapping[tuple[str, int], int]
    ) -> Stepwise[DeleteRecordsResponse | None]:
        topics = yield from mapped_in(
            request.topics,
            lambda topic: topic.partitions,
            lambda topic, wanted: self._delete(
                topic.name,
                wanted,
                is_twice=times[topic.name, wanted.partition_index] > 1,
                requested_by=context.requested_by,
            ),
            lambda topic, partitions: DeleteRecordsTopicResult(name=topic.name, partitions=partitions),
        )
        response = DeleteRecordsResponse(topics=topics)
        if all(partition.error_code for topic in response.topics for partition in topic.partitions):
            return response
        self._plan_write()
        self._waiting.append(context.answering(request, lambda _: response))
        return None

    def _plan_write(self) -> None:
        if not self._is_write_planned:
            self._is_write_planned = True
            self._clock.call_soon(self._write_log_starts)

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
            self._plan_write()
        except KafkaError as refusal:
            return DeleteRecordsPartitionResult(
                partition_index=index, low_watermark=_NOTHING_KNOWN, error_code=refusal.code
            )
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=log_start_offset)

    def _write_log_starts(self) -> None:
        self._is_write_planned = False
        waiting, self._waiting = self._waiting, []
        moved, self._moved = self._moved, {}
        for partition in moved:
            self._partitions.segment_removal.retire(partition)
        self._partitions.checkpoints.write_log_starts(
            lambda fault: call_each(lambda answer: answer(fault), waiting),
            of=[partition for partition in moved if not partition.is_closed],
        )
