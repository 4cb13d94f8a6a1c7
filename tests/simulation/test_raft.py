"""A quorum of the product's RaftNodes under loss, delay, duplicates, partitions, crashes and changes of voters.

A failing test is a seed: `RaftPlan.of(seed)` says what happens, `RaftCluster(seed, plan).run()` does it again, event by
event; `make sim SEED=n` tells what happens. Many seeds: `make sim SEEDS=n`.
"""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from budgets import blocks
from simulation.harness import sweep
from simulation.harness.breach import Breach
from simulation.harness.network import NetworkFaults
from simulation.harness.shrink import Attempts, Shrinker, explain
from simulation.harness.sweep import SweepFile, sweep_seeds
from simulation.raft.cluster import RaftCluster
from simulation.raft.faults import DiskTimes
from simulation.raft.plan import RaftPlan
from simulation.raft.sweep import RaftSweep, quorum_code_version, run_quorum_seed


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", blocks(50))
def test_every_law_holds_after_every_event_whatever_fails(seeds: range) -> None:
    """On two processes; what they reach is part of the test, so that it cannot quietly become harmless."""
    total = sweep_seeds(RaftSweep, run_quorum_seed, first=seeds.start, seeds=len(seeds))
    assert not total.failures, "\n".join(total.failures)
    if seeds.start == 0:  # the block that reaches all
        assert total.missed == []
    assert total.counted >= len(seeds) // 3


@pytest.mark.parametrize("seed", [1202])
def test_a_leader_that_comes_back_owes_nothing_to_its_former_followers(seed: int) -> None:
    """The leader had been asked for a snapshot just before it crashed; as a resigned leader it may delete that
    snapshot."""
    RaftCluster(seed, RaftPlan.of(seed)).run()


@pytest.mark.parametrize("seed", [3293])
def test_an_answer_that_waits_for_a_promise_may_find_that_its_records_have_gone(seed: int) -> None:
    """A leader of one voter had answered a fetch below the snapshot to which its log was then shortened."""
    RaftCluster(seed, RaftPlan.of(seed)).run()


@pytest.mark.parametrize("seed", [8477])
def test_voters_that_were_replaced_while_the_leader_lost_its_disk_find_the_next_leader(seed: int) -> None:
    """The voters answered each other that the former leader still leads, and never asked another node."""
    RaftCluster(seed, RaftPlan.of(seed)).run()


@pytest.mark.parametrize("seed", [4553])
def test_a_snapshot_is_whole_also_if_its_writer_crashed_in_the_step_in_which_it_was_written(seed: int) -> None:
    """The law learned of a snapshot when its writer's step had ended, which it never did."""
    RaftCluster(seed, RaftPlan.of(seed)).run()


def test_the_same_seed_is_the_same_run() -> None:
    def trace(seed: int) -> tuple[int, object, object]:
        cluster = RaftCluster(seed, RaftPlan.of(seed))
        cluster.run()
        return cluster.world.events, cluster.laws.states[-1], cluster.laws.leaders

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


def test_without_faults_three_nodes_have_a_leader_within_half_a_second_and_keep_it() -> None:
    plan = RaftPlan(chaos_ms=500)
    cluster = RaftCluster(1, plan)
    cluster.run()
    assert cluster.laws.leaders.keys() == {1}
    assert cluster.laws.leaders[1].id == 1


def test_split_votes_are_rare() -> None:
    """The leader dies; the next election has a winner nearly always, thanks to jitter and pre-votes."""
    epochs = []
    for seed in range(30):
        cluster = RaftCluster(seed, RaftPlan(voters=5, chaos_ms=3000, snapshots_per_s=0.001))
        world = cluster.world

        def kill(cluster: RaftCluster = cluster) -> None:
            leader = cluster.leader()
            assert leader is not None
            leader.crash()

        world.after(1500, kill)
        cluster.run()
        epochs.append(len([epoch for epoch in cluster.laws.leaders if epoch > 1]))
        assert max(cluster.laws.leaders) <= 4
    assert sum(count == 1 for count in epochs) >= 27


