"""A keyed consumer in a group of Apache Kafka: the same code commits the lowest offset that is not done."""

import threading
from collections.abc import Iterator

import pytest

from interop.differential.apache import ApacheKafka
from interop.kafka_tools import absent
from tailrace.client.blocking import Admin, KeyedConsumer, KeyedRecord, Producer, Retry
from tailrace.client.keyed.outcomes import Outcome
from tailrace.model.partitions import TopicPartition

pytestmark = pytest.mark.interop

RECORDS, KEYS = 60, 6
STUCK = 20
"""The offset of the record that is not done in the first run."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """The address of a broker that is its own controller."""
    if why := absent():
        pytest.skip(why)
    settings = {"node.id": "1", "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"}
    with ApacheKafka(settings) as broker:
        yield broker.address


def test_a_restart_repeats_what_was_done_behind_the_lowest_offset_that_was_not(kafka: str) -> None:
    topic, group = "orders", "shipping"
    with Admin(kafka) as admin, Producer(kafka) as producer:
        admin.create_topics({topic: 1})
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, key=b"%d" % (number % KEYS))
    lock = threading.Lock()
    done: list[set[int]] = [set(), set()]
    later = {offset for offset in range(STUCK, RECORDS) if offset % KEYS == STUCK % KEYS}
    """Offsets of the key that is held."""
    wanted = [RECORDS - len(later), RECORDS - STUCK]
    for run in range(2):
        consumer = KeyedConsumer(kafka, group=group, topics=[topic])

        def handle(record: KeyedRecord, run: int = run, consumer: KeyedConsumer = consumer) -> Outcome | None:
            if run == 0 and record.offset == STUCK:
                return Retry(3_600)
            with lock:
                done[run].add(record.offset)
                if len(done[run]) == wanted[run]:
                    consumer.stop()
            return None

        consumer.run(handle, concurrency=4)
        assert consumer.metrics().ranges == {}
        consumer.close()
        with Admin(kafka) as admin:
            committed = admin.group_offsets(group)[TopicPartition(topic, 0)].offset
        assert committed == (STUCK, RECORDS)[run]
    assert done == [set(range(RECORDS)) - later, set(range(STUCK, RECORDS))]
