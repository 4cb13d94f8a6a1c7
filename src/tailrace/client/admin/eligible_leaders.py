"""The replicas that may lead a partition although out of sync (KIP-966)."""

from typing import NamedTuple

from tailrace.client.names import Names, several
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    TopicRequest,
)


class EligibleLeaders(NamedTuple):
    """The replicas that may lead one partition without loss while none is in sync."""

    replicas: tuple[BrokerId, ...]
    """The eligible leaders; *Elr* in Kafka's tools."""
    last_known: tuple[BrokerId, ...]
    """The last leader, once no replica is in sync or eligible; Kafka's LastKnownElr."""


async def describe_eligible_leaders(router: Router, topics: Names) -> dict[TopicPartition, EligibleLeaders]:
    """The eligible leaders of all partitions of these topics.

    A partition that the cluster does not report is left out, without an error: Kafka before 3.8 reports no partition. A
    topic that does not exist, or that this user may not describe, is left out too.
    """
    wanted = tuple(TopicRequest(name=name) for name in sorted(set(several(topics))))
    if not wanted:
        return {}  # a request without topics would mean all

    async def attempt() -> dict[TopicPartition, EligibleLeaders]:
        connection = await router.any_connection()
        found: dict[TopicPartition, EligibleLeaders] = {}
        if not connection.offers(DescribeTopicPartitionsRequest):
            return found
        cursor: Cursor | None = None
        while True:
            response = await router.ask(
                connection,
                DescribeTopicPartitionsRequest(topics=wanted, cursor=cursor),
                DescribeTopicPartitionsResponse,
            )
            for topic in response.topics:
                for partition in topic.partitions:
                    eligible = _eligible_leaders(partition)
                    if eligible is not None and topic.name is not None:
                        found[TopicPartition(topic.name, partition.partition_index)] = eligible
            if response.next_cursor is None:
                return found
            _check_advanced(cursor, response.next_cursor)
            cursor = response.next_cursor

    return await router.retry(attempt)


def _eligible_leaders(partition: DescribeTopicPartitionsResponsePartition) -> EligibleLeaders | None:
    if partition.eligible_leader_replicas is None or partition.last_known_elr is None:
        return None
    return EligibleLeaders(
        replicas=tuple(map(BrokerId, partition.eligible_leader_replicas)),
        last_known=tuple(map(BrokerId, partition.last_known_elr)),
    )


def _check_advanced(before: Cursor | None, after: Cursor) -> None:
    """Raise KafkaError for a page that ends where it began: the pages would never end."""
    if before is not None and (after.topic_name, after.partition_index) <= (before.topic_name, before.partition_index):
        place = f"{after.topic_name}-{after.partition_index}"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the description of topics does not go on behind {place}")
