"""DescribeTopicPartitions (75): topics by name, page by page (KIP-966).

A page has at most `response_partition_limit` partitions, and never more than 2,000 partitions
(max.request.partition.size.limit); the cursor of the answer is the start of the next page. A topic that is deleted
between two pages is left out, unless the request names the topic. A view of a topic (decision 0057) is described if the
request names the view.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.metadata.views import ViewImage, Views
from tailrace.model.access import Operation
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, ZERO_TOPIC_ID, BrokerId
from tailrace.model.partitions import INTERNAL_TOPICS, PartitionState, TopicPartition, topic_name_fault
from tailrace.protocol.access import topic_resource
from tailrace.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from tailrace.server.context import RequestContext
from tailrace.server.metadata.cluster import reachable_brokers
from tailrace.server.metadata.metadata import OfflineReplica, describable, operations_on_topic
from tailrace.server.ports import Controller
from tailrace.server.slices import STEP, Stepwise, once

MAX_PARTITIONS: Final = 2_000


class DescribeTopicPartitionsHandler:
    """Describes topics."""

    def __init__(self, *, controller: Controller, offline_replica: OfflineReplica, views: Views) -> None:
        self._controller = controller
        self._views = views
        self._offline_replica = offline_replica

    def handle(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> Stepwise[DescribeTopicPartitionsResponse]:
        image = self._controller.image
        cursor = request.cursor
        named = yield from once(topic.name for topic in request.topics)
        if cursor is not None:
            _check_cursor(cursor, named)
        shown: Iterable[str] = named or image.topics
        if not named and context.has_authorizer:
            shown = [topic.name for topic in (yield from describable(image.topics.values(), context))]
        names = sorted(shown)
        if cursor is not None:
            names = names[bisect_left(names, cursor.topic_name) :]
        limit = max(min(request.response_partition_limit, MAX_PARTITIONS), 1)
        page = _Page(image, self._views, context, limit, self._offline_replica)
        next_cursor = yield from page.fill(names, cursor)
        return DescribeTopicPartitionsResponse(topics=tuple(page.topics), next_cursor=next_cursor)


def _check_cursor(cursor: Cursor, named: Collection[str]) -> None:
    if named and cursor.topic_name not in named:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the cursor's topic {cursor.topic_name!r} is not in the request")
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a cursor cannot stand at partition {cursor.partition_index}")


class _Page:
    """A page that is being filled."""

    def __init__(
        self, image: ClusterImage, views: Views, context: RequestContext, limit: int, offline_replica: OfflineReplica
    ) -> None:
        self.topics: list[DescribeTopicPartitionsResponseTopic] = []
        self._image = image
        self._views = views
        self._left = limit
        self._offline_replica = offline_replica
        self._context = context
        self._reachable = reachable_brokers(image, context.identity.listener_name)

    def fill(self, names: Sequence[str], cursor: Cursor | None) -> Stepwise[Cursor | None]:
        """Add topics until the page is full; returns the start of the next page, None after the last page."""
        for number, name in enumerate(names, 1):
            if not number % STEP:
                yield
            if self._left <= 0:
                return Cursor(topic_name=name, partition_index=0)
            topic = self._views.topic(self._image, name)
            if not self._context.permits(Operation.DESCRIBE, topic_resource(name)):
                self._put_error(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            if topic is None:
                is_legal = topic_name_fault(name) is None
                missing, illegal = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION
                self._put_error(name, missing if is_legal else illegal)
                continue
            first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            behind = self._put(topic, first)
            if behind is not None:
                return Cursor(topic_name=name, partition_index=behind)
        return None

    def _put(self, topic: TopicImage, first: int) -> int | None:
        """Add the topic from this partition on; returns the first partition that does not fit."""
        numbers = sorted(number for number in topic.partitions if number >= first)
        here = numbers[: self._left]
        self._left -= len(here)
        self.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.name in INTERNAL_TOPICS,
                partitions=tuple(
                    self._partition(topic.stored_as(number), number, topic.partitions[number]) for number in here
                ),
                topic_authorized_operations=operations_on_topic(
                    topic.name, self._context, is_view=isinstance(topic, ViewImage)
                ),
            )
        )
        return numbers[len(here)] if len(here) < len(numbers) else None

    def _put_error(self, name: str, code: ErrorCode) -> None:
        self.topics.append(
            DescribeTopicPartitionsResponseTopic(
                error_code=code,
                name=name,
                topic_id=ZERO_TOPIC_ID,
                partitions=(),
                topic_authorized_operations=operations_on_topic(name, self._context),
            )
        )

    def _partition(
        self, stored: TopicPartition, number: int, state: PartitionState
    ) -> DescribeTopicPartitionsResponsePartition:
        offline = self._offline_replica(*stored)
        leader_is_reachable = state.leader in self._reachable and state.leader != offline
        return DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE if leader_is_reachable else self._leader_error(state, offline),
            partition_index=number,
            leader_id=state.leader if leader_is_reachable else NO_LEADER,
            leader_epoch=state.leader_epoch,
            replica_nodes=state.replicas,
            isr_nodes=state.in_sync_replicas,
            eligible_leader_replicas=state.eligible_leader_replicas,
            last_known_elr=state.last_known_leaders,
            offline_replicas=tuple(
                replica for replica in state.replicas if replica not in self._reachable or replica == offline
            ),
        )

    def _leader_error(self, state: PartitionState, offline: BrokerId | None) -> ErrorCode:
        leader = self._image.brokers.get(state.leader)
        is_elsewhere = state.leader != offline and leader is not None and not leader.fenced
        return ErrorCode.LISTENER_NOT_FOUND if is_elsewhere else ErrorCode.LEADER_NOT_AVAILABLE
