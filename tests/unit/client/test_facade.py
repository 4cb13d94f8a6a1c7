"""What holds for every blocking client: forks, interrupts, threads that close while others call."""

import os
import signal
import threading
from uuid import uuid4

import pytest

from tailrace.client.blocking import Admin, Producer, RangedFetch
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster


def test_a_child_forked_while_a_thread_makes_a_client_can_make_its_own() -> None:
    admin = Admin("127.0.0.1:1", bootstrap_timeout_ms=1)
    with admin._client._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                admin.list_topics()
            except KafkaError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    admin.close()


def test_an_interrupted_wait_for_records_is_an_interrupt_and_nothing_else(tailrace_cluster: Cluster) -> None:
    partition = TopicPartition(f"topic-{uuid4()}", 0)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        producer.send(partition.topic, b"only").result(20)
    with RangedFetch(tailrace_cluster.bootstrap_servers) as fetch:
        stretches = fetch.fetch_range(partition, 0, 2)
        next(stretches)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(stretches)
        assert len(list(fetch.fetch_range(partition, 0, 1))) == 1


def test_a_producer_that_is_closed_by_another_thread_settles_every_record(tailrace_cluster: Cluster) -> None:
    topic = f"topic-{uuid4()}"
    producer = Producer(tailrace_cluster.bootstrap_servers, linger_ms=50)
    producer.send(topic, b"first").result(20)
    sent = []
    begun = threading.Event()

    def keep_sending() -> None:
        try:
            while True:
                sent.append(producer.send(topic, b"more"))
                begun.set()
        except KafkaError as fault:
            assert fault.code is ErrorCode.NETWORK_EXCEPTION

    sending = threading.Thread(target=keep_sending)
    sending.start()
    assert begun.wait(20)
    producer.close()
    sending.join(20)
    assert not sending.is_alive()
    faults = [future.exception(20) for future in sent]
    assert faults[0] is None
    assert {str(fault) for fault in faults if fault is not None} <= {"NETWORK_EXCEPTION: this producer is closed"}
