"""Records are sent at their times, and each is seen at every reader."""

from uuid import uuid4

import pytest

from benchmarks.loads.pace import Reader, RefusedRecord, frames_of, send_paced
from benchmarks.wire import Wire, batch
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster


def created(cluster: Cluster) -> str:
    name = f"pace-{uuid4()}"
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({name: 1})
    return name


def test_each_record_is_sent_after_its_interval_and_then_acknowledged_and_read(tailrace_cluster: Cluster) -> None:
    topic, address = created(tailrace_cluster), tailrace_cluster.bootstrap_servers
    with Wire(address) as producer, Wire(address) as first, Wire(address) as other:
        readers = [Reader(first, topic, 0, 0), Reader(other, topic, 0, 0)]
        paced = send_paced(producer, readers, frames_of(topic, 0, batch(1, 10), 20), interval_s=0.005)
    for number, sent in enumerate(paced.sent_at):
        assert sent >= paced.sent_at[0] + number * 0.005 - 0.001
        for moments in (paced.acknowledged_at, readers[0].read_at, readers[1].read_at):
            assert moments[number] > sent
            assert len(moments) == 20


def test_a_record_that_is_refused_ends_it(tailrace_cluster: Cluster) -> None:
    topic, address = created(tailrace_cluster), tailrace_cluster.bootstrap_servers
    with Wire(address) as producer, pytest.raises(RefusedRecord, match="error 3"):
        send_paced(producer, [], frames_of(topic, 1, batch(1, 10), 1), interval_s=0)


def test_a_reader_beyond_the_end_is_refused(tailrace_cluster: Cluster) -> None:
    topic, address = created(tailrace_cluster), tailrace_cluster.bootstrap_servers
    with Wire(address) as producer, Wire(address) as consumer:
        reader = Reader(consumer, topic, 0, 7)
        with pytest.raises(RefusedRecord, match="error 1"):
            send_paced(producer, [reader], frames_of(topic, 0, batch(1, 10), 1), interval_s=0)
