"""Transactions of the producer whose calls block, with a node: order of records and calls, threads, blocks."""

import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.client.blocking.producer import _ENQUEUE_AT_ONCE
from tailrace.client.errors import AbortableTransactionError
from tailrace.client.loop_thread import loop_thread
from tailrace.client.transactions.producer_transaction import TransactionPhase
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

SECONDS = 60.0


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    return new_topic(tailrace_cluster)


@pytest.fixture
def producer(tailrace_cluster: Cluster) -> Iterator[Producer]:
    with Producer(tailrace_cluster.bootstrap_servers, transactional_id=f"t-{uuid4()}") as producer:
        producer.init_transactions()
        yield producer


def committed(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    """The first so many committed values."""
    values: list[bytes | None] = []
    with Consumer(cluster.bootstrap_servers, isolation="read_committed") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        while len(values) < count:
            values += [record.value for record in consumer.poll(SECONDS)]
    return values


def test_records_belong_to_the_transaction_in_which_they_were_sent(
    tailrace_cluster: Cluster, topic: str, producer: Producer
) -> None:
    """The records wait in a queue between threads while calls go to the event loop."""
    for number in range(40):
        producer.begin_transaction()
        for part in range(3):
            producer.send(topic, b"%d-%d" % (number, part))
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    kept = [b"%d-%d" % (number, part) for number in range(0, 40, 2) for part in range(3)]
    assert committed(tailrace_cluster, topic, len(kept)) == kept


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_end_comes_behind_all_records_that_the_event_loop_has_not_taken_yet(
    tailrace_cluster: Cluster, topic: str, producer: Producer, is_committed: bool
) -> None:
    """The event loop takes a part of the queue in a turn. Here the loop waits until the queue has every record."""
    may_go_on = threading.Event()
    producer.begin_transaction()
    loop_thread().loop.call_soon_threadsafe(may_go_on.wait, SECONDS)
    sent = [producer.send(topic, b"%d" % number) for number in range(3 * _ENQUEUE_AT_ONCE)]
    end = producer.commit_transaction if is_committed else producer.abort_transaction
    ending = threading.Thread(target=end)
    ending.start()
    may_go_on.set()
    ending.join(SECONDS)
    codes = {fault.code for each in sent if isinstance(fault := each.exception(SECONDS), KafkaError)}
    assert codes <= (set() if is_committed else {ErrorCode.OPERATION_NOT_ATTEMPTED})
    assert producer.transaction_phase is TransactionPhase.READY
    if is_committed:
        values = committed(tailrace_cluster, topic, len(sent))
        assert values == [b"%d" % number for number in range(len(sent))]


def test_calls_outside_of_a_transaction_are_refused_at_once(topic: str, producer: Producer) -> None:
    for call in (lambda: producer.send(topic, b"v"), producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(KafkaError, match=r"call begin_transaction\(\) first") as refused:
            call()
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert producer.transaction_phase is TransactionPhase.READY


def test_several_threads_write_into_one_transaction(tailrace_cluster: Cluster, topic: str, producer: Producer) -> None:
    def write(number: int) -> None:
        for part in range(100):
            producer.send(topic, b"%d-%d" % (number, part))

    with producer.transaction():
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = committed(tailrace_cluster, topic, 400)
    assert sorted(values, key=lambda value: value or b"") == sorted(
        b"%d-%d" % (number, part) for number in range(4) for part in range(100)
    )


def _interrupted(producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, b"lost")
        raise KeyboardInterrupt


def test_an_interrupted_block_is_aborted(tailrace_cluster: Cluster, topic: str, producer: Producer) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(producer, topic)
    assert producer.transaction_phase is TransactionPhase.READY
    with producer.transaction():
        producer.send(topic, b"kept")
    assert committed(tailrace_cluster, topic, 1) == [b"kept"]


def _refused(producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, b"lost")
        producer.send(topic, b"nowhere", partition=9)


def test_a_block_with_a_record_that_failed_raises_and_is_aborted(
    tailrace_cluster: Cluster, topic: str, producer: Producer
) -> None:
    with pytest.raises(AbortableTransactionError, match="has partitions 0 to 0, not 9"):
        _refused(producer, topic)
    with producer.transaction():
        producer.send(topic, b"kept")
    producer.flush()  # the end of the transaction has reported the failed records
    assert committed(tailrace_cluster, topic, 1) == [b"kept"]


def test_a_close_aborts_the_open_transaction(tailrace_cluster: Cluster, topic: str) -> None:
    with Producer(tailrace_cluster.bootstrap_servers, transactional_id=topic) as first:
        first.init_transactions()
        first.begin_transaction()
        assert first.send(topic, b"lost").exception(SECONDS) is None
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        assert admin.describe_transaction(topic).state in ("PrepareAbort", "CompleteAbort")


def test_a_member_waits_for_the_end_of_a_transaction_that_has_set_its_offset(
    tailrace_cluster: Cluster, topic: str, producer: Producer
) -> None:
    """KIP-447: "the consumer will... back-off and retry" at UNSTABLE_OFFSET_COMMIT, at any isolation level as in Java:
    the old offset would repeat the records of the transaction."""
    servers, group, place = tailrace_cluster.bootstrap_servers, f"g-{uuid4()}", (topic, 0)
    with Producer(servers) as plain:
        plain.send_and_wait(topic, b"first")
        plain.send_and_wait(topic, b"second")
    with Consumer(servers, group=group, default_api_timeout_ms=500, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        producer.begin_transaction()
        producer.send_offsets_to_transaction({place: 1}, consumer.group_metadata())
        for wanted in (place, [place]):
            with pytest.raises(KafkaError, match="UNSTABLE_OFFSET_COMMIT"):
                consumer.committed(wanted)
        assert consumer.poll(0.3) == []
        producer.commit_transaction()
        assert [record.value for record in consumer.poll(SECONDS)] == [b"second"]


def test_all_records_of_a_topic_have_those_of_each_transaction_whose_commit_has_returned(
    tailrace_cluster: Cluster, topic: str, producer: Producer
) -> None:
    for number in range(20):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number)
        producer.commit_transaction()
        assert [record.value for record in tailrace_cluster.read_all(topic)] == [b"%d" % n for n in range(number + 1)]
    producer.begin_transaction()
    producer.send_and_wait(topic, b"open")
    assert len(tailrace_cluster.read_all(topic)) == 20
    producer.abort_transaction()
    assert len(tailrace_cluster.read_all(topic)) == 20
