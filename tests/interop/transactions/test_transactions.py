"""Foreign clients in transactions: what is committed is read once, what is aborted never.

confluent-kafka (librdkafka) and kafka-python go by transaction.version 0 or 1, Java by 2 (KIP-890).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from uuid import uuid4

import confluent_kafka
import kafka
import pytest
from confluent_kafka import Producer, TopicPartition

from interop.java_machine import java_machine
from interop.kafka_tools import Dump, absent, run
from interop.librdkafka import DEADLINE_S
from interop.transactions.java_producer import JavaProducer
from tailrace.client.blocking import Admin
from tailrace.model.partitions import TopicPartition as Place
from tailrace.model.sinks import SinkMember
from tailrace.protocol.records.batch import BatchHeader, iter_batches
from tailrace.protocol.records.record import Record
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = pytest.mark.interop

Tool = Callable[..., Dump]
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
CYCLES = int(os.environ.get("CYCLES", "5"))
"""The number of begins right behind a commit; librdkafka's, which is quicker, six times as many."""
SHORT_MS = 6_000
"""A transaction's time-out. librdkafka gives a record no more time than that to be delivered."""


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    return _topic(tailrace_cluster, partitions=2)


def _topic(cluster: Cluster, *, partitions: int = 1) -> str:
    name = f"transactions-{uuid4()}"
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({name: partitions})
    return name


def _producer(cluster: Cluster, transactional_id: str | None = None, **options: object) -> Producer:
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "transactional.id": transactional_id or str(uuid4()),
        "log_level": 0,
    }
    producer = Producer({**settings, **{name.replace("_", "."): value for name, value in options.items()}})
    producer.init_transactions(DEADLINE_S)
    return producer


@contextmanager
def _consumer(cluster: Cluster, group: str, *, isolation: str = "read_committed") -> Iterator[confluent_kafka.Consumer]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _values(cluster: Cluster, topic: str, *, partitions: int = 1, isolation: str = "read_committed") -> list[bytes]:
    """Every record up to the end, as a consumer of this isolation gets the records."""
    found: list[bytes] = []
    with _consumer(cluster, f"reader-{uuid4()}", isolation=isolation) as consumer:
        for partition in range(partitions):
            _, end_offset = consumer.get_watermark_offsets(TopicPartition(topic, partition), DEADLINE_S)
            consumer.assign([TopicPartition(topic, partition, 0)])

            def is_at_the_end(partition: int = partition, end_offset: int = end_offset) -> bool:
                polled = consumer.consume(1_000, 0.2)
                found.extend(message.value() for message in polled if message.error() is None)
                (position,) = consumer.position([TopicPartition(topic, partition)])
                return position.offset >= end_offset or end_offset == 0

            wait_until(is_at_the_end, f"the end of {topic}-{partition}")
    return found


def test_librdkafka_commits_and_aborts_over_several_partitions(tailrace_cluster: Cluster, topic: str) -> None:
    producer = _producer(tailrace_cluster)
    for number, is_commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, f"{number}".encode(), partition=partition)
        if is_commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.flush(DEADLINE_S)
            producer.abort_transaction(DEADLINE_S)
    _await_markers(tailrace_cluster, topic, partitions=2)
    assert _values(tailrace_cluster, topic, partitions=2) == [b"0", b"2", b"0", b"2"]
    uncommitted = _values(tailrace_cluster, topic, partitions=2, isolation="read_uncommitted")
    assert uncommitted == [b"0", b"1", b"2", b"3"] * 2


def _await_markers(cluster: Cluster, topic: str, *, partitions: int = 1) -> None:
    """Wait for the markers, which come after the answer."""
    wait_until(lambda: _stable(cluster, topic, partitions=partitions), f"no transaction is open in {topic}")


