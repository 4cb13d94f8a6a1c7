"""OffsetCommit (8), OffsetFetch (9) and OffsetDelete (47): a group's progress.

OffsetCommit: v2-4 have a retention time of the offsets; v6 leader epochs; v7 static members; v9 error 69 for a missing
group, 22 before, and members of consumer groups; v10 topics by id. A missing topic or partition has an error of its own
(3, by id 100).
OffsetFetch: v2 null for all topics, and an error of the whole answer; v5 leader epochs; v7 require_stable: a partition
whose offset an open transaction has set is error 88, so that no consumer reads the records of that transaction again;
v8 many groups; v10 topics by id. "No offset" is -1 and no error.
A partition that a request names twice is answered once: 4 bytes of a request may cause 4 KiB of the answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from tailrace.coordinators.groups.commands import CommitOffsets, DeleteOffsets, OffsetToCommit
from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
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
from tailrace.server.errors import error_response
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.ports import Controller

_FIRST_COMMIT_WITH_MISSING_GROUP = 9
_FIRST_COMMIT_WITH_EPOCHS = 9
_FIRST_WITH_IDS = 10
_FIRST_FETCH_OF_MANY_GROUPS = 8

_NO_OFFSET = -1


class RequestedPartition(Protocol):
    """One partition of a request, with the offset to commit."""

    @property
    def partition_index(self) -> int: ...
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


class RequestedOffsets:
    """The offsets of a request: those that can be committed, and the error codes of the others.

    The last offset of a partition replaces the earlier ones of the same request.
    """

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, int], OffsetToCommit] = {}
        self._codes: list[list[ErrorCode | tuple[str, int]]] = []
        """By topic and partition: an error, or the key in `_offsets`."""

    @property
    def offsets(self) -> tuple[OffsetToCommit, ...]:
        """The offsets that can be committed."""
        return tuple(self._offsets.values())

    def add_topic(
        self, topic: TopicImage | None, partitions: Sequence[RequestedPartition], *, code_if_absent: ErrorCode
    ) -> None:
        """Add the partitions of the next topic; None: the topic does not exist."""
        self._codes.append([self._add(topic, partition, code_if_absent) for partition in partitions])

    def _add(
        self, topic: TopicImage | None, partition: RequestedPartition, code_if_absent: ErrorCode
    ) -> ErrorCode | tuple[str, int]:
        if topic is None:
            return code_if_absent
        if partition.partition_index not in topic.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        where = (topic.name, partition.partition_index)
        self._offsets[where] = OffsetToCommit(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
        )
        return where

    def codes(self, outcome: Sequence[ErrorCode] | ErrorCode) -> list[list[ErrorCode]]:
        """The codes by topic and partition. `outcome` has a code for each of `offsets`, or one for all."""
        of_offsets = [outcome] * len(self._offsets) if isinstance(outcome, ErrorCode) else outcome
        committed = dict(zip(self._offsets, of_offsets, strict=True))
        return [[code if isinstance(code, ErrorCode) else committed[code] for code in codes] for codes in self._codes]


class OffsetCommitHandler:
    """Answers when the offsets are committed."""

    def __init__(self, *, coordinators: GroupCoordinatorService, controller: Controller) -> None:
        self._coordinators = coordinators
        self._controller = controller

    def handle(self, request: OffsetCommitRequest, context: RequestContext) -> None:
        host = self._coordinators.host_of(request.group_id, check_limit=True)
        commit = _Commit(request, self._controller.image, context.api_version)

        def answer(outcome: tuple[ErrorCode, ...] | KafkaError) -> None:
            if isinstance(outcome, KafkaError):
                context.respond(commit.refused(_as_version_says(outcome, context.api_version)))
            else:
                context.respond(commit.response(outcome))

        host.submit(commit.command(), answer)


def _as_version_says(error: KafkaError, version: int) -> KafkaError:
    if error.code is ErrorCode.GROUP_ID_NOT_FOUND and version < _FIRST_COMMIT_WITH_MISSING_GROUP:
        return KafkaError(ErrorCode.ILLEGAL_GENERATION, error.detail)
    return error


class _Commit:
    """One request: its command and its response."""

    def __init__(self, request: OffsetCommitRequest, image: ClusterImage, version: int) -> None:
        self._request = request
        self._knows_epochs = version >= _FIRST_COMMIT_WITH_EPOCHS
        by_id = version >= _FIRST_WITH_IDS
        absent = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self._requested = RequestedOffsets()
        for topic in request.topics:
            found = _find_topic(image, topic.name, topic.topic_id, by_id=by_id)
            self._requested.add_topic(found, topic.partitions, code_if_absent=absent)

    def command(self) -> CommitOffsets:
        return CommitOffsets(
            group_id=self._request.group_id,
            generation_id=self._request.generation_id_or_member_epoch,
            member_id=self._request.member_id,
            group_instance_id=self._request.group_instance_id,
            knows_epochs=self._knows_epochs,
            retention_time_ms=self._request.retention_time_ms,
            offsets=self._requested.offsets,
        )

    def refused(self, error: KafkaError) -> OffsetCommitResponse:
        """All offsets are refused; missing topics and partitions have their own codes all the same, as in Kafka."""
        return self.response(error.code)

    def response(self, outcome: tuple[ErrorCode, ...] | ErrorCode) -> OffsetCommitResponse:
        """`outcome` has a code for each offset of the command, or one for all."""
        return OffsetCommitResponse(
            topics=tuple(
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                        for partition, code in zip(topic.partitions, codes, strict=True)
                    ),
                )
                for topic, codes in zip(self._request.topics, self._requested.codes(outcome), strict=True)
            )
        )


class OffsetFetchHandler:
    """Answers from the committed offsets."""

    def __init__(self, *, coordinators: GroupCoordinatorService, controller: Controller) -> None:
        self._coordinators = coordinators
        self._controller = controller

    def handle(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        if context.api_version >= _FIRST_FETCH_OF_MANY_GROUPS:
            by_id = context.api_version >= _FIRST_WITH_IDS
            return OffsetFetchResponse(
                groups=tuple(self._groups(request.groups, by_id=by_id, require_stable=request.require_stable))
            )
        topics = None
        if request.topics is not None:
            topics = tuple(
                OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
                for topic in request.topics
            )
        group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
        found = self._group(group, by_id=False, require_stable=request.require_stable)
        return OffsetFetchResponse(topics=tuple(map(_as_before, found.topics)))

    def _groups(
        self, groups: Iterable[OffsetFetchRequestGroup], *, by_id: bool, require_stable: bool
    ) -> Iterator[OffsetFetchResponseGroup]:
        """Each group once for all its topics and once for some: more forms would multiply the work."""
        answered: set[tuple[str, bool]] = set()
        for group in dict.fromkeys(groups):
            form = group.group_id, group.topics is None
            if form in answered:
                yield OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.INVALID_REQUEST)
            else:
                answered.add(form)
                yield self._group_or_error(group, by_id=by_id, require_stable=require_stable)

    def _group_or_error(
        self, group: OffsetFetchRequestGroup, *, by_id: bool, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        try:
            return self._group(group, by_id=by_id, require_stable=require_stable)
        except KafkaError as refusal:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=refusal.code)

    def _group(self, group: OffsetFetchRequestGroup, *, by_id: bool, require_stable: bool) -> OffsetFetchResponseGroup:
        machine = self._coordinators.host_of(group.group_id).machine
        machine.check_reader(group.group_id, group.member_id, group.member_epoch)
        view = _OffsetsView(
            machine.committed_offsets(group.group_id),
            machine.unstable_partitions(group.group_id) if require_stable else frozenset(),
        )
        if group.topics is None:
            topics = _all_topics(view, self._controller.image)
        else:
            topics = tuple(self._topic(topic, view, by_id=by_id) for topic in _once(group.topics))
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)

    def _topic(
        self, topic: OffsetFetchRequestTopics, view: "_OffsetsView", *, by_id: bool
    ) -> OffsetFetchResponseTopics:
        name, code = topic.name, ErrorCode.NONE
        if by_id:
            found = _find_topic(self._controller.image, "", topic.topic_id, by_id=True)
            name, code = ("", ErrorCode.UNKNOWN_TOPIC_ID) if found is None else (found.name, code)
        return OffsetFetchResponseTopics(
            name=name,
            topic_id=topic.topic_id,
            partitions=tuple(view.partition(name, index, code) for index in topic.partition_indexes),
        )


def _once(topics: Sequence[OffsetFetchRequestTopics]) -> Iterator[OffsetFetchRequestTopics]:
    """The topics and their partitions, each once."""
    wanted: dict[tuple[str, bytes], dict[int, None]] = {}
    for topic in topics:
        wanted.setdefault((topic.name, topic.topic_id), {}).update(dict.fromkeys(topic.partition_indexes))
    for (name, topic_id), indexes in wanted.items():
        yield OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=tuple(indexes))


def _find_topic(image: ClusterImage, name: str, topic_id: bytes, *, by_id: bool) -> TopicImage | None:
    return image.topic_by_id(TopicId(topic_id)) if by_id else image.topics.get(name)


class _OffsetsView(NamedTuple):
    """A group's offsets for one request."""

    offsets: Mapping[TopicPartition, OffsetCommitValue]
    unstable: frozenset[TopicPartition]
    """The partitions whose offset an open transaction has set, for a request that requires stable offsets."""

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
        return OffsetFetchResponsePartitions(
            partition_index=index,
            committed_offset=value.offset,
            committed_leader_epoch=value.leader_epoch,
            metadata=value.metadata,
        )


