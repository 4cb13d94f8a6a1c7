"""Nodes of a quorum as real processes: they elect, die together, fall behind, join and leave."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from crash.topics import make_topic, topics_of, wait_until_known
from tailrace.cli.main import main
from tailrace.client.admin.quorum import QuorumDescription
from tailrace.client.blocking import Admin, NewTopic
from tailrace.testing import Cluster, ClusterError
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

OFTEN: Mapping[str, str] = {
    "offsets.topic.num.partitions": "1",
    "metadata.log.max.record.bytes.between.snapshots": "5000",
    "metadata.snapshot.min.changed_records.ratio": "0",
    "metadata.log.segment.bytes": "10000",
    "metadata.start.offset.lag.time.max.ms": "200",
}
"""Snapshots come often, and no replica that is behind is waited for."""
RETENTION = "retention.ms"
TOPIC = 2


def metadata_files(cluster: Cluster, node: int, suffix: str) -> list[str]:
    """The files of the metadata log, by name."""
    return sorted(path.stem for path in (cluster.data_dir(node) / "__cluster_metadata-0").glob(f"*{suffix}"))


def log_starts_at_a_snapshot(cluster: Cluster, node: int) -> bool:
    first, *_ = metadata_files(cluster, node, ".log")
    return int(first) > 0


def wait_until_logs_start_at_a_snapshot(cluster: Cluster) -> None:
    """The leader at the arrival of a node has no older log to give it."""
    running = [node for node in cluster.node_ids if cluster.is_running(node)]
    wait_until(lambda: all(log_starts_at_a_snapshot(cluster, node) for node in running), "the logs are cut short")


def fill(cluster: Cluster, node: int, name: str, count: int = 40) -> None:
    """Make topics, by this node alone."""
    with Admin(cluster.address(node)) as admin:
        for number in range(count):
            make_topic(cluster.address(node), NewTopic(name=f"{name}-{number}", partitions=3, replication_factor=2))
            admin.alter_configs(TOPIC, f"{name}-{number}", {RETENTION: str(number + 1)})


def quorum_of(address: str) -> QuorumDescription:
    with Admin(address) as admin:
        return admin.describe_quorum()


def test_three_nodes_started_together_elect_a_leader() -> None:
    with Cluster(3, config=OFTEN) as cluster:
        described = quorum_of(cluster.bootstrap_servers)
        assert [voter.replica_id for voter in described.voters] == [1, 2, 3]
        assert all(any(voter.directory_id) for voter in described.voters)
        assert described.leader_id in cluster.node_ids
        elected = f"role=leader epoch={described.leader_epoch} leader={described.leader_id}"
        wait_until(lambda: elected in cluster.log_text(described.leader_id), "the leader logs its role")


def test_after_kill_9_of_all_at_once_everything_is_back_by_itself(tmp_path: Path) -> None:
    with Cluster(3, racks=["a", "b", "c"], config=OFTEN, directory=tmp_path) as cluster:
        fill(cluster, 2, "before", 10)
        epoch = quorum_of(cluster.bootstrap_servers).leader_epoch
        for _ in range(2):
            cluster.kill()
            cluster.start()
            for node in cluster.node_ids:
                assert {f"before-{number}" for number in range(10)} <= topics_of(cluster, node)
        with Admin(cluster.bootstrap_servers) as admin:
            for number in range(10):
                configs = {config.name: config.value for config in admin.describe_configs(TOPIC, f"before-{number}")}
                assert configs[RETENTION] == str(number + 1)
        assert quorum_of(cluster.bootstrap_servers).leader_epoch > epoch
        fill(cluster, 3, "after", 2)


def test_a_leader_that_stood_still_finds_that_it_leads_no_more(tmp_path: Path) -> None:
    with Cluster(3, config=OFTEN, directory=tmp_path) as cluster:
        leader = cluster.controller_id
        epoch = quorum_of(cluster.bootstrap_servers).leader_epoch
        others = [node for node in cluster.node_ids if node != leader]
        cluster.pause(leader)
        fill(cluster, others[0], "meanwhile", 3)
        wait_until(lambda: quorum_of(cluster.address(others[0])).leader_id in others, "another leads")
        cluster.resume(leader)
        fill(cluster, leader, "after", 3)
        wait_until_known(cluster, cluster.node_ids, {"meanwhile-2", "after-2"})

        def agreed() -> bool:
            """Any leader will do."""
            told = {
                (quorum.leader_id, quorum.leader_epoch)
                for quorum in map(quorum_of, map(cluster.address, cluster.node_ids))
            }
            return len(told) == 1 and told.pop()[1] > epoch

        wait_until(agreed, "all name the same leader, of a later epoch")


@pytest.mark.always
def test_a_follower_that_was_stopped_past_the_log_start_comes_back_through_a_snapshot(tmp_path: Path) -> None:
    with Cluster(3, config=OFTEN, directory=tmp_path) as cluster:
        leader = cluster.controller_id
        behind = next(node for node in cluster.node_ids if node != leader)
        cluster.stop(behind)
        fill(cluster, leader, "meanwhile")
        wait_until_logs_start_at_a_snapshot(cluster)
        assert not log_starts_at_a_snapshot(cluster, behind)
        cluster.start(behind)
        assert "event=snapshot-installed" in cluster.log_text(behind)
        assert {f"meanwhile-{number}" for number in range(40)} <= topics_of(cluster, behind)
        cluster.kill(leader)  # and the node counts again: with it the two other nodes are a majority
        fill(cluster, behind, "after", 2)


def command(*words: str) -> None:
    """Run `tailrace`, which must succeed."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0, words


