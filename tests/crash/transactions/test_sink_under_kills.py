"""kill -9 of the coordinator of a sink between its decision and the markers: the next one writes them.

A partition of the batch has no leader while its only node is down, so that the decision stands and is not complete for
as long as the test wants.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crash.transactions.committed_reads import committed_values, is_nothing_open
from tailrace.client.blocking import Admin, NewTopic
from tailrace.client.transactions.sinks import CommittedBatch, WrittenMember
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import SinkMember
from tailrace.protocol.records.record import Record
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

PATIENCE_S = 120.0
TIMEOUT_MS = 600_000
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


def _write(admin: Admin, member: SinkMember, partition: TopicPartition, value: bytes) -> WrittenMember:
    written = admin.initialize_sink_member(member, transaction_timeout_ms=TIMEOUT_MS)
    admin.write_sink_records(written, partition, [Record(0, 1, None, value)], base_sequence=0)
    return written


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_the_next_coordinator_completes_a_batch_that_was_decided(tmp_path: Path) -> None:
    with (
        Cluster(brokers=3, directory=tmp_path, config=REPLICATED) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        admin.create_topics([NewTopic(name="orders", partitions=3, replication_factor=1)])
        (described_topic,) = admin.describe_topics(["orders"])
        leaders = {int(each.leader): TopicPartition("orders", each.partition) for each in described_topic.partitions}
        assert sorted(leaders) == cluster.broker_ids
        admin.commit_sink("copy", run="r0", batch=0, members=())
        (described,) = admin.describe_sinks(["copy"])
        coordinator = int(described.coordinator_id)
        silent, spoken = (broker for broker in cluster.broker_ids if broker != coordinator)
        members = [
            _write(admin, SinkMember("copy", "r1", 1, 0, 0), leaders[silent], b"silent"),
            _write(admin, SinkMember("copy", "r1", 1, 1, 0), leaders[spoken], b"spoken"),
        ]
        _write(admin, SinkMember("copy", "r1", 1, 1, 1), leaders[spoken], b"zombie")
        cluster.kill(silent)
        with ThreadPoolExecutor(1) as pool, Admin(cluster.bootstrap_servers) as driver:
            committing = pool.submit(
                driver.commit_sink, "copy", run="r1", batch=1, members=members, timeout_ms=int(PATIENCE_S * 1000)
            )
            wait_until(lambda: _is_half_complete(admin), "the batch is not decided")
            assert not committing.done(), "a partition of it cannot have its marker"
            assert committed_values(cluster.bootstrap_servers, leaders[spoken]) == [b"spoken"]
            cluster.kill(coordinator)
            cluster.start(silent)
            committed = committing.result(PATIENCE_S)
        assert committed.last_batch == 1
        assert admin.commit_sink("copy", run="r2", batch=1, members=()) == CommittedBatch(1, True)
        (described,) = admin.describe_sinks(["copy"])
        assert described.coordinator_id != coordinator
        assert (described.open_members, described.ending_members) == (0, 0)
        places = [leaders[silent], leaders[spoken]]
        assert [committed_values(cluster.bootstrap_servers, place) for place in places] == [[b"silent"], [b"spoken"]]
        assert is_nothing_open(cluster.bootstrap_servers, places)


def _is_half_complete(admin: Admin) -> bool:
    """Whether the batch is decided, and all but one of its members have their markers."""
    try:
        (described,) = admin.describe_sinks(["copy"])
    except KafkaError:
        return False
    return (described.last_batch, described.open_members, described.ending_members) == (1, 0, 1)
