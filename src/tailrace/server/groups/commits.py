"""OffsetCommit (8): a group's progress.

v2-4 have a retention time of the offsets; v6 leader epochs; v7 static members; v9 error 69 for a missing group, 22
before, and members of consumer groups; v10 topics by id. A missing topic or partition has an error of its own (3, by
id 100).

With ranges (KIP-X) a commit says which offsets of which key hashes are done, beside all that is committed. It is taken
whole or not at all, partition by partition. Refused are ranges that are none, in another state epoch, or behind the end
of the partition, which the leader has to confirm (`server.groups.partition_ends`).
"""

from collections.abc import Callable, Mapping
from typing import Final

from tailrace.coordinators.groups.commands import CommitOffsets, RangesToCommit
from tailrace.coordinators.groups.range_commits import check_ranges
from tailrace.metadata.image import TopicImage
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
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.groups.partition_ends import PartitionEnds
from tailrace.server.groups.requested_offsets import NamedTopics, RequestedOffsets
from tailrace.server.ports import Controller
from tailrace.server.slices import STEP, Stepwise, mapped_in

_FIRST_WITH_MISSING_GROUP: Final = 9
_FIRST_WITH_EPOCHS: Final = 9
_FIRST_WITH_IDS: Final = 10
_KEY_SHARING: Final = "key.sharing.enable"


class OffsetCommitHandler:
    """Answers when the offsets are committed."""

    def __init__(
        self,
        *,
        coordinators: GroupCoordinatorService,
        controller: Controller,
        ends: PartitionEnds,
        shares_keys: Callable[[], bool],
    ) -> None:
        """`shares_keys`: whether this broker takes ranges now."""
        self._coordinators = coordinators
        self._controller = controller
        self._ends = ends
        self._shares_keys = shares_keys

    def handle(self, request: OffsetCommitRequest, context: RequestContext) -> Stepwise[None]:
        self._coordinators.host_of(request.group_id, check_limit=True)
        topics = NamedTopics(self._controller.image, self._coordinators.views)
        commit = _Commit(request, topics, context.api_version, shares_keys=self._shares_keys())
        yield from commit.look_up()
        ends = commit.requested.ends_of_ranges()
        if not ends:
            self._submit(commit, context)
            return

        def confirmed(known: Mapping[TopicPartition, int]) -> None:
            commit.requested.take_ends(known)
            self._submit(commit, context)

        self._ends.confirm(ends, confirmed)

    def _submit(self, commit: "_Commit", context: RequestContext) -> None:
        def answer(outcome: tuple[ErrorCode, ...] | KafkaError) -> None:
            if isinstance(outcome, KafkaError):
                context.respond_in_steps(commit.refused(_as_version_says(outcome, context.api_version)))
            else:
                context.respond_in_steps(commit.response(outcome, self._used))

        group_id = commit.request.group_id
        try:
            host = self._coordinators.host_of(group_id, check_limit=True)
        except KafkaError as refusal:  # the coordinator has moved while the leaders were asked
            answer(refusal)
        else:
            host.submit(commit.command(), answer)

    def _used(self, group_id: str, partition: TopicPartition) -> WireRangeBudget:
        """The ranges that the group has in this partition."""
        shared = self._coordinators.shared_offsets
        value = self._coordinators.host_of(group_id).machine.reports.offsets(group_id).get(partition)
        used = 0 if value is None else shared.progress(value).committed.rectangle_count
        return WireRangeBudget(used=used, limit=shared.max_rectangles)


def _as_version_says(error: KafkaError, version: int) -> KafkaError:
    if error.code is ErrorCode.GROUP_ID_NOT_FOUND and version < _FIRST_WITH_MISSING_GROUP:
        return KafkaError(ErrorCode.ILLEGAL_GENERATION, error.detail)
    return error


class _Commit:
    """One request: its command and its response."""

    def __init__(self, request: OffsetCommitRequest, topics: NamedTopics, version: int, *, shares_keys: bool) -> None:
        self.request = request
        self.requested = RequestedOffsets()
        self._topics = topics
        self._knows_epochs = version >= _FIRST_WITH_EPOCHS
        self._shares_keys = shares_keys
        self._by_id = version >= _FIRST_WITH_IDS

    def look_up(self) -> Stepwise[None]:
        """Find the topics, before anything else is asked."""
        absent = ErrorCode.UNKNOWN_TOPIC_ID if self._by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for number, topic in enumerate(self.request.topics, 1):
            if not number % STEP:
                yield
            found = self._topics.with_id(topic.topic_id) if self._by_id else self._topics.named(topic.name)
            yield from self.requested.add_topic(
                found, topic.partitions, code_if_absent=absent, ranges_of=self._ranges_of
            )

    def _ranges_of(self, topic: TopicImage, partition: OffsetCommitRequestPartition) -> RangesToCommit | None:
        """The ranges of this partition. Raises KafkaError INVALID_REQUEST (42) for bad ones, and POLICY_VIOLATION (44)
        for a view and where key sharing is off."""
        if not partition.ranges and partition.state_epoch == UNKNOWN_STATE_EPOCH:
            return None
        image = self._topics.image
        if topic.name not in image.topics:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{topic.name} is a view: it takes no commits of ranges")
        if not self._shares_keys or image.cluster_setting(topic.name, _KEY_SHARING) == "false":
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{topic.name} takes no commits of ranges: key sharing is off")
        rectangles = tuple(
            Rectangle(one.first_offset, one.last_offset, one.first_hash, one.last_hash) for one in partition.ranges
        )
        check_ranges(rectangles)
        return RangesToCommit(rectangles=rectangles, state_epoch=partition.state_epoch, end_offset=0)

    def command(self) -> CommitOffsets:
        return CommitOffsets(
            group_id=self.request.group_id,
            generation_id=self.request.generation_id_or_member_epoch,
            member_id=self.request.member_id,
            group_instance_id=self.request.group_instance_id,
            knows_epochs=self._knows_epochs,
            retention_time_ms=self.request.retention_time_ms,
            offsets=self.requested.offsets,
        )

    def refused(self, error: KafkaError) -> Stepwise[OffsetCommitResponse]:
        """All offsets are refused; missing topics and partitions have their own codes all the same, as in Kafka."""
        return self.response(error.code)

    def response(
        self,
        outcome: tuple[ErrorCode, ...] | ErrorCode,
        used: Callable[[str, TopicPartition], WireRangeBudget] | None = None,
    ) -> Stepwise[OffsetCommitResponse]:
        """`outcome` has a code for each offset of the command, or one for all; `used` finds the ranges of a group."""
        topics = yield from mapped_in(
            zip(self.request.topics, self.requested.codes(outcome), strict=True),
            lambda pair: zip(pair[0].partitions, pair[1], strict=True),
            lambda pair, each: OffsetCommitResponsePartition(
                partition_index=each[0].partition_index,
                error_code=each[1],
                range_budget=NO_RANGE_BUDGET
                if used is None or not each[0].ranges
                else self._budget(pair[0], each[0].partition_index, used),
            ),
            lambda pair, partitions: OffsetCommitResponseTopic(
                name=pair[0].name, topic_id=pair[0].topic_id, partitions=partitions
            ),
        )
        return OffsetCommitResponse(topics=topics)

    def _budget(
        self, topic: OffsetCommitRequestTopic, index: int, used: Callable[[str, TopicPartition], WireRangeBudget]
    ) -> WireRangeBudget:
        found = self._topics.named(topic.name) if topic.name else self._topics.with_id(topic.topic_id)
        if found is None:
            return NO_RANGE_BUDGET
        return used(self.request.group_id, TopicPartition(found.name, index))
