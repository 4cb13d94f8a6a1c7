"""Eight librdkafka consumers that share the partitions of a topic, or of a view, in a process of their own.

`python -m benchmarks.loads.view_readers BOOTSTRAP TOPIC PARTITIONS COUNT` reads all records for each line on stdin, so
many records, and prints as JSON the records and the megabytes of their values.
"""

import json
import sys
import threading
import time
from typing import Any

import confluent_kafka

READERS = 8
_CHUNK = 2_000
_MOST_S = 120


class Pass:
    """Reads all records once."""

    def __init__(self, topic: str, partitions: int, count: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._count = count
        self._lock = threading.Lock()
        self._deadline = time.monotonic() + _MOST_S
        self.records = self.value_bytes = 0

    def run(self, consumers: list[Any]) -> None:
        threads = [
            threading.Thread(target=self._read, args=(number, consumer)) for number, consumer in enumerate(consumers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _read(self, number: int, consumer: Any) -> None:
        mine = range(number, self._partitions, READERS)
        consumer.assign([confluent_kafka.TopicPartition(self._topic, partition, 0) for partition in mine])
        while self.records < self._count and time.monotonic() < self._deadline:
            messages = [message for message in consumer.consume(_CHUNK, 0.1) if message.error() is None]
            with self._lock:
                self.records += len(messages)
                self.value_bytes += sum(len(message.value()) for message in messages)
        consumer.unassign()


def main() -> None:
    bootstrap, topic, partitions, count = sys.argv[1:]
    settings = {"bootstrap.servers": bootstrap, "group.id": "views", "enable.auto.commit": False}
    consumers = [confluent_kafka.Consumer(settings) for _ in range(READERS)]
    for _ in sys.stdin:
        made = Pass(topic, int(partitions), int(count))
        made.run(consumers)
        print(json.dumps({"records": made.records, "megabytes": made.value_bytes / 1e6}), flush=True)
    for consumer in consumers:
        consumer.close()


if __name__ == "__main__":
    main()