def _all_topics(view: _OffsetsView, image: ClusterImage) -> tuple[OffsetFetchResponseTopics, ...]:
    partitions: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for topic, index in view.offsets:
        if topic in image.topics:
            partitions.setdefault(topic, []).append(view.partition(topic, index, ErrorCode.NONE))
    return tuple(
        OffsetFetchResponseTopics(name=topic, topic_id=image.topics[topic].topic_id, partitions=tuple(found))
        for topic, found in partitions.items()
    )


def _as_before(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    """The topic in the form of versions before 8, which have one group."""
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=tuple(
            OffsetFetchResponsePartition(
                partition_index=partition.partition_index,
                committed_offset=partition.committed_offset,
                committed_leader_epoch=partition.committed_leader_epoch,
                metadata=partition.metadata,
                error_code=partition.error_code,
            )
            for partition in topic.partitions
        ),
    )


class OffsetDeleteHandler:
    """OffsetDelete (47): deletes a group's offsets in topics that no member subscribes to (KIP-496).

    A partition that does not exist has error 3, one of a topic that a member subscribes to error 86.
    """

    def __init__(self, *, coordinators: GroupCoordinatorService, controller: Controller) -> None:
        self._coordinators = coordinators
        self._controller = controller

    def handle(self, request: OffsetDeleteRequest, context: RequestContext) -> None:
        image = self._controller.image
        requested = dict.fromkeys(
            TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
        )
        there = tuple(partition for partition in requested if image.partition(*partition) is not None)

        def answer(outcome: tuple[ErrorCode, ...] | KafkaError) -> None:
            if isinstance(outcome, KafkaError):
                context.respond(error_response(request, context.api_version, outcome))
            else:
                context.respond(_response(request, dict(zip(there, outcome, strict=True))))

        host = self._coordinators.host_of(request.group_id)
        host.submit(DeleteOffsets(group_id=request.group_id, partitions=there), answer)


def _response(request: OffsetDeleteRequest, codes: dict[TopicPartition, ErrorCode]) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=codes.get(
                            TopicPartition(topic.name, each.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )
