"""Our transactional producer with Tailrace and with Apache Kafka, in both generations of transactions.

Each partition is read by our consumer and by confluent-kafka, both at read_committed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final
from unittest.mock import patch
from uuid import uuid4

import confluent_kafka
import pytest

from interop.differential.apache import ApacheKafka
from interop.kafka_tools import absent
from interop.librdkafka import DEADLINE_S
from tailrace import aio
from tailrace.client.admin.cluster import UpgradeType
from tailrace.client.blocking import Admin, Consumer, NewTopic, Producer, RangedFetch
from tailrace.client.errors import AbortableTransactionError, ProducerFenced
from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.transactions.producer_transaction import TransactionPhase
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest
from tailrace.protocol.records.batch import iter_batches
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = pytest.mark.interop

LATEST = -1
READ_COMMITTED: Final = "read_committed"
VERSIONS = (0, 1, 2)


@pytest.fixture(
    scope="module", params=[(peer, version) for peer in ("tailrace", "kafka") for version in VERSIONS], ids=str
)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """A cluster of one broker with this transaction.version."""
    peer, version = request.param
    if peer == "tailrace":
        with Cluster() as cluster:
            _lower(cluster.bootstrap_servers, version)
            yield cluster.bootstrap_servers
        return
    if why := absent():
        pytest.skip(why)
    offsets = {"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1"}
    with ApacheKafka({"group.initial.rebalance.delay.ms": "0", **offsets}) as kafka:
        _lower(kafka.address, version)
        yield kafka.address


def _lower(servers: str, version: int) -> None:
    with Admin(servers) as admin:
        before = admin.describe_features().finalized["transaction.version"]
        assert before == 2
        if version < before:
            admin.update_features({"transaction.version": version}, upgrade_type=UpgradeType.SAFE_DOWNGRADE)
        wait_until(lambda: admin.describe_features().finalized.get("transaction.version", 0) == version, "the version")


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"transactions-{uuid4()}"
    with Admin(bootstrap) as admin:
        admin.create_topics({name: 2})
    return name


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    with Producer(bootstrap, transactional_id=f"t-{uuid4()}") as producer:
        producer.init_transactions()
        yield producer


def _stable_end(bootstrap: str, partition: TopicPartition) -> int:
    """The end of the partition, when no transaction is open there: markers come after the answer to the producer."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "ends", "log_level": 0}
    place = confluent_kafka.TopicPartition(partition.topic, partition.partition)
    with (
        closing(confluent_kafka.Consumer({**settings, "isolation.level": READ_COMMITTED})) as stable,
        closing(confluent_kafka.Consumer({**settings, "isolation.level": "read_uncommitted"})) as high,
    ):
        ends: list[int] = []

        def is_stable() -> bool:
            ends[:] = [each.get_watermark_offsets(place, DEADLINE_S)[1] for each in (stable, high)]
            return ends[0] == ends[1]

        wait_until(is_stable, f"no transaction is open in {partition}")
    return ends[1]


def _values(bootstrap: str, topic: str) -> list[list[bytes]]:
    """The committed values of each partition, on which both readers agree."""
    found = []
    for number in (0, 1):
        end = _stable_end(bootstrap, TopicPartition(topic, number))
        ours = _read_by_us(bootstrap, TopicPartition(topic, number), end)
        assert ours == _read_by_librdkafka(bootstrap, topic, number, end)
        found.append(ours)
    return found


def _read_by_us(bootstrap: str, partition: TopicPartition, end: int) -> list[bytes]:
    values: list[bytes] = []
    with Consumer(bootstrap, isolation=READ_COMMITTED) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        deadline = time.monotonic() + DEADLINE_S
        while (consumer.position(partition) or 0) < end:
            assert time.monotonic() < deadline
            values += [record.value or b"" for record in consumer.poll(0.2)]
    return values


def _read_by_librdkafka(bootstrap: str, topic: str, partition: int, end: int) -> list[bytes]:
    values: list[bytes] = []
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": READ_COMMITTED, "log_level": 0}
    with closing(confluent_kafka.Consumer({**settings, "enable.auto.commit": False})) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])

        def is_at_the_end() -> bool:
            values.extend(each.value() for each in consumer.consume(1_000, 0.2) if each.error() is None)
            (position,) = consumer.position([confluent_kafka.TopicPartition(topic, partition)])
            return end == 0 or position.offset >= end

        wait_until(is_at_the_end, f"the end of {topic}-{partition}")
    return values