def voters_of(cluster: Cluster) -> list[int]:
    return [int(voter.replica_id) for voter in quorum_of(cluster.bootstrap_servers).voters]


def test_a_fresh_node_joins_a_quorum_whose_log_starts_at_a_snapshot_and_becomes_a_voter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(3, config=OFTEN, directory=tmp_path) as cluster:
        fill(cluster, 1, "before")
        leader = cluster.controller_id
        wait_until_logs_start_at_a_snapshot(cluster)
        newcomer = cluster.add_node(controller=True, rack="d")
        cluster.start(newcomer)
        assert "event=snapshot-installed" in cluster.log_text(newcomer)
        assert log_starts_at_a_snapshot(cluster, newcomer)
        assert {f"before-{number}" for number in range(40)} <= topics_of(cluster, newcomer)
        assert voters_of(cluster) == [1, 2, 3]

        where = ("--bootstrap-server", cluster.address(newcomer))
        command("quorum", "add-controller", "--config", str(cluster.config_file(newcomer)), *where)
        assert voters_of(cluster) == [1, 2, 3, newcomer]
        with pytest.raises(SystemExit) as ended:
            main(("quorum", "add-controller", "--config", str(cluster.config_file(newcomer)), *where))
        assert ended.value.code == 1
        assert "is a voter: remove it first" in capsys.readouterr().err
        command("quorum", "remove-controller", "--controller-id", str(leader), *where)
        wait_until(lambda: leader not in voters_of(cluster), "the leader does not vote any more")
        cluster.stop(leader)
        fill(cluster, newcomer, "after", 2)
        cluster.kill(*(node for node in cluster.node_ids if cluster.is_running(node)))
        cluster.start(*(node for node in cluster.node_ids if node != leader))
        assert {"before-39", "after-1"} <= topics_of(cluster, newcomer)


def observers_of(cluster: Cluster) -> list[int]:
    """The replicas with a contact to the leader since."""
    return [int(observer.replica_id) for observer in quorum_of(cluster.bootstrap_servers).observers]


@pytest.mark.parametrize("lost", ["", "__cluster_metadata-0"], ids=["all data", "the metadata"])
def test_a_node_that_lost_its_directory_is_named_and_votes_when_it_is_added_again(tmp_path: Path, lost: str) -> None:
    with Cluster(3, config=OFTEN, directory=tmp_path) as cluster:
        fill(cluster, 1, "before", 3)
        leader = cluster.controller_id
        wiped = next(node for node in cluster.node_ids if node != leader)
        cluster.kill(wiped)
        shutil.rmtree(cluster.data_dir(wiped) / lost)
        cluster.start(wiped)
        assert "event=voter-lost-its-directory" in cluster.log_text(wiped)
        wait_until(lambda: wiped in observers_of(cluster), "it is an observer")
        where = ("--bootstrap-server", cluster.address(leader))
        command("quorum", "remove-controller", "--controller-id", str(wiped), *where)
        command("quorum", "add-controller", "--config", str(cluster.config_file(wiped)), *where)
        cluster.kill(leader)
        fill(cluster, wiped, "after", 2)


@pytest.mark.parametrize("suffixes", [(".log",), (".checkpoint", ".log")], ids="-and-".join)
def test_a_node_with_a_damaged_metadata_log_names_it_and_does_not_vote(
    tmp_path: Path, suffixes: tuple[str, ...]
) -> None:
    """A snapshot alone is made good by the log (test_damaged_snapshot.py)."""
    with Cluster(3, config=OFTEN, directory=tmp_path) as cluster:
        fill(cluster, 1, "before", 10)
        leader = cluster.controller_id
        damaged = next(node for node in cluster.node_ids if node != leader)
        wait_until(lambda: len(metadata_files(cluster, damaged, ".checkpoint")) > 1, "there is a snapshot")
        cluster.stop(damaged)
        for suffix in suffixes:
            newest = metadata_files(cluster, damaged, suffix)[-1]
            path = cluster.data_dir(damaged) / "__cluster_metadata-0" / f"{newest}{suffix}"
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.chmod(0o644)
            path.write_bytes(content)
        with pytest.raises(ClusterError, match="damaged"):
            cluster.start(damaged)
        fill(cluster, leader, "after", 2)


def test_a_node_alone_recovers_when_a_majority_is_gone_for_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(3, config=OFTEN, directory=tmp_path) as cluster:
        fill(cluster, 1, "before", 5)
        left = cluster.controller_id
        gone = [node for node in cluster.node_ids if node != left]
        cluster.kill()
        config = str(cluster.config_file(left))
        with pytest.raises(SystemExit) as ended:
            main(("quorum", "recover", "--config", config))
        assert ended.value.code == 1
        told = capsys.readouterr().err
        assert "will be lost" in told
        assert all(f"node {node} will not vote any more" in told for node in gone)
        assert "nothing was changed" in told
        command("quorum", "recover", "--config", config, "--force")
        for node in gone:
            shutil.rmtree(cluster.data_dir(node))
        cluster.start(left)
        assert voters_of(cluster) == [left]
        assert {f"before-{number}" for number in range(5)} <= topics_of(cluster, left)
        cluster.start(*gone)
        for node in gone:
            where = ("--bootstrap-server", cluster.address(left))
            command("quorum", "add-controller", "--config", str(cluster.config_file(node)), *where)
        assert voters_of(cluster) == [1, 2, 3]
        cluster.kill(left)
        fill(cluster, gone[0], "after", 2)
