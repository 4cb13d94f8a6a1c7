"""Three of our nodes, as a measurement sees them."""

from benchmarks.peers.clusters import NODES, tailrace_cluster


def test_a_cluster_has_replicas_in_sync_again_after_a_leader_was_killed_and_counts_what_followers_fetch() -> None:
    with tailrace_cluster("page-cache") as cluster:
        cluster.create_topic("one", 2)
        leader = cluster.leader_of("one", 1)
        fetches, cpu_s = cluster.follower_fetches(leader), cluster.cpu_seconds()
        assert fetches > 0
        cluster.create_topic("two", 1)
        assert cluster.cpu_seconds() > cpu_s
        assert cluster.follower_fetches(leader) >= fetches
        cluster.kill(leader)
        cluster.start(leader)
        cluster.wait_until_in_sync("one", 2)
        assert {tuple(sorted(each.isr_nodes)) for each in cluster.partitions_of("one", leader)} == {NODES}
