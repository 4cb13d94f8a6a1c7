"""Offsets from several leaders, of which some do not answer. The nodes here are scripted."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.offsets import EARLIEST, OffsetAt, list_offsets, request_offsets
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from testkit.clients.metadata_answers import metadata_of

GOOD, SILENT, HEADLESS = (TopicPartition(topic, 0) for topic in ("good", "silent", "headless"))
SPECS = dict.fromkeys((SILENT, HEADLESS, GOOD), EARLIEST)


class HalfReachableRouter(Router):
    """The topic "good" is led by node 1, "silent" by node 2, which cannot be reached at first, "headless" by none."""

    def __init__(self) -> None:
        super().__init__(ClientSettings("127.0.0.1:1", retry_backoff_ms=1))
        self._has_answered = True
        self.asked: list[int] = []
        self._leaders = {GOOD: 1, SILENT: 2, HEADLESS: -1}
        self._refusals = 2

    async def refresh(self, topics: object, **_: object) -> None:
        asked = {
            partition: leader
            for partition, leader in self._leaders.items()
            if partition.topic in cast(list[str], topics)
        }
        self.view.update(metadata_of(asked), self.now_ms())

    async def broker_connection(self, broker: BrokerAddress, use: str = "") -> Connection:
        self.asked.append(broker.node_id)
        if broker.node_id == 2 and self._refusals:
            self._refusals -= 1
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"node {broker.node_id} is gone")
        return cast(Connection, _Answering())


class _Answering:
    address = "h:1"

    def version_of(self, _: object) -> int:
        return 7

    async def ask(self, request: ListOffsetsRequest, response_type: type[Any], **_: object) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=5, timestamp=-1)
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )


async def test_the_answer_of_one_leader_is_used_although_others_fail() -> None:
    router = HalfReachableRouter()
    found: dict[TopicPartition, OffsetAt] = {}

    def take(answer: Mapping[TopicPartition, OffsetAt]) -> None:
        found.update(answer)

    faults = await request_offsets(router, SPECS, take)
    assert {partition: at.offset for partition, at in found.items()} == {GOOD: 5}
    assert {partition: fault.code for partition, fault in faults.items()} == {
        HEADLESS: ErrorCode.LEADER_NOT_AVAILABLE,
        SILENT: ErrorCode.NETWORK_EXCEPTION,
    }


async def test_only_missing_offsets_are_requested_again_and_refused_topics_are_refreshed() -> None:
    router = HalfReachableRouter()
    with pytest.raises(KafkaError):
        await list_offsets(router, SPECS, timeout_ms=0)
    assert sorted(router.view.needs_refresh([name for name, _ in SPECS], router.now_ms())) == ["headless", "silent"]
    assert router.asked.count(1) == 1

    router.asked.clear()
    found = await list_offsets(router, dict.fromkeys((SILENT, GOOD), EARLIEST))
    assert {partition: at.offset for partition, at in found.items()} == {SILENT: 5, GOOD: 5}
    assert sorted(router.asked) == [1, 2, 2]
