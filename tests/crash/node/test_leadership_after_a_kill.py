"""A node that was killed leads its partitions again by itself, whatever its durability (decision 0043, KIP-966)."""

from pathlib import Path

import pytest

from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.metadata.image import EMPTY_IMAGE
from tailrace.metadata.records.kinds import decode_record
from tailrace.metadata.replay import apply_all
from tailrace.model.partitions import PartitionState
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.testing import Cluster

METADATA_LOG = "__cluster_metadata-0/00000000000000000000.log"


def state_of(directory: Path, topic: str) -> PartitionState:
    """The partition as the metadata log has it."""
    log = (directory / METADATA_LOG).read_bytes()
    records = [
        decode_record(record.value)
        for position, header in iter_batches(log)
        if not header.is_control
        for record in read_records(log, position)
        if record.value is not None
    ]
    image, _ = apply_all(EMPTY_IMAGE, records)
    state = image.partition(topic, 0)
    assert state is not None
    return state


@pytest.mark.crash
@pytest.mark.parametrize("durability", ["flushed", "page-cache"])
def test_the_only_replica_leads_again_and_needs_no_recovery(tmp_path: Path, durability: str) -> None:
    with Cluster(directory=tmp_path, config={"log.durability": durability}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="orders", partitions=1)])
        for _ in range(2):
            cluster.kill()
            cluster.restart()
            with Producer(cluster.bootstrap_servers) as producer:
                producer.send("orders", b"value").result(30)
        cluster.stop()
        state = state_of(cluster.data_dir(), "orders")
    assert (state.leader, state.in_sync_replicas, state.eligible_leader_replicas) == (1, (1,), ())
    assert not state.is_recovering
    assert state.leader_epoch == 4, "two elections for each kill: no leader, and then this broker again"
