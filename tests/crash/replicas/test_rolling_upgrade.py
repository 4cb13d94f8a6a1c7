"""Three nodes of the release before this are replaced in turn; then the cluster takes the new format."""

from pathlib import Path

import pytest

from crash.topics import make_topic, wait_until_known
from tailrace.client.blocking import Admin, NewTopic
from tailrace.metadata.feature_levels import METADATA_VERSION, METADATA_VERSION_FEATURE, OLDEST_METADATA_VERSION
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster, ClusterError

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

OLDER = str(Path(__file__).with_name("older_release"))


def use(cluster: Cluster, name: str) -> None:
    """Every node takes a change, and all know it."""
    for node in cluster.node_ids:
        make_topic(cluster.address(node), NewTopic(name=f"{name}-{node}", partitions=2, replication_factor=3))
    wait_until_known(cluster, cluster.node_ids, {f"{name}-{node}" for node in cluster.node_ids})


def finalized(cluster: Cluster) -> set[int]:
    """The cluster's feature levels by the nodes' answers."""
    levels = set()
    for node in cluster.node_ids:
        with Admin(cluster.address(node)) as admin:
            levels.add(admin.describe_features().finalized[METADATA_VERSION_FEATURE])
    return levels


@pytest.mark.in_turn(2)
def test_nodes_are_replaced_one_by_one_and_then_the_format_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", OLDER)
    with Cluster(3, directory=tmp_path) as cluster:
        use(cluster, "before")
        assert finalized(cluster) == {OLDEST_METADATA_VERSION}
        monkeypatch.delenv("PYTHONPATH")
        for node in cluster.node_ids:
            with Admin(cluster.bootstrap_servers) as admin, pytest.raises(KafkaError) as refused:
                admin.update_features({METADATA_VERSION_FEATURE: METADATA_VERSION})
            assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
            cluster.restart(node)
            use(cluster, f"with-{node}")
            assert finalized(cluster) == {OLDEST_METADATA_VERSION}
        with Admin(cluster.bootstrap_servers) as admin:
            admin.update_features({METADATA_VERSION_FEATURE: METADATA_VERSION})
        use(cluster, "after")
        assert finalized(cluster) == {METADATA_VERSION}
        cluster.kill()
        cluster.start()
        use(cluster, "again")

        cluster.stop(3)
        monkeypatch.setenv("PYTHONPATH", OLDER)
        with pytest.raises(ClusterError, match="newer release|UNSUPPORTED_VERSION"):
            cluster.start(3)