def test_the_loss_of_a_leader_costs_less_than_three_seconds() -> None:
    for seed in range(10):
        cluster = RaftCluster(seed, RaftPlan(chaos_ms=10_000))
        seen: list[int] = []

        def watch(cluster: RaftCluster = cluster, seen: list[int] = seen) -> None:
            seen.append(cluster.laws.committed_end)
            cluster.world.after(3000, watch)

        def kill(cluster: RaftCluster = cluster) -> None:
            leader = cluster.leader()
            if leader is not None:
                leader.crash()
                cluster.world.after(8000, leader.start)

        cluster.world.after(2000, kill)
        cluster.world.after(2000, watch)
        cluster.run()
        assert all(later > earlier for earlier, later in pairwise(seen)), seen


def test_a_minority_makes_no_progress_and_no_harm() -> None:
    cluster = RaftCluster(3, RaftPlan(voters=5, chaos_ms=6000))
    world = cluster.world

    def cut() -> None:
        leader = cluster.leader()
        assert leader is not None
        other = next(node_id for node_id in cluster.nodes if node_id != leader.key.id)
        rest = [node_id for node_id in cluster.nodes if node_id not in (leader.key.id, other)]
        cluster.network.separate([leader.key.id, other], rest)
        world.after(4000, lambda: seen.append(leader.node.is_leader))

    seen: list[bool] = []
    world.after(1000, cut)
    cluster.run()
    assert seen == [False]


def test_a_lost_message_in_five_and_slow_disks_only_slow_it_down() -> None:
    plan = RaftPlan(
        voters=5,
        observers=2,
        network=NetworkFaults(loss=0.2, duplication=0.2, slow=0.1),
        times=DiskTimes(min_flush_ms=5, max_flush_ms=60),
        chaos_ms=10_000,
    )
    cluster = RaftCluster(11, plan)
    cluster.run()
    assert cluster.acked >= 20


def test_a_breach_names_the_law_and_the_seed_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A voter that forgets its votes: the simulation has teeth."""
    from tailrace.raft.replica import RaftReplica

    monkeypatch.setattr(RaftReplica, "vote_for", lambda self, candidate: None)
    laws = set()
    for _ in range(2):
        with pytest.raises(Breach) as caught:
            RaftCluster(0, RaftPlan.of(0)).run()
        laws.add(caught.value.law)
    assert laws == {"a vote is on disk when it leaves"}


def test_a_failing_run_shrinks_to_the_few_turns_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut that keeps the voters of what was cut off: it takes a change of voters that is never committed."""
    from tailrace.raft.voters import VoterHistory

    monkeypatch.setattr(VoterHistory, "truncate", lambda self, end_offset: None)
    all_attempts = [Attempts(RaftCluster, seed) for seed in range(50)]
    attempts, failure = next(
        (attempts, failure)
        for attempts in all_attempts
        if (failure := attempts.failure(RaftPlan.of(attempts.seed))) is not None
    )
    small = Shrinker(attempts, failure, max_runs=60).shrink()
    assert small.law == failure.law
    assert len(small.turns) <= len(failure.turns) // 4
    explanation = explain(attempts, failure, max_runs=5)
    assert explanation.startswith(f"seed {attempts.seed}: {failure.law}")
    assert "leader" in explanation


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFile:
    """The results of a resumed sweep do not depend on the size of its blocks, which is 4 here."""
    monkeypatch.setattr(sweep, "BLOCK", 4)
    return SweepFile(tmp_path / "soak.json", "this")


def test_a_sweep_goes_on_where_it_was_interrupted(store: SweepFile) -> None:
    heard: list[int] = []

    def interrupt(total: RaftSweep) -> None:
        if total.seeds > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep_seeds(RaftSweep, run_quorum_seed, counted=5, processes=1, store=store, on_progress=interrupt)
    total = sweep_seeds(
        RaftSweep,
        run_quorum_seed,
        counted=5,
        processes=1,
        store=store,
        on_progress=lambda total: heard.append(total.seeds),
    )
    assert heard[0] == 5
    assert total.counted >= 5
    once = sweep_seeds(RaftSweep, run_quorum_seed, seeds=total.seeds, processes=1)
    assert (total.counted, total.events, total.sometimes) == (once.counted, once.events, once.sometimes)


def test_a_sweep_of_other_code_says_nothing(store: SweepFile) -> None:
    replace(store, code="another").save(RaftSweep(seeds=1000, counted=900))
    assert sweep_seeds(RaftSweep, run_quorum_seed, counted=1, processes=1, store=store).seeds == 4
    assert json.loads(store.path.read_text())["code"] == "this"


def test_the_version_of_the_code_is_that_of_the_machine_and_its_simulation() -> None:
    assert len(quorum_code_version()) == 16
