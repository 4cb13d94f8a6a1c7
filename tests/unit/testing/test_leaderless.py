"""The words about a partition whose only replica is on a killed node."""

import pytest

from tailrace.testing import Cluster
from tailrace.testing.failure_report import sections
from testkit.programs.waiting import wait_until


def test_waits_and_reports_say_that_a_partition_has_no_leader() -> None:
    with Cluster(brokers=3) as cluster:
        cluster.produce("orders", ["tea"])
        leader = cluster.wait_until_leader("orders")
        cluster.kill(leader)
        with pytest.raises(
            TimeoutError, match=rf"its replicas are on {leader}, of which none runs: replication_factor=3"
        ):
            cluster.wait_until_leader("orders", timeout=1)
        with pytest.raises(TimeoutError, match=r"waited [0-9.]+ s until topic 'orders' can be read to its end"):
            cluster.assert_holds("orders", ["tea"], timeout=1)
        wait_until(
            lambda: "(partition 0 has no leader now, and was not read)" in _records(cluster), "the report says so"
        )
        assert "(no records)" not in _records(cluster)


def _records(cluster: Cluster) -> str:
    return next(text for title, text in sections(cluster, 0) if title == "Tailrace topics: the last records")