def _stable(cluster: Cluster, topic: str, *, partitions: int = 1) -> bool:
    """Whether no transaction is open in so many partitions, from the first on."""
    with (
        _consumer(cluster, f"stable-{uuid4()}") as committed,
        _consumer(cluster, f"end-{uuid4()}", isolation="read_uncommitted") as all_,
    ):
        ends = [
            [
                consumer.get_watermark_offsets(TopicPartition(topic, partition), DEADLINE_S)[1]
                for partition in range(partitions)
            ]
            for consumer in (committed, all_)
        ]
    return ends[0] == ends[1]


def test_librdkafka_begins_and_aborts_right_behind_a_commit(tailrace_cluster: Cluster, topic: str) -> None:
    """Markers follow the answer to EndTxn. Requests of the next transaction meanwhile must not end the producer."""
    producer = _producer(tailrace_cluster)
    for number in range(6 * CYCLES):
        producer.begin_transaction()
        producer.produce(topic, f"{number}".encode(), partition=number % 2)
        producer.commit_transaction(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(topic, b"aborted", partition=(number + 1) % 2)
        # Some are still at home then, for some the coordinator was asked, some are written.
        producer.poll(0.004 * (number % 6))
        producer.abort_transaction(DEADLINE_S)
    _await_markers(tailrace_cluster, topic, partitions=2)
    values = sorted(_values(tailrace_cluster, topic, partitions=2), key=int)
    assert values == [f"{number}".encode() for number in range(6 * CYCLES)]


def test_librdkafka_consumes_transforms_and_produces_each_record_once(tailrace_cluster: Cluster) -> None:
    source, target, group = _topic(tailrace_cluster), _topic(tailrace_cluster), f"copiers-{uuid4()}"
    plain = Producer({"bootstrap.servers": tailrace_cluster.bootstrap_servers})
    for number in range(60):
        plain.produce(source, f"{number}".encode())
    assert plain.flush(DEADLINE_S) == 0
    transactional_id, copied, attempts = f"copier-{uuid4()}", 0, 0
    while copied < 60:
        # A new instance each time, which knows nothing but what the group has committed.
        producer = _producer(tailrace_cluster, transactional_id)
        with _consumer(tailrace_cluster, group) as consumer:
            consumer.subscribe([source])
            producer.begin_transaction()
            taken = 0
            while taken < 20:
                message = consumer.poll(DEADLINE_S)
                assert message is not None
                assert message.error() is None
                producer.produce(target, message.value() + b"!")
                taken += 1
            offsets = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), DEADLINE_S)
            attempts += 1
            if attempts % 2:
                producer.abort_transaction(DEADLINE_S)
            else:
                producer.commit_transaction(DEADLINE_S)
                copied += taken
    assert attempts == 6
    _await_markers(tailrace_cluster, target)
    assert _values(tailrace_cluster, target) == [f"{number}!".encode() for number in range(60)]
    with _consumer(tailrace_cluster, group) as consumer:
        (committed,) = consumer.committed([TopicPartition(source, 0)], DEADLINE_S)
    assert committed.offset == 60


def test_librdkafka_is_fenced_by_its_next_instance(tailrace_cluster: Cluster, topic: str) -> None:
    first = _producer(tailrace_cluster, "fenced")
    first.begin_transaction()
    first.produce(topic, b"lost", partition=0)
    first.flush(DEADLINE_S)
    second = _producer(tailrace_cluster, "fenced")
    second.begin_transaction()
    second.produce(topic, b"kept", partition=0)
    second.commit_transaction(DEADLINE_S)
    with pytest.raises(confluent_kafka.KafkaException) as refusal:
        first.commit_transaction(DEADLINE_S)
    assert refusal.value.args[0].fatal()
    _await_markers(tailrace_cluster, topic)
    assert _values(tailrace_cluster, topic) == [b"kept"]


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    with Cluster(config=QUICK) as cluster:
        topic = _topic(cluster)
        producer = _producer(cluster, transaction_timeout_ms=SHORT_MS)
        faults: list[object] = []
        producer.begin_transaction()
        producer.produce(topic, b"late", on_delivery=lambda fault, _: faults.append(fault))
        producer.flush(DEADLINE_S)
        assert faults == [None]
        _await_markers(cluster, topic)
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit_transaction(DEADLINE_S)
        assert _values(cluster, topic, isolation="read_uncommitted") == [b"late"]
        assert _values(cluster, topic) == []
        # The log tells that it was left open for so long: a client that asks may ask too late.
        record, marker = _batches(cluster, topic)
        assert (record.is_control, marker.is_control) == (False, True)
        assert marker.max_timestamp - record.max_timestamp >= SHORT_MS


