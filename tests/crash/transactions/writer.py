"""A writer of transactions by librdkafka, in a thread, while nodes die."""

import threading

import confluent_kafka

from crash.program import next_instance

TOPICS = ("left", "right")
PATIENCE_S = 60.0
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
}


class TransactionWriter:
    """Transactions over two topics, one after the other: each says its number in both."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.committed: list[int] = []
        """The acknowledged values, in order."""
        self.aborted: set[int] = set()
        """The values that were aborted on purpose."""
        self.faults: list[BaseException] = []
        self.number = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive(), "the producer hangs"

    def _write(self) -> None:
        try:
            producer = self.new_producer()
            while not self._is_over.is_set():
                self.number += 1
                try:
                    self._transaction(producer, self.number)
                except confluent_kafka.KafkaException:
                    producer = self.new_producer()  # what has become of it is not known: a new instance finds out
        except BaseException as fault:  # noqa: BLE001 - the test shows it
            self.faults.append(fault)

    def has_ended_or_reached(self, count: int) -> bool:
        """Whether so many transactions are committed, or the thread has ended with a fault."""
        return bool(self.faults) or len(self.committed) >= count

    def new_producer(self) -> confluent_kafka.Producer:
        """The next instance, which fences the one before."""
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": "writer", "log_level": 0}
        return next_instance(settings)

    def _transaction(self, producer: confluent_kafka.Producer, number: int) -> None:
        producer.begin_transaction()
        self.produce(producer, number)
        if number % 5 == 0:
            producer.flush(10)
            self.aborted.add(number)
            producer.abort_transaction(10)
        else:
            producer.commit_transaction(10)
            self.committed.append(number)

    def produce(self, producer: confluent_kafka.Producer, number: int) -> None:
        """The records of a transaction."""
        for topic in TOPICS:
            producer.produce(topic, str(number).encode())
