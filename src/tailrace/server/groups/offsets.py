"""OffsetFetch (9) and OffsetDelete (47): a group's offsets are read and deleted. `server.groups.commits` has the
commits.

OffsetFetch: v2 null for all topics, and an error of the whole answer; v5 leader epochs; v7 require_stable: a partition
whose offset an open transaction has set gets error 88, so that no consumer reads the records of that transaction again;
v8 many groups; v10 topics by id. "No offset" is -1 and no error. A partition that a request names twice is answered
once: 4 bytes of a request may cause 4 KiB of the answer. A view of a topic has offsets of its own, under the view's
name and id (decision 0057). Committed ranges (KIP-X) are in the answer only to a request for ranges.
"""

from collections.abc import Iterable, Mapping
from itertools import compress
from typing import NamedTuple

from tailrace.coordinators.groups.commands import DeleteOffsets
from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.offsets import (
    UNKNOWN_STATE_EPOCH,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tailrace.server.context import RequestContext
from tailrace.server.groups.committed_ranges import RangeRoom, WantedRanges
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.slices import STEP, Stepwise, mapped, mapped_in, once

_FIRST_WITH_IDS = 10
_FIRST_FETCH_OF_MANY_GROUPS = 8

_NO_OFFSET = -1


class OffsetFetchHandler:
    """Answers from the committed offsets."""

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: OffsetFetchRequest, context: RequestContext) -> Stepwise[OffsetFetchResponse]:
        if context.api_version >= _FIRST_FETCH_OF_MANY_GROUPS:
            by_id = context.api_version >= _FIRST_WITH_IDS
            groups = yield from self._groups(
                request.groups, RangeRoom(), by_id=by_id, require_stable=request.require_stable
            )
            return OffsetFetchResponse(groups=groups)
        topics = None
        if request.topics is not None:
            topics = tuple(
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            )
        group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
        found = yield from self._group(group, RangeRoom(), by_id=False, require_stable=request.require_stable)
        answered = yield from mapped_in(
            found.topics, lambda topic: topic.partitions, _partition_as_before, _topic_as_before
        )
        return OffsetFetchResponse(topics=answered)

    def _groups(
        self, groups: Iterable[OffsetFetchRequestGroup], room: RangeRoom, *, by_id: bool, require_stable: bool
    ) -> Stepwise[tuple[OffsetFetchResponseGroup, ...]]:
        """The groups of the request, without repetitions: a group is answered at most once for all its topics, and once
        for named topics, as more answers would multiply the work."""
        answered: set[tuple[str, bool]] = set()
        found: list[OffsetFetchResponseGroup] = []
        for group in (yield from once(groups)):
            if len(found) % STEP == STEP - 1:
                yield
            form = group.group_id, group.topics is None
            if form in answered:
                found.append(OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.INVALID_REQUEST))
            else:
                answered.add(form)
                found.append((yield from self._group_or_error(group, room, by_id=by_id, require_stable=require_stable)))
        return tuple(found)

    def _group_or_error(
        self, group: OffsetFetchRequestGroup, room: RangeRoom, *, by_id: bool, require_stable: bool
    ) -> Stepwise[OffsetFetchResponseGroup]:
        try:
            return (yield from self._group(group, room, by_id=by_id, require_stable=require_stable))
        except KafkaError as refusal:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=refusal.code)

    def _group(
        self, group: OffsetFetchRequestGroup, room: RangeRoom, *, by_id: bool, require_stable: bool
    ) -> Stepwise[OffsetFetchResponseGroup]:
        reports = self._coordinators.host_of(group.group_id).machine.reports
        reports.check_reader(group.group_id, group.member_id, group.member_epoch)
        view = _OffsetsView(
            reports.offsets(group.group_id),
            reports.unstable_partitions(group.group_id) if require_stable else frozenset(),
            WantedRanges(self._coordinators.ranged_offsets, group.key_ranges, room) if group.include_ranges else None,
        )
        if group.topics is None:
            topics = yield from _all_topics(view, self._coordinators)
        else:
            wanted = yield from _once(group.topics)
            topics = yield from mapped_in(
                ((self._named(topic, by_id=by_id), topic) for topic in wanted),
                lambda pair: wanted[pair[1]],
                lambda pair, index: view.partition(pair[0].name, index, pair[0].code),
                lambda pair, partitions: OffsetFetchResponseTopics(
                    name=pair[0].name, topic_id=pair[1][1], partitions=partitions
                ),
            )
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)

    def _named(self, topic: "_TopicKey", *, by_id: bool) -> "_NameOrCode":
        name, topic_id = topic
        if not by_id:
            return _NameOrCode(name, ErrorCode.NONE)
        found = self._coordinators.views.topic_by_id(self._coordinators.image, topic_id)
        if found is None:
            return _NameOrCode("", ErrorCode.UNKNOWN_TOPIC_ID)
        return _NameOrCode(found.name, ErrorCode.NONE)


