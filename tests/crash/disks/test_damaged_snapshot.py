"""A bit of the newest metadata snapshot flips while a node is down: the node starts, with all that was acknowledged."""

from pathlib import Path

import pytest

from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

pytestmark = pytest.mark.crash

SETTINGS = {
    "metadata.log.max.record.bytes.between.snapshots": "4000",
    "metadata.snapshot.min.changed_records.ratio": "0",
}


@pytest.mark.parametrize("brokers", [1, 3])
def test_the_log_stands_in_for_it(brokers: int, tmp_path: Path) -> None:
    with Cluster(brokers=brokers, directory=tmp_path, config=SETTINGS) as cluster:
        names = [f"topic-{number}" for number in range(30)]
        with Admin(cluster.bootstrap_servers) as admin:
            for name in names:
                admin.create_topics({name: 5})
        cluster.kill()
        for node in cluster.node_ids:
            snapshots = (cluster.data_dir(node) / "__cluster_metadata-0").glob("*.checkpoint")
            newest = max(path for path in snapshots)
            assert int(newest.name.partition("-")[0]) > 0
            flip_a_bit(newest)
        for turn in range(2):
            cluster.start()
            with Admin(cluster.bootstrap_servers) as admin:
                assert set(names) <= {topic.name for topic in admin.list_topics()}
                admin.create_topics({f"later-{turn}": 1})
            cluster.kill()
        for node in cluster.node_ids:
            log = cluster.log_text(node)
            assert sum("event=metadata-snapshot-damaged " in line for line in log.splitlines()) == 1, log


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
