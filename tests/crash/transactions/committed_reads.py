"""Reads of committed data by librdkafka, for tests of transactions."""

import time
from collections.abc import Iterable
from contextlib import suppress

import confluent_kafka

from tailrace.model.partitions import TopicPartition

PATIENCE_S = 60.0


def _consumer(bootstrap: str, isolation: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def committed_values(bootstrap: str, place: TopicPartition) -> list[bytes]:
    """The committed records of a partition, up to its last stable offset."""
    consumer = _consumer(bootstrap, "read_committed")
    partition = confluent_kafka.TopicPartition(place.topic, place.partition, 0)
    found: list[bytes] = []
    try:
        _, end_offset = consumer.get_watermark_offsets(partition, PATIENCE_S)
        consumer.assign([partition])
        deadline = time.monotonic() + PATIENCE_S
        while (
            end_offset and consumer.position([partition])[0].offset < end_offset
        ):  # an empty partition has no position
            assert time.monotonic() < deadline, f"{place} cannot be read to its stable end {end_offset}"
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.value())
    finally:
        consumer.close()
    return found


def is_nothing_open(bootstrap: str, places: Iterable[TopicPartition]) -> bool:
    """Whether no transaction is open in these partitions; False if that cannot be seen now."""
    ends = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = _consumer(bootstrap, isolation)
        with suppress(confluent_kafka.KafkaException):
            where = [confluent_kafka.TopicPartition(*place) for place in places]
            ends.append([consumer.get_watermark_offsets(each, PATIENCE_S)[1] for each in where])
        consumer.close()
    return len(ends) == 2 and ends[0] == ends[1]
