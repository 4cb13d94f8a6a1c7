"""A transactional producer, librdkafka through confluent-kafka, in its own process.

`python -m benchmarks.loads.transactions BOOTSTRAP TOPIC RECORD_BYTES PER_TRANSACTION TRANSACTIONS PARTITIONS` prints
the seconds from the begin of the first transaction to the answer to the last commit. One more transaction before them
is not measured. The records of each transaction are distributed over all partitions of the topic.
"""

import sys
import time

import confluent_kafka

from benchmarks.peers.peer import touch_pages

TIMEOUT_S = 60


def produce(
    bootstrap: str, topic: str, record_bytes: int, per_transaction: int, transactions: int, partitions: int
) -> float:
    """The seconds for this number of transactions, one after the other."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": topic,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    producer.list_topics(topic, timeout=TIMEOUT_S)
    producer.init_transactions(TIMEOUT_S)
    share = [{"value": bytes(record_bytes)}] * (per_transaction // partitions)
    touch_pages(2 * record_bytes * per_transaction * transactions // 1_000_000)
    began = 0.0
    for number in range(transactions + 1):
        if number == 1:
            began = time.perf_counter()
        producer.begin_transaction()
        for partition in range(partitions):
            if producer.produce_batch(topic, share, partition=partition) < len(share):
                raise SystemExit("the client's queue is full: give it more room")
        producer.commit_transaction(TIMEOUT_S)
    return time.perf_counter() - began


if __name__ == "__main__":
    bootstrap, topic, *numbers = sys.argv[1:]
    print(produce(bootstrap, topic, *map(int, numbers)))
