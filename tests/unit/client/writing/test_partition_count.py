"""The number of partitions that a producer assumes for a topic, while the cluster answers and while it does not."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from tailrace.client import producer
from tailrace.client.producer import AsyncProducer
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC = "orders"
NO_LEADER = -1

Answer = MetadataResponse | KafkaError
OUTAGE = KafkaError(ErrorCode.NETWORK_EXCEPTION, "no broker is there")


def _described(*leaders: int) -> MetadataResponse:
    partitions = tuple(
        MetadataResponsePartition(
            partition_index=number, leader_id=leader, leader_epoch=0, replica_nodes=(1,), isr_nodes=(1,)
        )
        for number, leader in enumerate(leaders)
    )
    return _response(MetadataResponseTopic(name=TOPIC, topic_id=b"1" * 16, partitions=partitions))


def _refused(code: ErrorCode) -> MetadataResponse:
    return _response(MetadataResponseTopic(name=TOPIC, error_code=code, partitions=()))


def _response(topic: MetadataResponseTopic) -> MetadataResponse:
    broker = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=1)
    return MetadataResponse(brokers=(broker,), controller_id=1, topics=(topic,))


def _counts(
    monkeypatch: pytest.MonkeyPatch, answers: Iterable[Answer], questions: int, *, unknown_wait_ms: int = 50
) -> list[int]:
    """The results of several calls of partition_count, with these answers of the cluster; the last one repeats."""
    script = list(answers)

    async def refresh(self: Router, *_: Any, **__: Any) -> None:
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, KafkaError):
            raise answer
        self.view.update(answer, self.now_ms())

    async def run() -> list[int]:
        async with AsyncProducer("127.0.0.1:1", max_block_ms=20_000) as client:
            return [await client.partition_count(TOPIC) for _ in range(questions)]

    monkeypatch.setattr(Router, "refresh", refresh)
    monkeypatch.setattr(producer, "UNKNOWN_TOPIC_WAIT_MS", unknown_wait_ms)
    return asyncio.run(run())


def test_a_partition_without_a_leader_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _counts(monkeypatch, [_described(1, NO_LEADER, 1)], 1) == [3]


def test_known_facts_are_reported_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records wait for the cluster for delivery.timeout.ms; a count of partitions need not."""
    assert _counts(monkeypatch, [_described(1, 1), OUTAGE], 3) == [2, 2, 2]


def test_changes_are_reported_with_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _counts(monkeypatch, [_described(1, 1), OUTAGE, _described(1, 1, 1)], 3) == [2, 2, 3]


@pytest.mark.parametrize("fault", [OUTAGE, _refused(ErrorCode.LEADER_NOT_AVAILABLE)])
def test_a_topic_without_a_description_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch, fault: Answer) -> None:
    """For max.block.ms, and not only as long as a topic may be unknown."""
    assert _counts(monkeypatch, [fault, fault, _described(1, 1)], 1) == [2]


def test_a_topic_that_does_not_exist_is_not_waited_for_that_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic's name is probably misspelt."""
    answers: list[Answer] = [OUTAGE, _refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    with pytest.raises(KafkaError, match="does not exist"):
        _counts(monkeypatch, answers, 1)


def test_a_topic_that_is_being_created_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [_refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * 2 + [_described(1)]
    assert _counts(monkeypatch, answers, 1, unknown_wait_ms=20_000) == [1]