def test_committed_records_are_read_and_aborted_ones_are_not(bootstrap: str, topic: str, producer: Producer) -> None:
    def write(number: int) -> None:
        with producer.transaction():
            for partition in (0, 1):
                producer.send(topic, b"%d" % number, partition=partition)
            if number % 2:
                producer.flush()  # others are dropped before they are sent
            if number % 3 == 2:
                raise LookupError(number)

    for number in range(12):
        try:
            write(number)
        except LookupError:
            assert number % 3 == 2
    kept = [b"%d" % number for number in range(12) if number % 3 != 2]
    assert _values(bootstrap, topic) == [kept, kept]


def test_an_abort_right_behind_a_commit(bootstrap: str, topic: str, producer: Producer) -> None:
    """The markers of the commit are still being written then: no request of the next transaction may fail for good."""
    for number in range(20):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number, partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        lost = producer.send(topic, b"lost", partition=number % 2)
        if number % 3:
            assert lost.exception(DEADLINE_S) is None
        producer.abort_transaction()
    assert producer.transaction_phase is TransactionPhase.READY
    assert _values(bootstrap, topic) == [[b"%d" % number for number in range(20)], []]


def test_many_records_keep_their_order(bootstrap: str, topic: str, producer: Producer) -> None:
    sent: list[list[bytes]] = [[], []]
    for number in range(5):
        with producer.transaction():
            for each in range(2_000):
                value = b"%d-%d" % (number, each)
                producer.send(topic, value, partition=each % 2)
                sent[each % 2].append(value)
    assert _values(bootstrap, topic) == sent


def test_a_failed_record_costs_its_transaction_alone(bootstrap: str, topic: str, producer: Producer) -> None:
    for number in range(3):
        producer.begin_transaction()
        producer.send(topic, b"lost", partition=0)
        producer.flush()
        lost = producer.send(topic, b"nowhere", partition=7)
        with pytest.raises(AbortableTransactionError) as refused:
            producer.commit_transaction()
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert lost.exception() is not None
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"%d" % number, partition=0)
    assert _values(bootstrap, topic) == [[b"0", b"1", b"2"], []]


def test_a_batch_that_the_broker_refuses_costs_its_transaction_alone(
    bootstrap: str, topic: str, producer: Producer
) -> None:
    """The batch's sequence numbers leave a gap: before version 2 the producer needs its next epoch."""
    name = f"{topic}-small"
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name=name, partitions=1, configs={"max.message.bytes": "2000"})])
    for number in range(3):
        producer.begin_transaction()
        assert producer.send(name, b"lost").exception(DEADLINE_S) is None
        too_large = producer.send(name, b"x" * 4_000).exception(DEADLINE_S)
        assert isinstance(too_large, KafkaError)
        assert too_large.code is ErrorCode.MESSAGE_TOO_LARGE
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(name, b"%d" % number)
            producer.send(topic, b"%d" % number, partition=1)
    partition = TopicPartition(name, 0)
    assert _read_by_us(bootstrap, partition, _stable_end(bootstrap, partition)) == [b"0", b"1", b"2"]
    assert _values(bootstrap, topic) == [[], [b"0", b"1", b"2"]]


@contextmanager
def _first_answer_lost(kind: type[Any], get_task: Callable[[], "asyncio.Task[None] | None"]) -> Iterator[None]:
    """Inside, the task is cancelled when the first request of this type is answered, and does not see the answer."""
    send, seen = Connection.send, 0

    def lossy(connection: Connection, request: object, *arguments: Any, **options: Any) -> "asyncio.Future[Any]":
        nonlocal seen
        answer: asyncio.Future[Any] = send(connection, request, *arguments, **options)
        if isinstance(request, kind):
            seen += 1
            task = get_task()
            if seen == 1 and task is not None:
                answer.add_done_callback(lambda _: task.cancel())  # before the callbacks of the client
        return answer

    with patch.object(Connection, "send", lossy):
        yield


async def _call_twice(kind: type[Any], call: Callable[[], Awaitable[None]]) -> None:
    task: asyncio.Task[None] | None = None
    with _first_answer_lost(kind, lambda: task):
        task = asyncio.ensure_future(call())
        with pytest.raises(asyncio.CancelledError):
            await task
        await call()


def test_calls_whose_answer_is_lost_are_carried_on(bootstrap: str, topic: str) -> None:
    """The coordinator has decided then, and recognises the repetition."""

    async def run() -> None:
        async with aio.Producer(bootstrap, transactional_id=f"t-{uuid4()}") as producer:
            await _call_twice(InitProducerIdRequest, producer.init_transactions)
            for number in range(4):
                await producer.begin_transaction()
                await producer.send(topic, b"%d" % number, partition=0)
                await producer.flush()
                end = producer.abort_transaction if number % 2 else producer.commit_transaction
                await _call_twice(EndTxnRequest, end)
            assert producer.transaction_phase is TransactionPhase.READY

    asyncio.run(run())
    assert _values(bootstrap, topic) == [[b"0", b"2"], []]


