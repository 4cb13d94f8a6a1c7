"""The bare client sends what it says and counts what it gets, against a real node."""

from uuid import uuid4

from benchmarks.wire import Wire, batch, end_offsets, fetch_frame, flood, produce_frame, stream
from tailrace.client.blocking import Admin
from tailrace.protocol.records.record import read_records
from tailrace.testing import Cluster


def created(cluster: Cluster, partitions: int) -> str:
    name = f"wire-{uuid4()}"
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({name: partitions})
    return name


def test_a_batch_has_the_records_that_were_asked_for() -> None:
    records = read_records(batch(3, 300))
    assert [len(record.value or b"") for record in records] == [300] * 3


def test_a_flood_counts_every_answer_and_every_request_has_been_appended(tailrace_cluster: Cluster) -> None:
    topic = created(tailrace_cluster, 2)
    frames = [produce_frame(topic, partition, batch(1, 100)) for partition in range(2)]
    with Wire(tailrace_cluster.bootstrap_servers) as first, Wire(tailrace_cluster.bootstrap_servers) as other:
        answers = flood([first, other], frames, in_flight=4, seconds=0.05)
        offsets = end_offsets(first, topic, 2)
    assert sum(offsets) == answers
    assert min(offsets) >= 1 + 4, "each connection has sent its first request and then four at once"


def test_a_stream_sends_every_frame_and_brings_all_bytes(tailrace_cluster: Cluster) -> None:
    topic = created(tailrace_cluster, 1)
    records = batch(10, 1_000)
    with Wire(tailrace_cluster.bootstrap_servers) as wire:
        stream(wire, [produce_frame(topic, 0, records)] * 7, in_flight=3)
        assert end_offsets(wire, topic, 1) == [70]
        fetches = [fetch_frame(topic, 0, number * 10, len(records)) for number in range(7)]
        received = stream(wire, fetches, in_flight=3)
    assert 7 * len(records) <= received < 8 * len(records)


def test_fewer_frames_than_may_be_in_flight_are_all_sent(tailrace_cluster: Cluster) -> None:
    topic = created(tailrace_cluster, 1)
    with Wire(tailrace_cluster.bootstrap_servers) as wire:
        stream(wire, [produce_frame(topic, 0, batch(1, 1))], in_flight=4)
        assert end_offsets(wire, topic, 1) == [1]


def test_a_partition_that_is_not_led_here_has_no_end_offset(tailrace_cluster: Cluster) -> None:
    topic = created(tailrace_cluster, 1)
    with Wire(tailrace_cluster.bootstrap_servers) as wire:
        assert end_offsets(wire, topic, 2) == [0, -1]
