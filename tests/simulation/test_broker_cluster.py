"""Brokers and their channel to the active controller in a simulated world: what is acknowledged stays, done once."""

from collections import Counter

import pytest

from budgets import blocks
from simulation.harness.network import NetworkFaults
from simulation.quorum.broker_cluster import BrokerCluster, BrokerPlan

pytestmark = pytest.mark.usefixtures("quiet")

STORMY = BrokerPlan(
    network=NetworkFaults(loss=0.1, duplication=0.15, slow=0.1, slow_delay_ms=2_500),
    crashes_per_s=0.4,
    isolations_per_s=0.5,
)


def test_in_calm_all_clients_administer_through_any_broker_and_none_is_fenced() -> None:
    cluster = BrokerCluster(1, BrokerPlan(chaos_ms=20_000))
    epochs: set[tuple[int, int]] = set()

    def look() -> None:
        for node in cluster.nodes.values():
            if node.is_up and node.session.broker_epoch >= 0:
                epochs.add((node.key.id, node.session.broker_epoch))

    cluster.world.after_event.append(look)
    cluster.run()
    assert cluster.acked > 200
    assert len(epochs) == len(cluster.nodes)  # each registered once


@pytest.mark.parametrize("seeds", blocks(5))
def test_acknowledged_requests_survive_crashes_isolation_loss_duplicates_and_delay(seeds: range) -> None:
    reached: Counter[str] = Counter()
    acked = 0
    for seed in seeds:
        cluster = BrokerCluster(seed, STORMY)
        cluster.run()
        acked += cluster.acked
        reached.update(cluster.world.sometimes)
    assert acked > 50 * len(seeds)
    states = ("asked a node that follows", "active controller crashed", "active controller isolated")
    if seeds.start == 0:  # the block that reaches all
        assert [state for state in states if not reached[state]] == []


@pytest.mark.parametrize("seed", [121, 141, 152])
def test_a_request_that_comes_late_and_twice_is_carried_out_once(seed: int) -> None:
    """Seeds whose topics came back after their deletion when envelopes were not numbered."""
    BrokerCluster(seed, STORMY).run()
