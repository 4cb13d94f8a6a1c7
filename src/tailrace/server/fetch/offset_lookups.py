"""Lookups of offsets: by timestamp, or the ends of the log (ListOffsets), and by leader epoch (OffsetForLeaderEpoch).

Special timestamps: -1 the readable end (the last stable offset for read_committed), -2 the first offset, -3 the record
with the largest timestamp (v7), -4 the first offset on this disk (v8), -5 the last offset in tiered storage (v9), which
does not exist here: the answer is -1. A record at or above the readable end is not found.

While the high watermark of a new leader is below the start of its epoch, the high watermark of the last leader is not
known. An answer that would be lowered by the new leader's high watermark is then OFFSET_NOT_AVAILABLE (78), before v5
LEADER_NOT_AVAILABLE (5): a consumer must never see the end of a partition move backwards (KIP-207).

A consumer's answer that depends on the readable end waits until the records that were acknowledged with acks=1 are
below that end, for half a second at most (`server.partitions.acknowledged_ends`).

A follower gets the log end. Any other client is a consumer, with any replica id. ListOffsets is for the leader, unless
the replica id is -2 (KIP-392): then the receiving replica answers for its own log, from its log start to its high
watermark, so that a consumer that reads from a follower finds the follower's first offset.

A lookup by time in a log with headers that were not checked waits until the records were examined (decision 0069);
after ten seconds its answer is 78, too.

A view partition (decision 0057) has a start and an end of its own (`server.fetch.view_reads.ViewEnds`). A lookup waits
while the keys are being indexed; after ten seconds its answer is 78, or 5. A lookup by time finds the records of the
view partition alone (`server.fetch.view_times`).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from tailrace.metadata.views import ViewImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange
from tailrace.protocol.messages.list_offsets import (
    ESTIMATED_COUNT,
    EXACT_COUNT,
    NOT_COUNTED,
    UNFINISHED_COUNT,
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tailrace.replication.partition import Partition
from tailrace.server.context import RequestContext
from tailrace.server.fetch.broker_proofs import BrokerProofs
from tailrace.server.fetch.key_reads import ScanBudget
from tailrace.server.fetch.params import CONSUMER, DEBUGGING_REPLICA
from tailrace.server.fetch.slot_counts import SlotCount
from tailrace.server.fetch.view_times import FoundTimes, TimeLookup, keys_are_being_indexed
from tailrace.server.fetch.views import ReadableViews
from tailrace.server.partitions.acknowledged_ends import AcknowledgedEnds
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.slices import Stepwise, mapped_in, once
from tailrace.storage import TimestampOffset

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

FIRST_VERSION_OF = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
FIRST_WITH_OFFSET_NOT_AVAILABLE: Final = 5
_STARTS: Final = frozenset((EARLIEST, EARLIEST_LOCAL, LATEST_TIERED))
"""The special timestamps whose answers do not depend on the end of the readable records."""
_OF_VIEWS: Final = frozenset((EARLIEST, EARLIEST_LOCAL))
"""The starts of which each view partition has its own."""
_UNKNOWN: Final = -1
_NOT_FOUND = TimestampOffset(_UNKNOWN, _UNKNOWN, _UNKNOWN)


class ListOffsetsHandler:
    """ListOffsets (2): the offset that belongs to a timestamp, or to an end of the log."""

    def __init__(
        self, *, partitions: PartitionTable, views: ReadableViews, ends: AcknowledgedEnds, proofs: BrokerProofs
    ) -> None:
        self._proofs = proofs
        self._partitions = partitions
        self._views = views
        self._ends = ends

    def handle(self, request: ListOffsetsRequest, context: RequestContext) -> Stepwise[ListOffsetsResponse | None]:
        doubtful = yield from self._doubtful(request)

        def answer_later() -> None:
            context.respond_in_steps(self._answer_when_ends_are_known(request, context))

        if doubtful and self._partitions.time_checks.wait(doubtful, answer_later):
            return None
        return (yield from self._answer_when_ends_are_known(request, context))

    def _doubtful(self, request: ListOffsetsRequest) -> Stepwise[list[Partition]]:
        """The partitions with a lookup by time whose records must be examined before."""

        def doubtful(topic: str, index: int) -> Partition | None:
            try:
                named = _NamedTopic(topic, self._views.named(topic))
                partition = named.partition(index, self._partitions, self._views)
            except KafkaError:
                return None  # the answer has the error
            return partition if not partition.log.is_offline and partition.log.times.are_doubtful else None

        found = yield from once(
            doubtful(topic.name, wanted.partition_index) if _is_by_time(wanted.timestamp) else None
            for topic in request.topics
            for wanted in topic.partitions
        )
        return [partition for partition in found if partition is not None]

    def _answer_when_ends_are_known(
        self, request: ListOffsetsRequest, context: RequestContext
    ) -> Stepwise[ListOffsetsResponse | None]:
        named = (
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
            if partition.timestamp not in _STARTS
        )
        is_consumer = request.replica_id == CONSUMER
        behind = yield from _in_use(named if is_consumer else (), self._partitions, self._views)
        if self._ends.wait(behind, lambda: context.respond_in_steps(self._response(request, context))):
            return None
        return (yield from self._response(request, context))

    def _response(
        self, request: ListOffsetsRequest, context: RequestContext, *, is_last: bool = False
    ) -> Stepwise[ListOffsetsResponse | None]:
        """The response; None: it waits for indexes of keys. `is_last`: it has waited already."""
        times = yield from once(
            (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
        )
        budget, version = self._views.key_reads.new_scan(), context.api_version
        awaited: list[Partition] = []

        def answer(topic: _NamedTopic, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
            is_twice = times[topic.name, wanted.partition_index] > 1
            return self._answer(topic, wanted, request, view_times, budget, version, awaited, is_twice=is_twice)

        view_times = FoundTimes()
        lookups = yield from self._lookups_in_views(request, version)
        yield from view_times.look_up(lookups, request.isolation_level, self._views.reads.ends, budget)
        topics = yield from mapped_in(
            ((topic, _NamedTopic(topic.name, self._views.named(topic.name))) for topic in request.topics),
            lambda pair: pair[0].partitions,
            lambda pair, wanted: answer(pair[1], wanted),
            lambda pair, answers: ListOffsetsTopicResponse(name=pair[0].name, partitions=answers),
        )
        if not is_last and self._views.reads.ends.wait(
            tuple(dict.fromkeys(awaited)),
            lambda: context.respond_in_steps(self._response(request, context, is_last=True)),
        ):
            return None
        return ListOffsetsResponse(topics=topics)

    def _lookups_in_views(self, request: ListOffsetsRequest, version: int) -> Stepwise[list[TimeLookup]]:
        """The lookups by time in view partitions that this node may answer."""

        def lookup(view: ViewImage | None, wanted: ListOffsetsPartition) -> TimeLookup | None:
            if view is None or not _is_by_time(wanted.timestamp):
                return None
            try:
                _check_timestamp(wanted.timestamp, version)
                partition = self._views.partition(view, wanted.partition_index)
                _check_role(partition, request, wanted)
            except KafkaError:
                return None  # the answer has the error
            return _time_lookup(partition, view.key_range(wanted.partition_index), wanted.timestamp)

        found = yield from once(
            lookup(view, wanted)
            for topic in request.topics
            for view in (self._views.named(topic.name),)
            for wanted in topic.partitions
        )
        return [made for made in found if made is not None]

    def _answer(
        self,
        topic: "_NamedTopic",
        wanted: ListOffsetsPartition,
        request: ListOffsetsRequest,
        view_times: FoundTimes,
        budget: ScanBudget,
        version: int,
        awaited: list[Partition],
        *,
        is_twice: bool,
    ) -> ListOffsetsPartitionResponse:
        """The answer for a partition. A partition whose keys are not known yet is added to `awaited`."""
        view = topic.view
        count: SlotCount | None = None
        try:
            if is_twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{topic.name}-{wanted.partition_index} is named twice")
            _check_timestamp(wanted.timestamp, version)
            partition = topic.partition(wanted.partition_index, self._partitions, self._views)
            _check_role(partition, request, wanted)
            is_consumer = view is not None or not self._proofs.may_see_log_end(
                partition, request.replica_id, wanted.current_leader_epoch, request.secret
            )
            end_offset = (
                partition.readable_end(request.isolation_level) if is_consumer else partition.log.log_end_offset
            )
            key_range = None if view is None else view.key_range(wanted.partition_index)
            if key_range is not None and _is_by_time(wanted.timestamp):
                found = _in_view(view_times, _time_lookup(partition, key_range, wanted.timestamp))
            else:
                found = _look_up(partition, wanted.timestamp, end_offset, is_consumer=is_consumer)
            if key_range is not None and wanted.timestamp in _OF_VIEWS:
                found = found._replace(offset=self._view_start(partition, key_range, budget))
            elif key_range is not None and wanted.timestamp == LATEST:
                found = found._replace(offset=self._view_end(partition, key_range, end_offset, budget))
            if wanted.count_from >= 0 and wanted.timestamp == LATEST:
                index = wanted.partition_index
                count = self._views.unread(partition, view, index, wanted.count_from, found.offset, budget)
        except KafkaError as error:
            code = error.code
            if code is ErrorCode.OFFSET_NOT_AVAILABLE and view is not None:
                self._views.key_reads.of_views.unavailable += 1
                awaited.append(topic.partition(wanted.partition_index, self._partitions, self._views))
            if code is ErrorCode.OFFSET_NOT_AVAILABLE and version < FIRST_WITH_OFFSET_NOT_AVAILABLE:
                code = ErrorCode.LEADER_NOT_AVAILABLE
            return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=code)
        return ListOffsetsPartitionResponse(
            partition_index=wanted.partition_index,
            timestamp=found.timestamp,
            offset=found.offset,
            leader_epoch=found.leader_epoch,
            records=NOT_COUNTED if count is None else count.records,
            count_quality=EXACT_COUNT if count is None else _quality_of(count),
        )

    def _view_end(self, partition: Partition, key_range: KeyRange, end_offset: int, budget: ScanBudget) -> int:
        found = self._views.reads.ends.end(partition, key_range, end_offset, budget)
        if found is None:
            raise keys_are_being_indexed(partition)
        return found

    def _view_start(self, partition: Partition, key_range: KeyRange, budget: ScanBudget) -> int:
        if partition.log.is_offline:
            return partition.log.log_start_offset
        found = self._views.reads.ends.start(partition, key_range, budget)
        if found is None:
            raise keys_are_being_indexed(partition)
        return found


class _NamedTopic(NamedTuple):
    """A topic of a request, looked up once for all its partitions."""

    name: str
    view: ViewImage | None
    """The view; None if the name is not the name of a view."""

    def partition(self, index: int, partitions: PartitionTable, views: ReadableViews) -> Partition:
        """The partition or, for a view partition, the partition that contains it. Raises KafkaError as
        `PartitionTable.get`."""
        return partitions.get(self.name, index) if self.view is None else views.partition(self.view, index)


def _in_use(
    named: Iterable[tuple[str, int]], partitions: PartitionTable, views: ReadableViews
) -> Stepwise[dict[Partition | None, int]]:
    """The partitions of these names, or behind these view partitions, that are in use. Wakes no partition."""

    def awake(name: tuple[str, int]) -> Partition | None:
        topic, index = name
        view = views.named(topic)
        if view is None:
            return partitions.awake(topic, index)
        return partitions.awake(*view.stored_as(index)) if index in view.partitions else None

    return once(map(awake, named))


def _quality_of(count: SlotCount) -> int:
    if count.is_exact:
        return EXACT_COUNT
    return UNFINISHED_COUNT if count.has_more_steps else ESTIMATED_COUNT


def _check_role(partition: Partition, request: ListOffsetsRequest, wanted: ListOffsetsPartition) -> None:
    if request.replica_id == DEBUGGING_REPLICA:
        partition.check_replica(wanted.current_leader_epoch)
    else:
        partition.check_leader(wanted.current_leader_epoch)


def _check_timestamp(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < FIRST_VERSION_OF.get(timestamp, version + 1):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} means nothing in ListOffsets v{version}"
        )


def _look_up(partition: Partition, timestamp: int, end_offset: int, *, is_consumer: bool) -> TimestampOffset:
    """The record at this timestamp below `end_offset`, the end of the readable records."""
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = partition.log.log_start_offset
        epoch = partition.log.epochs.epoch_of(start)
        return TimestampOffset(_UNKNOWN, start, epoch)
    if timestamp == LATEST_TIERED:
        return _NOT_FOUND
    if timestamp == LATEST:
        if is_consumer:
            _check_end_is_known(partition)
        return TimestampOffset(_UNKNOWN, end_offset, partition.leader_epoch)
    log = partition.log
    _check_times_are_known(partition)
    found = log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None:
        return _NOT_FOUND
    if found.offset >= end_offset:
        if is_consumer:
            _check_end_is_known(partition)
        return _NOT_FOUND
    return found


def _is_by_time(timestamp: int) -> bool:
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def _time_lookup(partition: Partition, key_range: KeyRange, timestamp: int) -> TimeLookup:
    return TimeLookup(partition, key_range, None if timestamp == MAX_TIMESTAMP else timestamp)


def _in_view(view_times: FoundTimes, lookup: TimeLookup) -> TimestampOffset:
    _check_times_are_known(lookup.partition)
    found = view_times.of(lookup)
    if found is None:
        _check_end_is_known(lookup.partition)
        return _NOT_FOUND
    return found


def _check_times_are_known(partition: Partition) -> None:
    if not partition.log.is_offline and partition.log.times.are_doubtful:
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE, f"the times of {partition.topic_partition} are being looked at; ask again"
        )


def _check_end_is_known(partition: Partition) -> None:
    # The high watermark is compared, not the last stable offset, which a transaction from before this leader may hold
    # back for hours. Followers are exempt: they answer for their own log, and their high watermark does not fall.
    if partition.is_leader and partition.high_watermark < partition.leader_epoch_start_offset:
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"the high watermark of {partition.topic_partition} is not known to its new leader yet",
        )


class OffsetForLeaderEpochHandler:
    """OffsetForLeaderEpoch (23): the end offset of a leader epoch, by which a reader detects a truncation (KIP-320).

    Only the leader answers. A consumer (any reader that is no follower) never gets an end above the high watermark
    (KIP-392): records there may be truncated. While the high watermark of a new leader is below the start of its epoch,
    an answer that this cap would lower is OFFSET_NOT_AVAILABLE (78) instead: the consumer would see a truncation.
    """

    def __init__(
        self, *, partitions: PartitionTable, views: ReadableViews, ends: AcknowledgedEnds, proofs: BrokerProofs
    ) -> None:
        self._proofs = proofs
        self._partitions = partitions
        self._views = views
        self._ends = ends

    def handle(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> Stepwise[OffsetForLeaderEpochResponse | None]:
        named = ((topic.topic, partition.partition) for topic in request.topics for partition in topic.partitions)
        is_consumer = request.replica_id == CONSUMER
        behind = yield from _in_use(named if is_consumer else (), self._partitions, self._views)
        if self._ends.wait(behind, lambda: context.respond_in_steps(self._response(request))):
            return None
        return (yield from self._response(request))

    def _response(self, request: OffsetForLeaderEpochRequest) -> Stepwise[OffsetForLeaderEpochResponse]:
        topics = yield from mapped_in(
            ((topic, _NamedTopic(topic.topic, self._views.named(topic.topic))) for topic in request.topics),
            lambda pair: pair[0].partitions,
            lambda pair, wanted: self._answer(pair[1], wanted, request),
            lambda pair, answers: OffsetForLeaderTopicResult(topic=pair[0].topic, partitions=answers),
        )
        return OffsetForLeaderEpochResponse(topics=topics)

    def _answer(
        self, topic: "_NamedTopic", wanted: OffsetForLeaderPartition, request: OffsetForLeaderEpochRequest
    ) -> EpochEndOffset:
        try:
            partition = topic.partition(wanted.partition, self._partitions, self._views)
            partition.check_leader(wanted.current_leader_epoch)
            is_consumer = topic.view is not None or not self._proofs.may_see_log_end(
                partition, request.replica_id, wanted.current_leader_epoch, request.secret
            )
            end = partition.end_offset_for_epoch(wanted.leader_epoch)
            end_offset, high_watermark = end.offset, partition.high_watermark
            if is_consumer and end_offset > high_watermark:
                _check_end_is_known(partition)
                end_offset = high_watermark
        except KafkaError as error:
            return EpochEndOffset(error_code=error.code, partition=wanted.partition)
        return EpochEndOffset(partition=wanted.partition, leader_epoch=end.epoch, end_offset=end_offset)
