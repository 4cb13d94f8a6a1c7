"""Preparation of scripts: existing topics, batches to send, and the requests that make and fill them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from interop.differential.script import Answers, Ask, Build, Script, ask
from tailrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tailrace.protocol.records.record import Record, build_batch

NOW_MS = 1_700_000_000_000
"""The time in all records that are sent, so that each run sends the same."""
LIMIT_MS = 10_000
"""`timeout_ms` of requests that have the field."""


def records(count: int, *, first_ms: int = NOW_MS, key: bytes | None = b"key", bytes_each: int = 0) -> list[Record]:
    """Records one ms after the other; each value tells its place."""
    return [
        Record(0, first_ms + at, key, f"value {at}".encode().ljust(bytes_each, b"."), (("header", b"h"),))
        for at in range(count)
    ]


def batch(count: int = 1, **settings: Any) -> bytes:
    """A batch of `records(count)`; settings as of `build_batch`."""
    return bytes(build_batch(records(count), **settings))


def produce(
    topic: str, data: bytes | None, *, partition: int = 0, acks: int = -1, transactional_id: str | None = None
) -> Build:
    """A Produce of one partition, by name and, where the version has no name, by id."""

    def build(answers: Answers) -> ProduceRequest:
        return ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=LIMIT_MS,
            topic_data=(
                TopicProduceData(
                    name=topic,
                    topic_id=answers.topic_ids.get(topic, b"no such topic id"),
                    partition_data=(PartitionProduceData(index=partition, records=data),),
                ),
            ),
        )

    return build


def created(name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Script:
    """A topic is made, and both nodes lead its partitions; its id is known."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()),
    )
    yield from ask(f"create {name}", CreateTopicsRequest(topics=(topic,), timeout_ms=LIMIT_MS))
    yield from known(name, partitions)


def known(name: str, partitions: int = 1) -> Script:
    """Both nodes show the topic and lead its partitions."""
    shown = MetadataRequest(topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False)
    yield from ask(f"{name} is shown", shown, until=lambda a: len(a.topics[0].partitions) == partitions)
    yield from ask(f"{name} is led", ends(name, range(partitions)), until=_no_partition_has_an_error)


def gone(name: str) -> Script:
    """Neither node knows the topic."""
    shown = MetadataRequest(topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False)
    yield from ask(f"{name} is shown no more", shown, until=lambda answer: answer.topics[0].error_code != 0)


def ends(name: str, partitions: Sequence[int], timestamp: int = -1) -> ListOffsetsRequest:
    """ListOffsets of these partitions."""
    asked = tuple(ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in partitions)
    return ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=name, partitions=asked),))


def _no_partition_has_an_error(answer: Any) -> bool:
    return all(partition.error_code == 0 for topic in answer.topics for partition in topic.partitions)


def filled(name: str, *batches: bytes, partition: int = 0) -> Iterator[Ask]:
    """Append these batches."""
    for number, data in enumerate(batches):
        yield from ask(f"fill {name}-{partition} with batch {number}", produce(name, data, partition=partition), 9)
