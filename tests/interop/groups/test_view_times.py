"""Clients that know no views ask a view for offsets by time, and read up to a time."""

from collections.abc import Callable, Mapping
from uuid import uuid4

import kafka
import pytest

from interop.librdkafka import librdkafka
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin, Producer
from tailrace.model.key_ranges import contains, hash_of
from tailrace.model.views import key_range_of
from tailrace.testing import Cluster

FAN_OUT = 16
FIRST_MS = 1_700_000_000_000
KEYS = [b"key-%d" % number for number in range(40)]
RECORDS = [(FIRST_MS + 100 * number, KEYS[number * 7 % len(KEYS)]) for number in range(400)]

Times = Mapping[int, int]
"""By partition of the view, a time or an offset."""


def by_confluent(bootstrap: str, view: str, times: Times) -> Times:
    found: Times = librdkafka().Reader().offsets_for_times(bootstrap, view, dict(times))
    return found


def by_kafka_python(bootstrap: str, view: str, times: Times) -> Times:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","))
    try:
        asked = {kafka.TopicPartition(view, number): time for number, time in times.items()}
        found = consumer.offsets_for_times(asked)
        return {partition.partition: -1 if at is None else at.offset for partition, at in found.items()}
    finally:
        consumer.close()


@pytest.mark.interop
@pytest.mark.parametrize("ask", [by_confluent, by_kafka_python], ids=["confluent", "kafka-python"])
def test_a_time_leads_to_the_first_record_of_the_view_partition(
    tailrace_cluster: Cluster, ask: Callable[[str, str, Times], Times]
) -> None:
    bootstrap, topic = tailrace_cluster.bootstrap_servers, f"times-{uuid4()}"
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name=topic, partitions=1)])
    with Producer(bootstrap, linger_ms=2) as producer:
        for time, key in RECORDS:
            producer.send(topic, b"value", key=key, timestamp=time)
        producer.flush()
    own = {
        number: [
            (time, offset)
            for offset, (time, key) in enumerate(RECORDS)
            if contains([key_range_of(number, FAN_OUT)], hash_of(key, offset))
        ]
        for number in range(FAN_OUT)
    }
    for time in (FIRST_MS, FIRST_MS + 12_345, FIRST_MS + 39_000, FIRST_MS + 39_900, FIRST_MS + 40_000):
        found = ask(bootstrap, f"{topic}.shared-{FAN_OUT}", dict.fromkeys(range(FAN_OUT), time))
        for number, records in own.items():
            expected = [offset for recorded, offset in records if recorded >= time]
            # librdkafka says -1 for the end, which is where a reader without such a record begins.
            assert found[number] == (expected[0] if expected else -1), (number, time)