def _batches(cluster: Cluster, topic: str) -> list[BatchHeader]:
    """The records in the log of the first partition."""
    (log,) = cluster.data_dir().glob(f"**/{topic}-0/*.log")
    return [header for _, header in iter_batches(log.read_bytes())]


def test_kafka_python_reads_nothing_that_was_aborted(tailrace_cluster: Cluster, topic: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=tailrace_cluster.bootstrap_servers, transactional_id=str(uuid4()), acks="all"
    )
    producer.init_transactions()
    for number, is_commit in enumerate((False, True, False, True)):
        producer.begin_transaction()
        producer.send(topic, f"{number}".encode(), partition=0).get(DEADLINE_S)
        if is_commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    _await_markers(tailrace_cluster, topic)
    values: list[bytes] = []
    partition = kafka.TopicPartition(topic, 0)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=tailrace_cluster.bootstrap_servers, isolation_level="read_committed"
    )
    with closing(consumer):
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end_offset = consumer.end_offsets([partition])[partition]

        def is_at_the_end() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                values.extend(record.value for record in records)
            return bool(consumer.position(partition) >= end_offset)

        wait_until(is_at_the_end, f"the end of {topic}-0")
    assert end_offset == 8, "each transaction has a record and a marker"
    assert values == [b"1", b"3"]