_TopicKey = tuple[str, bytes]
"""The name and the id of a topic in a request."""


class _NameOrCode(NamedTuple):
    name: str
    code: ErrorCode


def _once(topics: Iterable[OffsetFetchRequestTopics]) -> Stepwise[dict[_TopicKey, dict[int, None]]]:
    """The topics and their partitions, without repetitions."""
    wanted: dict[_TopicKey, dict[int, None]] = {}
    for number, topic in enumerate(topics, 1):
        if not number % STEP:
            yield
        wanted.setdefault((topic.name, topic.topic_id), {}).update(dict.fromkeys(topic.partition_indexes))
    return wanted


class _OffsetsView(NamedTuple):
    """A group's offsets for one request."""

    offsets: Mapping[TopicPartition, OffsetCommitValue]
    unstable: frozenset[TopicPartition]
    """The partitions whose offset an open transaction has set, for a request that requires stable offsets."""
    ranges: WantedRanges | None
    """The wanted ranges of a request that asks for committed ranges; else None."""

    def partition(self, topic: str, index: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
        """The answer for one partition."""
        partition = TopicPartition(topic, index)
        if partition in self.unstable:
            code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        value = self.offsets.get(partition)
        if value is None or code is not ErrorCode.NONE:
            return OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=_NO_OFFSET, committed_leader_epoch=-1, error_code=code
            )
        committed_ranges, state_epoch = ((), UNKNOWN_STATE_EPOCH) if self.ranges is None else self.ranges.of(value)
        if committed_ranges is None:
            return OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=_NO_OFFSET,
                committed_leader_epoch=-1,
                error_code=ErrorCode.INVALID_REQUEST,
            )
        return OffsetFetchResponsePartitions(
            partition_index=index,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            committed_ranges=committed_ranges,
            state_epoch=state_epoch,
        )


def _all_topics(
    view: _OffsetsView, coordinators: GroupCoordinatorService
) -> Stepwise[tuple[OffsetFetchResponseTopics, ...]]:
    partitions: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for number, (name, index) in enumerate(tuple(view.offsets), 1):
        if not number % STEP:
            yield
        partitions.setdefault(name, []).append(view.partition(name, index, ErrorCode.NONE))
    return tuple(
        OffsetFetchResponseTopics(name=name, topic_id=topic.topic_id, partitions=tuple(found))
        for name, found in partitions.items()
        if (topic := coordinators.views.topic(coordinators.image, name)) is not None
    )


def _topic_as_before(
    topic: OffsetFetchResponseTopics, partitions: tuple[OffsetFetchResponsePartition, ...]
) -> OffsetFetchResponseTopic:
    """The topic in the form of versions before 8, which have one group."""
    return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)


def _partition_as_before(
    _: OffsetFetchResponseTopics, partition: OffsetFetchResponsePartitions
) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )


class OffsetDeleteHandler:
    """OffsetDelete (47): deletes a group's offsets in topics that no member subscribes to (KIP-496).

    A partition that does not exist gets error 3; a partition of a topic that a member subscribes to gets error 86.
    """

    def __init__(self, *, coordinators: GroupCoordinatorService) -> None:
        self._coordinators = coordinators

    def handle(self, request: OffsetDeleteRequest, context: RequestContext) -> Stepwise[None]:
        requested = yield from once(
            TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
        )
        is_there = yield from mapped(self._is_there, requested)
        there = tuple(compress(requested, is_there))

        def response(codes: tuple[ErrorCode, ...]) -> Stepwise[OffsetDeleteResponse]:
            return _response(request, dict(zip(there, codes, strict=True)))

        host = self._coordinators.host_of(request.group_id)
        command = DeleteOffsets(group_id=request.group_id, partitions=there)
        host.submit(command, context.answering(request, response))

    def _is_there(self, partition: TopicPartition) -> bool:
        topic = self._coordinators.views.topic(self._coordinators.image, partition.topic)
        return topic is not None and partition.partition in topic.partitions


def _response(request: OffsetDeleteRequest, codes: dict[TopicPartition, ErrorCode]) -> Stepwise[OffsetDeleteResponse]:
    topics = yield from mapped_in(
        request.topics,
        lambda topic: topic.partitions,
        lambda topic, each: OffsetDeleteResponsePartition(
            partition_index=each.partition_index,
            error_code=codes.get(
                TopicPartition(topic.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ),
        ),
        lambda topic, partitions: OffsetDeleteResponseTopic(name=topic.name, partitions=partitions),
    )
    return OffsetDeleteResponse(topics=topics)
