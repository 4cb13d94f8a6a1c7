"""OffsetCommit (8): a group's progress.

v2-4 have a retention time of the offsets; v6 leader epochs; v7 static members; v9 error 69 for a missing group (before
v9 error 22), and members of consumer groups; v10 topics by id. A missing topic or partition has an error of its own (3;
for a topic id 100).

With ranges (KIP-X) a commit says which offsets of which key hashes are done, beside the committed offset. For each
partition the ranges are accepted as a whole, or refused. Malformed ranges are refused, and so are ranges in another
state epoch, and ranges behind the end of the partition, which the leader has to confirm
(`server.groups.partition_ends`). A partition of a view takes ranges too: the hashes of its slot count, all others say
nothing.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tailrace.coordinators.groups.commands import CommitOffsets, RangesToCommit
from tailrace.coordinators.groups.range_commits import check_ranges, within_hashes
from tailrace.metadata.image import TopicImage
from tailrace.metadata.views import ViewImage, hashes_of
from tailrace.model.committed_progress import Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.offsets import (
    NO_RANGE_BUDGET,
    UNKNOWN_STATE_EPOCH,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    WireRangeBudget,
)
from tailrace.server.context import RequestContext
from tailrace.server.groups.host import GroupCoordinatorHost, GroupCoordinatorService
from tailrace.server.groups.partition_ends import PartitionEnds
from tailrace.server.groups.requested_offsets import RequestedOffsets
from tailrace.server.slices import Stepwise, mapped_in

_FIRST_WITH_MISSING_GROUP: Final = 9
_FIRST_WITH_EPOCHS: Final = 9
_FIRST_WITH_IDS: Final = 10
_KEY_RANGES: Final = "key.ranges.enable"


class OffsetCommitHandler:
    """Answers when the offsets are committed."""

    def __init__(
        self, *, coordinators: GroupCoordinatorService, ends: PartitionEnds, takes_ranges: Callable[[], bool]
    ) -> None:
        """`takes_ranges` returns whether this broker accepts ranges at present."""
        self._coordinators = coordinators
        self._ends = ends
        self._takes_ranges = takes_ranges

    def handle(self, request: OffsetCommitRequest, context: RequestContext) -> Stepwise[None]:
        host = self._coordinators.host_of(request.group_id, check_limit=True)
        image, views = self._coordinators.image, self._coordinators.views
        requested, version = RequestedOffsets(), context.api_version
        if version >= _FIRST_WITH_IDS:
            found = ((views.topic_by_id(image, topic.topic_id), topic.partitions) for topic in request.topics)
            absent = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            found = ((views.topic(image, topic.name), topic.partitions) for topic in request.topics)
            absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        yield from requested.add(found, code_if_absent=absent, ranges_of=self._ranges_of)

        def answer(outcome: tuple[ErrorCode, ...] | KafkaError) -> None:
            codes = _as_version_says(outcome.code, version) if isinstance(outcome, KafkaError) else outcome
            context.respond_in_steps(self._response(request, requested, host, codes))

        def submit() -> None:
            command = CommitOffsets(
                group_id=request.group_id,
                generation_id=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                offsets=requested.offsets,
                knows_epochs=version >= _FIRST_WITH_EPOCHS,
                retention_time_ms=request.retention_time_ms,
            )
            host.submit(command, answer)

        def confirmed(known: Mapping[TopicPartition, int]) -> None:
            requested.take_ends(known)
            submit()

        ends = requested.ends_of_ranges
        if ends:
            self._ends.confirm(ends, confirmed)
        else:
            submit()

    def _ranges_of(self, topic: TopicImage, partition: OffsetCommitRequestPartition) -> RangesToCommit | None:
        """The ranges of this partition.

        Raises KafkaError INVALID_REQUEST (42) for bad ranges, POLICY_VIOLATION (44) for a topic without key ranges.
        """
        if not partition.ranges and partition.state_epoch == UNKNOWN_STATE_EPOCH:
            return None
        source = topic.source if isinstance(topic, ViewImage) else topic
        if not self._takes_ranges() or self._coordinators.image.cluster_setting(source.name, _KEY_RANGES) == "false":
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{topic.name} takes no commits of ranges: key ranges are off")
        rectangles = tuple(
            Rectangle(wire.first_offset, wire.last_offset, wire.first_hash, wire.last_hash) for wire in partition.ranges
        )
        check_ranges(rectangles)
        rectangles = within_hashes(rectangles, hashes_of(topic, partition.partition_index))
        return RangesToCommit(rectangles=rectangles, state_epoch=partition.state_epoch, end_offset=0)

    def _response(
        self,
        request: OffsetCommitRequest,
        requested: RequestedOffsets,
        host: GroupCoordinatorHost,
        outcome: tuple[ErrorCode, ...] | ErrorCode,
    ) -> Stepwise[OffsetCommitResponse]:
        """`outcome` has a code for each offset of the command, or a common code.

        Missing topics and partitions have codes of their own even if the whole commit is refused, as in Kafka.
        """
        has_budgets = not isinstance(outcome, ErrorCode)
        topics = yield from mapped_in(
            zip(request.topics, requested.codes(outcome), strict=True),
            lambda pair: zip(pair[0].partitions, pair[1], strict=True),
            lambda pair, each: OffsetCommitResponsePartition(
                partition_index=each[0].partition_index,
                error_code=each[1],
                range_budget=self._budget(request.group_id, host, pair[0], each[0].partition_index)
                if has_budgets and each[0].ranges
                else NO_RANGE_BUDGET,
            ),
            lambda pair, partitions: OffsetCommitResponseTopic(
                name=pair[0].name, topic_id=pair[0].topic_id, partitions=partitions
            ),
        )
        return OffsetCommitResponse(topics=topics)

    def _budget(
        self, group_id: str, host: GroupCoordinatorHost, topic: OffsetCommitRequestTopic, index: int
    ) -> WireRangeBudget:
        """The number of ranges that the group has in this partition, and the limit of ranges."""
        image, views, ranged = self._coordinators.image, self._coordinators.views, self._coordinators.ranged_offsets
        found = views.topic(image, topic.name) if topic.name else views.topic_by_id(image, topic.topic_id)
        if found is None:
            return NO_RANGE_BUDGET
        value = host.machine.reports.offsets(group_id).get(TopicPartition(found.name, index))
        used = 0 if value is None else ranged.progress(value).committed.rectangle_count
        return WireRangeBudget(used=used, limit=ranged.max_rectangles)


def _as_version_says(code: ErrorCode, version: int) -> ErrorCode:
    is_new = code is ErrorCode.GROUP_ID_NOT_FOUND and version < _FIRST_WITH_MISSING_GROUP
    return ErrorCode.ILLEGAL_GENERATION if is_new else code
