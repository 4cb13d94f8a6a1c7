"""Copies of partitions under faults: the product's hosts, with a seeded network, disks and clocks."""

from collections import Counter
from dataclasses import replace

import pytest

from budgets import blocks, examples
from simulation.harness.breach import Breach
from simulation.harness.network import NetworkFaults
from simulation.replicas.bad_disk_cluster import run_seed as run_bad_disk_seed
from simulation.replicas.cluster import TOPIC, ReplicaCluster, run_late_copies, run_seed
from simulation.replicas.forgetful_cluster import run_seed as run_forgetful_seed
from simulation.replicas.plan import ReplicaPlan
from tailrace.model.errors import KafkaError

SEEDS = examples(12)
BAD_DISK_SEEDS = max(1, SEEDS // 6)
FORGETFUL_SEEDS = range(4, 4 + max(4, SEEDS // 3))
"""The first ones stop no follower."""
LATE_COPY_SEEDS = max(1, SEEDS // 3)
SOMETIMES = (
    "crash",
    "leader crashed",
    "blackout",
    "power cut within a step",
    "false alarm",
    "election asked for",
    "reassignment",
    "partition: isolate leader",
    "partition: silence followers",
    "crash that loses what is in the page cache",
    "log cut",
    "in-sync replicas shrunk",
    "in-sync replicas grew",
    "an eligible leader",
    "session opened",
    "incremental fetch",
    "session evicted",
    "session error 70",
    "session error 71",
    "a follower rests",
    "high watermark sent alone",
    "consumer redirected",
    "consumer read from a follower",
    "consumer left a follower",
)


def test_a_broker_that_registers_late_is_waited_for() -> None:
    """In this seed it takes more than three seconds; the topic was to be created without this broker."""
    assert TOPIC in run_seed(5_007_689).metadata.image.topics


def test_a_replica_that_was_removed_before_a_power_cut_is_none_that_was_lost() -> None:
    """In this seed the replica is assigned again in the next life, and its entries in the checkpoints outlived its
    directory."""
    run_seed(5_007_780)


def test_a_replica_that_does_not_know_yet_that_it_was_removed_joins_no_more() -> None:
    """In this seed the replica is assigned again meanwhile, and was taken for in sync until it deleted its log."""
    run_seed(5_012_061)


@pytest.mark.parametrize("seeds", blocks(7))
def test_nothing_acknowledged_is_lost_and_all_copies_become_the_same(seeds: range) -> None:
    reached: Counter[str] = Counter()
    counted = 0
    for seed in seeds:
        cluster = run_seed(seed)
        reached.update(state for state, count in cluster.world.sometimes.items() if count)
        counted += cluster.counts
    if seeds.start == 0:  # the block that reaches all
        assert [state for state in SOMETIMES if not reached[state]] == []
    assert counted >= len(seeds) / 4


def test_without_faults_everything_is_acknowledged_at_once() -> None:
    cluster = ReplicaCluster(0, ReplicaPlan(chaos_ms=3000))
    cluster.run()
    assert cluster.acked > 200
    assert {epoch for _, epoch, _ in cluster.laws.leaders} == {0}, "no leadership was lost"


def test_the_same_seed_gives_the_same_run() -> None:
    first, other = run_seed(3), run_seed(3)
    assert (first.world.events, first.acked, first.describe()) == (other.world.events, other.acked, other.describe())


def test_a_leader_that_lost_committed_records_does_not_cut_other_logs() -> None:
    reached: Counter[str] = Counter()
    stopped = 0
    for seed in FORGETFUL_SEEDS:
        cluster = run_forgetful_seed(seed)
        reached.update(state for state, count in cluster.world.sometimes.items() if count)
        stopped += sum(node.fetchers.failed_partitions for node in cluster.nodes.values() if node.is_up)
    assert reached["committed records forgotten"]
    assert stopped


def test_writes_go_on_beside_one_disk_that_is_full_or_hangs() -> None:
    reached: Counter[str] = Counter()
    for seed in range(BAD_DISK_SEEDS):
        reached += run_bad_disk_seed(seed).world.sometimes
    assert reached["disk full"]
    assert reached["disk hung"]


def test_disks_that_lie_are_found_out() -> None:
    """A test of durability that passes on them tests nothing."""
    plan = ReplicaPlan(
        lying_sync=True, blackouts_per_s=0.5, network=NetworkFaults(), longest_disk_ms=1, produces_per_s=60
    )
    broken = []
    for seed in range(5):
        try:
            ReplicaCluster(seed, replace(plan, chaos_ms=5000, converge_ms=5000)).run()
        except Breach as breach:
            broken.append(breach.law)
        except KafkaError:
            continue  # a checkpoint is torn, and the node says so
    assert "in sync or eligible has everything committed" in broken


@pytest.mark.parametrize("min_in_sync", [1, 2, 3])
def test_one_broker_cut_off_stops_only_what_needs_it(min_in_sync: int) -> None:
    cluster = ReplicaCluster(1, ReplicaPlan(min_in_sync=min_in_sync, chaos_ms=6000))
    cluster.world.after(1000, lambda: cluster.network.separate([3], [0, 1, 2, 1000]))
    acked: list[int] = []
    for at_ms in (4500, 5900):
        cluster.world.after(at_ms, lambda: acked.append(cluster.acked))
    cluster.run()
    early, late = acked
    assert (late > early) is (min_in_sync < 3)


def test_a_late_proposal_puts_no_incomplete_replica_in_sync() -> None:
    for seed in range(LATE_COPY_SEEDS):
        run_late_copies(seed)


def test_followers_that_are_cut_off_from_their_leader_stay_out_of_sync_until_they_ask() -> None:
    """The high watermark stands still meanwhile, so that they lack nothing that is committed."""
    cluster = ReplicaCluster(2, ReplicaPlan(partitions=1, chaos_ms=14_000))
    world, network, metadata = cluster.world, cluster.network, cluster.metadata
    seen: list[tuple[int, tuple[int, ...]]] = []

    def look() -> None:
        state = metadata.image.partition(TOPIC, 0)
        if state is not None and (not seen or seen[-1][1] != state.in_sync_replicas):
            seen.append((world.now_ms, state.in_sync_replicas))

    def leave_only(*followers: int) -> None:
        state = metadata.image.partition(TOPIC, 0)
        assert state is not None
        network.heal()
        network.separate(
            [state.leader], [replica for replica in state.replicas if replica not in (state.leader, *followers)]
        )

    def return_one() -> None:
        state = metadata.image.partition(TOPIC, 0)
        assert state is not None
        back.append(next(replica for replica in state.replicas if replica != state.leader))
        leave_only(*back)

    back: list[int] = []
    world.after_event.append(look)
    world.after(4_000, leave_only)
    world.after(10_000, return_one)
    cluster.run()
    (_, all_three), (_, alone), (returned_ms, two), (rejoined_ms, _) = seen
    assert (len(all_three), len(alone), set(two)) == (3, 1, {*alone, *back})
    assert returned_ms >= 10_000
    assert rejoined_ms >= 14_000, "the other follower is cut off until calm begins"
