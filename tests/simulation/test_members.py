"""Members of a group (KIP-848) and its coordinator under faults: the product's machines, with a seeded network."""

from collections import Counter

import pytest

from budgets import blocks
from simulation.members.cluster import MemberCluster, run_seed
from simulation.members.plan import MemberPlan
from simulation.members.sweep import STATES

SELDOM = frozenset(
    ("a heartbeat comes late", "a commit is refused: UNKNOWN_MEMBER_ID", "out of the group: OLD_GENERATION")
)
"""States that a block of seeds may miss."""


@pytest.mark.parametrize("seeds", blocks(14, first=29))
def test_no_partition_is_in_two_hands_and_what_was_released_is_committed(seeds: range) -> None:
    reached: Counter[str] = Counter()
    counted = 0
    for seed in seeds:
        cluster = run_seed(seed)
        reached.update(state for state, count in cluster.world.sometimes.items() if count)
        counted += cluster.counts
    if seeds.start == 29:  # the block that reaches all
        assert [state for state in STATES if not reached[state] and state not in SELDOM] == []
    assert counted >= len(seeds) / 3


def test_without_faults_nothing_is_read_twice_while_members_come_and_go() -> None:
    cluster = MemberCluster(1, MemberPlan(chaos_ms=20_000, joins_per_s=1.0, closes_per_s=0.5, statics=1))
    cluster.run()
    sometimes = cluster.world.sometimes
    assert sometimes["process closed"] >= 5
    assert cluster.changes >= 10
    assert not sometimes["records come again"]
    refused = [state for state, count in sometimes.items() if count and ("refused" in state or "out of" in state)]
    assert set(refused) <= {"a commit is refused: STALE_MEMBER_EPOCH"}  # an answer with a new epoch is on its way
    assert min(cluster.done.values()) > 50


def test_the_same_seed_gives_the_same_run() -> None:
    first, other = run_seed(3), run_seed(3)
    assert (first.world.events, first.changes, first.describe()) == (
        other.world.events,
        other.changes,
        other.describe(),
    )
