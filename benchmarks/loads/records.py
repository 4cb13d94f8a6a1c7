"""The client's side of a measurement: librdkafka through confluent-kafka, in its own process.

`python -m benchmarks.loads.records produce|consume BOOTSTRAP TOPIC RECORD_BYTES COUNT TOPICS PARTITIONS` prints the
seconds it took. The topics are TOPIC-0, TOPIC-1, ... with so many partitions per topic; every topic gets the same
number of records.
"""

import sys
import time

import confluent_kafka

from benchmarks.peers.peer import touch_pages

CHUNK = 625


def produce(bootstrap: str, topic: str, record_bytes: int, count: int, topics: int, partitions: int) -> float:
    """The seconds from the call for the first record to the acknowledgement of the last record."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    names = [f"{topic}-{number}" for number in range(topics)]
    for name in names:
        producer.list_topics(name, timeout=10)
    touch_pages(2 * record_bytes * count // 1_000_000)  # the last step: what is free for long, the host takes back
    value = bytes(range(256)) * (record_bytes // 256 + 1)
    chunk = [{"value": value[:record_bytes]}] * CHUNK
    targets = [(name, partition) for partition in range(partitions) for name in names]
    began = time.perf_counter()
    for number in range(count // CHUNK):
        name, partition = targets[number % len(targets)]
        if producer.produce_batch(name, chunk, partition=partition) < CHUNK:
            raise SystemExit("the client's queue is full: give it more room")
        while len(producer) > 800_000:
            producer.poll(0.01)
    if producer.flush(120):
        raise SystemExit("not everything was acknowledged within two minutes")
    return time.perf_counter() - began


def consume(bootstrap: str, topic: str, record_bytes: int, count: int, topics: int, partitions: int) -> float:
    """The seconds from the assignment to the last of `count` records."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 1_048_576,
            "queued.min.messages": 1_000_000,
            # A server that fills the default 64 MB of records that wait for the application gets no fetch for a second
            # (fetch.queue.backoff.ms): that would slow down the fast servers only.
            "queued.max.messages.kbytes": 1_000_000,
            "auto.offset.reset": "earliest",
            "check.crcs": False,
        }
    )
    began = time.perf_counter()
    consumer.assign(
        [confluent_kafka.TopicPartition(f"{topic}-{t}", p, 0) for t in range(topics) for p in range(partitions)]
    )
    read = 0
    while read < count:
        messages = consumer.consume(CHUNK, timeout=30)
        if not messages:
            raise SystemExit(f"no record for 30 s after {read} of {count}")
        read += len(messages)
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds


if __name__ == "__main__":
    name, bootstrap, topic, *numbers = sys.argv[1:]
    run = {"produce": produce, "consume": consume}[name]
    print(run(bootstrap, topic, *map(int, numbers)))
