"""A consumer with or without a rack: librdkafka through confluent-kafka, in its own process.

`python -m benchmarks.loads.racks BOOTSTRAP TOPIC PARTITIONS COUNT RACK` reads so many records from the beginning, and
prints the bytes received from each broker as JSON, by librdkafka's own statistics. An empty RACK: no rack.
"""

import json
import sys
import time

import confluent_kafka

_CHUNK = 1_000
_STATISTICS_MS = 200
_PATIENCE_S = 60


def consume(bootstrap: str, topic: str, partitions: int, count: int, rack: str) -> dict[int, int]:
    """The bytes received from each broker, of all kinds of answers, by the first statistics after the last record."""
    statistics: list[str] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "client.rack": rack,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "statistics.interval.ms": _STATISTICS_MS,
            "stats_cb": statistics.append,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    read = 0
    while read < count:
        messages = consumer.consume(min(_CHUNK, count - read), timeout=_PATIENCE_S)
        if not messages:
            raise SystemExit(f"no record for {_PATIENCE_S} s after {read} of {count}")
        read += sum(message.error() is None for message in messages)
    statistics.clear()
    deadline = time.monotonic() + _PATIENCE_S
    while not statistics and time.monotonic() < deadline:
        consumer.poll(_STATISTICS_MS / 1000)
    consumer.close()
    return received_bytes(statistics[-1])


def received_bytes(statistics: str) -> dict[int, int]:
    """The bytes by broker. Connections to the bootstrap addresses have no broker id: their key is -1."""
    found: dict[int, int] = {}
    for broker in json.loads(statistics)["brokers"].values():
        found[broker["nodeid"]] = found.get(broker["nodeid"], 0) + broker["rxbytes"]
    return found


if __name__ == "__main__":
    bootstrap, topic, partitions, count, rack = sys.argv[1:]
    print(json.dumps(consume(bootstrap, topic, int(partitions), int(count), rack)))
