"""A broker's counts of its partitions while they change."""

import asyncio
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.node.metrics import broker_rows, measurements
from tailrace.node.metrics.measurements import BrokerMeasurements, measure_broker
from tailrace.server.partitions.table import PartitionTable
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath

TOPIC = "orders"
OTHER = BrokerId(BROKER + 1)


@pytest.fixture
def table() -> PartitionTable:
    return DataPath("/logs", files=SimulatedDisk()).table


def lead(table: PartitionTable, number: int, *replicas: BrokerId, **more: Any) -> None:
    """A partition of which only this broker is in sync."""
    state = PartitionState(
        topic_id=TopicId(b"t" * 16),
        replicas=replicas or (BROKER,),
        in_sync_replicas=(BROKER,),
        leader=BROKER,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
        **more,
    )
    table.create(TopicPartition(TOPIC, number), state=state, config=TopicConfig(min_insync_replicas=2))


def measuring(table: PartitionTable) -> Generator[None, None, BrokerMeasurements]:
    """Goes on to the next turn of others each time."""
    broker = SimpleNamespace(
        config=SimpleNamespace(broker_id=BROKER),
        partitions=table,
        coordination=SimpleNamespace(groups=SimpleNamespace(active_hosts=list)),
        group_lags=None,
        readable_views=SimpleNamespace(reads=SimpleNamespace(ends=SimpleNamespace(incomplete=()))),
    )
    parts: Any = SimpleNamespace(broker=broker, late_transaction_ms=1)
    return measure_broker(parts, max_partitions=100).__await__()


def measured(running: Generator[None, None, BrokerMeasurements]) -> BrokerMeasurements:
    while True:
        try:
            next(running)
        except StopIteration as end:
            assert isinstance(end.value, BrokerMeasurements)
            return end.value


def test_traffic_of_a_partition_that_is_deleted_meanwhile_counts_once(
    table: PartitionTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "SLICE", 1)
    for number in range(3):
        lead(table, number)
        table.get(TOPIC, number).sent_bytes = 10**number
    running = measuring(table)
    next(running)
    next(running)  # the first has been looked at
    table.delete(TOPIC, 0)
    table.delete(TOPIC, 2)
    assert measured(running).traffic.bytes_out == 111
    assert measured(measuring(table)).traffic.bytes_out == 111


def test_a_topic_of_fewer_replicas_than_min_insync_replicas_is_held_to_what_it_has(table: PartitionTable) -> None:
    lead(table, 0)
    lead(table, 1, BROKER, OTHER)
    replicas = measured(measuring(table)).replicas
    assert (replicas.leaders, replicas.under_min_in_sync, replicas.under_replicated) == (2, 1, 1)


def test_replicas_that_are_being_added_are_not_missed(table: PartitionTable) -> None:
    lead(table, 0, BROKER, OTHER, adding_replicas=(OTHER,))
    assert measured(measuring(table)).replicas.under_replicated == 0


def test_offline_replicas_are_counted(table: PartitionTable) -> None:
    lead(table, 0)
    lead(table, 1)
    table.get(TOPIC, 1).log.condemn("a scrub has found a wrong checksum")
    assert measured(measuring(table)).replicas.offline == 1


def test_partitions_that_their_preferred_replica_does_not_lead_are_counted() -> None:
    def state(leader: BrokerId) -> PartitionState:
        return PartitionState(
            topic_id=TopicId(b"t" * 16),
            replicas=(BROKER, OTHER),
            in_sync_replicas=(BROKER, OTHER),
            leader=leader,
            leader_epoch=LeaderEpoch(0),
            partition_epoch=0,
        )

    partitions = dict(enumerate(map(state, (BROKER, OTHER, NO_LEADER))))
    topic = TopicImage(name=TOPIC, topic_id=TopicId(b"t" * 16), partitions=partitions)
    controller = SimpleNamespace(image=ClusterImage(topics={TOPIC: topic}), leader_id=BROKER)
    parts: Any = SimpleNamespace(controller=controller, node_id=BROKER)
    counts = asyncio.run(measurements._measure_cluster(parts))
    assert (counts.partitions, counts.offline_partitions, counts.imbalanced_partitions) == (3, 1, 2)


def test_lost_replicas_and_a_stalled_directory_are_on_the_page() -> None:
    replicas = SimpleNamespace(
        fetchers=SimpleNamespace(partitions=0, max_lag=0, failed_fetches=0, failed_partitions=0, refused_partitions=0),
        throttles=SimpleNamespace(sent_rate=0.0, fetched_rate=0.0),
        keeper=SimpleNamespace(shrinks=0, expansions=0),
        repairs=SimpleNamespace(repaired=0, in_repair=0, kept_logs=SimpleNamespace(directories=0, size_bytes=0)),
        failures=SimpleNamespace(lost_replicas=(TopicPartition(TOPIC, 0),)),
        health=SimpleNamespace(is_stalled=True),
    )
    broker: Any = SimpleNamespace(replicas=replicas, polls=(), deadlines=())
    values = {row.name: row.samples[0].value for row in broker_rows._replicas(broker, measurements.ReplicaCounts())}
    assert values["tailrace_lost_replicas"] == 1
    assert values["kafka_log_logmanager_offlinelogdirectorycount"] == 1
