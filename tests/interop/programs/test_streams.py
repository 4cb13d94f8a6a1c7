"""Kafka Streams counts exactly once on three nodes, while itself and two of the nodes are killed."""

from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException

from benchmarks.downloads.kafka_jars import programs_absent
from crash.transactions.committed_reads import committed_values
from interop.librdkafka import Confluent, Message
from interop.programs.java_program import JavaProgram, java_program
from interop.programs.waiting import wait_for
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.soak, pytest.mark.timeout(1200)]

SOURCE = Path(__file__).with_name("WordCount.java")
WORDS = [f"word-{number}" for number in range(20)]
ROUNDS = 50
PARTITIONS = 3


@pytest.fixture(scope="module", autouse=True)
def _streams() -> None:
    if why := programs_absent():
        pytest.skip(why)


class Counting:
    """The application, and the counts that the application has committed."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._bootstrap = cluster.bootstrap_servers
        self._directory = directory
        self.source, self.target = f"words-{uuid4()}", f"counts-{uuid4()}"
        with Admin(self._bootstrap) as admin:
            names = (self.source, self.target)
            admin.create_topics([NewTopic(name=name, partitions=PARTITIONS, replication_factor=3) for name in names])

    def start(self, stack: ExitStack, state: str) -> JavaProgram:
        words = (str(SOURCE), self._bootstrap, "counting", str(self._directory / state), self.source, self.target, "3")
        return stack.enter_context(java_program(words, self._directory / "streams.log"))

    def write(self, rounds: int) -> None:
        """Write every word so many times, through librdkafka."""
        messages = [Message(word.encode(), b"") for _ in range(rounds) for word in WORDS]
        Confluent().produce(self._bootstrap, self.source, messages, "lz4")

    def counts(self) -> Counter[str]:
        """Committed counts `word n`, with the number of their records."""
        places = [TopicPartition(self.target, partition) for partition in range(PARTITIONS)]
        return Counter(value.decode() for place in places for value in committed_values(self._bootstrap, place))

    def wait_for_counts(self, number: int, program: JavaProgram) -> None:
        """Return when so many counts are committed. A reader of librdkafka's may fail while a leader is gone."""

        def has_counted() -> bool:
            with suppress(KafkaException):
                return self.counts().total() >= number
            return False

        wait_for(has_counted, f"{number} counts", program.log)


def test_every_count_is_written_once_though_the_program_and_nodes_are_killed(tmp_path: Path) -> None:
    with Cluster(brokers=3, config={"min.insync.replicas": "2"}) as cluster, ExitStack() as stack:
        counting = Counting(cluster, tmp_path)
        first = counting.start(stack, "state")
        counting.write(ROUNDS)
        counting.wait_for_counts(1, first)
        first.kill()

        second = counting.start(stack, "state")
        counting.write(ROUNDS)
        for node in (1, 2):
            counted = counting.counts().total()
            cluster.kill(node)
            counting.write(ROUNDS)
            counting.wait_for_counts(counted + 1, second)
            cluster.start(node)
        second.kill()

        third = counting.start(stack, "another-state")  # the state comes back from the changelog
        counting.write(ROUNDS)
        rounds = 5 * ROUNDS
        counting.wait_for_counts(rounds * len(WORDS), third)
        third.kill()
        assert counting.counts() == Counter(f"{word} {count}" for word in WORDS for count in range(1, rounds + 1))