def test_a_second_producer_fences_the_first(bootstrap: str, topic: str) -> None:
    name = f"t-{uuid4()}"
    with Producer(bootstrap, transactional_id=name) as first, Producer(bootstrap, transactional_id=name) as second:
        first.init_transactions()
        first.begin_transaction()
        assert first.send(topic, b"lost", partition=0).exception(DEADLINE_S) is None
        second.init_transactions()
        with pytest.raises(ProducerFenced):
            first.commit_transaction()
        with pytest.raises(ProducerFenced):
            first.begin_transaction()
        with second.transaction():
            second.send(topic, b"kept", partition=0)
    assert _values(bootstrap, topic) == [[b"kept"], []]


def test_a_fenced_producer_finds_out_at_its_next_batch(bootstrap: str, topic: str) -> None:
    name = f"t-{uuid4()}"
    with Producer(bootstrap, transactional_id=name) as first, Producer(bootstrap, transactional_id=name) as second:
        first.init_transactions()
        with first.transaction():
            first.send(topic, b"first", partition=0)
        second.init_transactions()
        with second.transaction():
            second.send(topic, b"second", partition=0)
        first.begin_transaction()
        refused = first.send(topic, b"lost", partition=0).exception(DEADLINE_S)
        assert isinstance(refused, KafkaError)
        with pytest.raises((AbortableTransactionError, ProducerFenced)):
            first.commit_transaction()
        if first.transaction_phase is TransactionPhase.ABORTABLE_ERROR:
            with pytest.raises(ProducerFenced):
                first.abort_transaction()
        assert first.transaction_phase is TransactionPhase.FATAL_ERROR
    assert _values(bootstrap, topic) == [[b"first", b"second"], []]


def test_offsets_are_committed_with_their_transaction_alone(bootstrap: str, topic: str, producer: Producer) -> None:
    group, source = f"g-{topic}", TopicPartition(topic, 1)
    with Producer(bootstrap) as plain:
        for number in range(6):
            plain.send(topic, b"%d" % number, partition=1)
    settings: dict[str, Any] = {
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "isolation": READ_COMMITTED,
    }
    with Consumer(bootstrap, group=group, topics=[topic], **settings) as consumer, Admin(bootstrap) as admin:
        while not consumer.poll(DEADLINE_S):
            pass
        member = consumer.group_metadata()
        producer.begin_transaction()
        producer.send(topic, b"lost", partition=0)
        producer.send_offsets_to_transaction({source: 5}, member)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
            producer.send_offsets_to_transaction({source: OffsetAndMetadata(3, metadata="mine")}, member)
        wait_until(lambda: source in admin.group_offsets(group), "the offset is visible")
        assert admin.group_offsets(group)[source][::2] == (3, "mine")
        producer.begin_transaction()
        stale = member._replace(generation_id=member.generation_id - 1)
        with pytest.raises(AbortableTransactionError) as refused:
            producer.send_offsets_to_transaction({source: 6}, stale)
        assert refused.value.code is ErrorCode.ILLEGAL_GENERATION
        producer.abort_transaction()
        assert admin.group_offsets(group)[source].offset == 3
    assert _values(bootstrap, topic)[0] == [b"kept"]


def test_epochs_are_those_of_the_generation(
    bootstrap: str, topic: str, producer: Producer, request: pytest.FixtureRequest
) -> None:
    """A single epoch for all transactions before version 2, an epoch for each from then on; the log has the epochs."""
    for _ in range(3):
        with producer.transaction():
            producer.send(topic, b"v", partition=0)
    partition = TopicPartition(topic, 0)
    end = _stable_end(bootstrap, partition)
    with RangedFetch(bootstrap) as fetch:
        stretches = [buffer for stretch in fetch.fetch_range(partition, 0, end) for buffer in stretch]
    headers = [header for buffer in stretches for _, header in iter_batches(buffer)]
    data = [header for header in headers if not header.is_control]
    assert all(header.is_transactional for header in headers)
    assert len({header.producer_id for header in headers}) == 1
    _, version = request.node.callspec.params["bootstrap"]
    first = data[0].producer_epoch
    assert [header.producer_epoch for header in data] == [first + (each if version == 2 else 0) for each in range(3)]
    assert [header.base_sequence for header in data] == ([0, 0, 0] if version == 2 else [0, 1, 2])
