"""Requests of producers for the partitions of a topic, and the errors in their answers."""

from typing import Any

from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.server.ports import Buffer
from testkit.nodes.data_path import DataPath, Exchange, batch_of
from testkit.nodes.ports import DeferredDisk


def to_topic(name: str, *parts: tuple[int, Buffer | None]) -> TopicProduceData:
    """The part of a request for one topic: (partition, records)."""
    data = tuple(PartitionProduceData(index=index, records=records) for index, records in parts)
    return TopicProduceData(name=name, partition_data=data)


def request_of(*topics: TopicProduceData, acks: int = -1, timeout_ms: int = 1000, **options: Any) -> ProduceRequest:
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics, **options)


def codes_of(exchange: Exchange) -> list[int]:
    """The errors of the only topic of an answer."""
    (topic,) = exchange.response.responses
    return [answer.error_code for answer in topic.partition_responses]


def flush(node: DataPath, disk: DeferredDisk) -> None:
    disk.run()
    node.end_turn()


def transactional_batch(sequence: int, *values: bytes, **options: Any) -> bytes:
    """A batch of producer 7; its only record has the value `a` unless `values` are given."""
    options |= {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence, "is_transactional": True}
    return batch_of(*(values or (b"a",)), **options)