class TestJava:
    """Apache Kafka's own client and tools."""

    @pytest.fixture(autouse=True)
    def _kafka(self) -> None:
        if why := absent():
            pytest.skip(why)

    @pytest.fixture
    def tool(self, tailrace_cluster: Cluster) -> Tool:
        def on_node(script: str, *options: str) -> Dump:
            return run(script, "--bootstrap-server", tailrace_cluster.bootstrap_servers, *options)

        return on_node

    def test_each_record_is_copied_once_though_transactions_abort(self, tailrace_cluster: Cluster, tool: Tool) -> None:
        source, target, group = _topic(tailrace_cluster), _topic(tailrace_cluster), f"copiers-{uuid4()}"
        plain = Producer({"bootstrap.servers": tailrace_cluster.bootstrap_servers})
        for number in range(1500):
            plain.produce(source, f"{number}".encode())
        assert plain.flush(DEADLINE_S) == 0
        where = ("--input-topic", source, "--input-partition", "0", "--output-topic", target)
        what = ("--transaction-size", "100", "--max-messages", "1500", "--enable-random-aborts")
        who = ("--transactional-id", str(uuid4()), "--consumer-group", group, "--use-group-metadata")
        broker = ("--broker-list", tailrace_cluster.bootstrap_servers)
        run("kafka-transactional-message-copier", *broker, *where, *what, *who)
        _await_markers(tailrace_cluster, target)
        assert _values(tailrace_cluster, target) == [f"{number}".encode() for number in range(1500)]
        assert f" {source}" in (described := tool("kafka-consumer-groups", "--describe", "--group", group).out)
        assert " 1500 " in described

    def test_the_producer_aborts_right_behind_a_commit(self, tailrace_cluster: Cluster) -> None:
        """KAFKA-18464: the markers of 30 partitions are being written; any code but 51 would end the producer."""
        topic = _topic(tailrace_cluster, partitions=30)
        with java_machine() as machine:
            producer = JavaProducer(
                machine, tailrace_cluster.bootstrap_servers, transactional_id=str(uuid4()), linger_ms="5000"
            )
            producer.calls.initTransactions()
            for number in range(CYCLES):
                producer.calls.beginTransaction()
                for partition in range(30):
                    producer.send(topic, partition, f"{number}")
                producer.calls.commitTransaction()
                producer.calls.beginTransaction()
                producer.send(topic, 0, "aborted")
                producer.calls.abortTransaction()
            producer.calls.close()
        _await_markers(tailrace_cluster, topic, partitions=30)
        values = sorted(_values(tailrace_cluster, topic, partitions=30), key=int)
        assert values == [f"{number}".encode() for number in range(CYCLES) for _ in range(30)]

    def test_the_tools_show_transactions_and_end_those_that_hang(
        self, tailrace_cluster: Cluster, topic: str, tool: Tool
    ) -> None:
        # Open for as long as the tools take.
        producer = _producer(tailrace_cluster, transactional_id := f"shown-{uuid4()}", transaction_timeout_ms=600_000)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=0)
        producer.flush(DEADLINE_S)
        listed = tool("kafka-transactions", "list").out
        (row,) = [line.split() for line in listed.splitlines() if line.startswith(transactional_id)]
        assert row[1] == "1"
        assert row[3] == "Ongoing"
        described = tool("kafka-transactions", "describe", "--transactional-id", transactional_id).out
        assert f"{topic}-0" in described
        writing = tool("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0").out
        assert [line.split()[0] for line in writing.splitlines()[1:] if line.strip()] == [row[2]]
        hanging = tool("kafka-transactions", "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0").out
        assert topic not in hanging, "its coordinator knows of it"
        tool("kafka-transactions", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
        assert _stable(tailrace_cluster, topic)
        with suppress(confluent_kafka.KafkaException):
            producer.abort_transaction(DEADLINE_S)
        tool("kafka-transactions", "forceTerminateTransaction", "--transactionalId", transactional_id)
        assert _values(tailrace_cluster, topic) == []

    def test_the_tools_show_members_of_sinks(self, tailrace_cluster: Cluster, topic: str, tool: Tool) -> None:
        sink = f"shown-{uuid4()}"
        with Admin(tailrace_cluster.bootstrap_servers) as admin:
            members = [
                admin.initialize_sink_member(SinkMember(sink, "r1", batch, 0, 0), transaction_timeout_ms=600_000)
                for batch in (0, 1)
            ]
            for member in members:
                place = Place(topic, 0)
                admin.write_sink_records(member, place, [Record(0, 1, None, b"x")], base_sequence=0)
            admin.commit_sink(sink, run="r1", batch=0, members=members[:1])
            listed = tool("kafka-transactions", "list").out
            assert [line.split()[0] for line in listed.splitlines() if sink in line] == [members[1].transactional_id]
            described = tool("kafka-transactions", "describe", "--transactional-id", members[1].transactional_id).out
            assert f"{topic}-0" in described
            assert "Ongoing" in described
            writing = tool("kafka-transactions", "describe-producers", "--topic", topic, "--partition", "0").out
            assert f"{members[1].producer_id}" in writing
            hanging = tool("kafka-transactions", "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
            assert topic not in hanging.out, "its coordinator knows of it"
            assert _values(tailrace_cluster, topic) == [b"x"]
            tool("kafka-transactions", "forceTerminateTransaction", "--transactionalId", members[1].transactional_id)
            admin.commit_sink(sink, run="r1", batch=1, members=())
        assert _stable(tailrace_cluster, topic)
        assert _values(tailrace_cluster, topic) == [b"x"]

    def test_the_performance_tool_measures_transactions(self, tailrace_cluster: Cluster) -> None:
        topic = _topic(tailrace_cluster)
        load = ("--num-records", "3000", "--record-size", "100", "--throughput", "-1")
        transaction = ("--transactional-id", str(uuid4()), "--transaction-duration-ms", "50")
        broker = ("--producer-props", f"bootstrap.servers={tailrace_cluster.bootstrap_servers}")
        measured = run("kafka-producer-perf-test", "--topic", topic, *load, *transaction, *broker)
        assert measured.out.splitlines()[-1].startswith("3000 records sent")
        _await_markers(tailrace_cluster, topic)
        assert len(_values(tailrace_cluster, topic)) == 3000
