"""The hosts of a metadata quorum, the product's own, under loss, delay, partitions, power cuts and failing disks.

A failing test is a seed: `QuorumPlan.of(seed)` says what happens, `QuorumCluster(seed, plan).run()` does it again,
event by event. Many seeds: `python -m simulation nodes --first 1000 --count 500`.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from budgets import blocks
from simulation.harness.breach import Breach
from simulation.harness.shrink import Attempts, Shrinker
from simulation.quorum.cluster import QuorumCluster
from simulation.quorum.node import QuorumNode
from simulation.quorum.plan import QuorumPlan
from simulation.quorum.sweep import STATES
from tailrace.raft import events
from tailrace.server.quorum.controller import QuorumController
from tailrace.server.quorum.flushes import QuorumFlushes
from tailrace.server.quorum.metadata_directory import MetadataDirectory
from tailrace.testing.disk import TOTAL_SPACE

pytestmark = pytest.mark.usefixtures("quiet")


def run(seed: int, plan: QuorumPlan) -> QuorumCluster:
    cluster = QuorumCluster(seed, plan)
    try:
        cluster.run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}; {cluster.describe()}") from error
    return cluster


@pytest.mark.parametrize("seeds", blocks(9, first=3))
def test_every_law_holds_after_every_event_whatever_fails(seeds: range) -> None:
    sometimes: Counter[str] = Counter()
    counted = 0
    for seed in seeds:
        cluster = run(seed, QuorumPlan.of(seed))
        sometimes.update(cluster.world.sometimes)
        counted += cluster.counts
    if seeds.start == 3:  # the block that reaches all
        assert [state for state in STATES if not sometimes[state]] == []
    assert counted >= len(seeds) // 4


@pytest.mark.parametrize("seed", [5101, 5243])
def test_a_log_is_never_cut_inside_of_a_batch(seed: int) -> None:
    """The leader's log had ended, in an epoch that the follower lacks, in the middle of a batch of the follower's."""
    run(seed, QuorumPlan.of(seed))


def test_the_same_seed_is_the_same_run() -> None:
    def trace(seed: int) -> tuple[object, ...]:
        cluster = run(seed, QuorumPlan.of(seed))
        return cluster.world.events, cluster.laws.leaders, cluster.created, cluster.laws.image

    assert trace(5) == trace(5)


def test_without_faults_three_nodes_have_an_active_controller_within_a_second_and_keep_it() -> None:
    cluster = run(1, QuorumPlan(chaos_ms=1000))
    assert cluster.laws.leaders == {1: cluster.nodes[1].key}
    assert cluster.acked > 5


def test_a_new_node_catches_up_by_a_snapshot() -> None:
    cluster = QuorumCluster(3, QuorumPlan(observers=0, snapshot_bytes=1500, chaos_ms=8000))
    late = cluster.nodes[3]
    life = late.life
    late.start = lambda: None  # type: ignore[method-assign]
    cluster.world.after(6000, lambda: delattr(late, "start"))
    cluster.run()
    assert late.life is not life
    assert late.host.log.log_start_offset > 0
    assert cluster.world.sometimes["bytes of a snapshot served"]


# Faults that would go unnoticed in a run without faults, and must not here.


def breach(plan: QuorumPlan | None = None, seeds: range = range(40)) -> str | None:
    """The law that is broken first."""
    for seed in seeds:
        try:
            QuorumCluster(seed, plan or QuorumPlan.of(seed)).run()
        except Breach as found:
            return found.law
        except AssertionError:
            return "an assertion"
    return None


def test_a_disk_that_lies_is_found_out() -> None:
    assert breach(QuorumPlan(lying_sync=True, crashes_per_s=2.0)) is not None


def test_a_vote_that_is_not_written_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataDirectory, "write_quorum_state", lambda *_: None)
    assert breach() == "a promise is on disk when it leaves"


def test_a_flush_that_is_reported_too_early_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = QuorumFlushes._begin

    def too_early(self: Any) -> None:
        begun = self._begun
        begin(self)
        if self._begun > begun:
            host = self._on_flushed.__self__
            host.step(events.LogFlushed(self._begun))

    monkeypatch.setattr(QuorumFlushes, "_begin", too_early)
    plan = QuorumPlan(longest_disk_ms=40, blackouts_per_s=1.5, commands_per_s=50)
    assert breach(plan) in ("leader completeness", "committed is never lost or changed")


def test_an_image_that_is_shown_too_early_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = QuorumController._publish

    def too_early(self: Any) -> None:
        self._high_watermark = max(self._high_watermark, self._active._latest_end)
        publish(self)

    monkeypatch.setattr(QuorumController, "_publish", too_early)
    assert breach() == "only what is committed is shown"


def test_a_failing_run_shrinks_to_the_few_turns_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vote that is not written: it takes a node that comes back."""
    monkeypatch.setattr(MetadataDirectory, "write_quorum_state", lambda *_: None)
    all_attempts = [Attempts(QuorumCluster, seed) for seed in range(14)]
    attempts, failure = next(
        (attempts, failure)
        for attempts in all_attempts
        if (failure := attempts.failure(QuorumPlan.of(attempts.seed))) is not None
    )
    small = Shrinker(attempts, failure, max_runs=40).shrink()
    assert small.law == failure.law == "a promise is on disk when it leaves"
    assert 0 < len(small.turns) <= max(len(failure.turns) // 4, 3)


def test_a_full_disk_ends_a_leadership_and_is_reported() -> None:
    cluster = QuorumCluster(1, QuorumPlan(chaos_ms=4000))
    seen: list[object] = []

    def fill() -> None:
        leader = cluster.leader()
        assert leader is not None
        leader.files.free_space = 100
        cluster.world.after(400, lambda: look(leader))

    def look(node: QuorumNode) -> None:
        assert node.host.failure is not None
        assert node.told_failure is node.host.failure
        seen.append(node.host.node.is_leader)
        node.files.free_space = TOTAL_SPACE

    cluster.world.after(1500, fill)
    cluster.run()
    assert seen == [False]
    assert len(cluster.laws.leaders) > 1


def test_a_voter_that_has_lost_its_disk_does_not_vote_until_it_is_added_again() -> None:
    """With two voters left the loss of another voter is the loss of the majority, although the third voter is there."""
    cluster = QuorumCluster(1, QuorumPlan(observers=0, chaos_ms=12_000))
    world, nodes, seen = cluster.world, cluster.nodes, list[bool]()

    def stop_leader() -> None:
        leader = cluster.leader()
        assert leader is not None
        leader.crash()
        leader.start, start = lambda: None, leader.start  # type: ignore[method-assign]

        def look() -> None:
            seen.append(cluster.leader() is None)
            leader.start = start  # type: ignore[method-assign]

        world.after(4000, look)
        world.after(4100, lambda: cluster.revive(leader))

    def wipe() -> None:
        lost = next(node for node in nodes.values() if not node.controller.is_active)
        lost.wipe()
        cluster.revive(lost)
        world.after(2000, stop_leader)

    world.after(1500, wipe)
    cluster.run()
    assert seen == [True]


def test_the_plan_of_a_seed_differs_from_the_next() -> None:
    assert len({replace(QuorumPlan.of(seed), lying_sync=True) for seed in range(10)}) == 10
