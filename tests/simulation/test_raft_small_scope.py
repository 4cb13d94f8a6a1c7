"""Every order in which a few things can happen to a small quorum: no order breaks a law.

Larger scopes: `make soak`, or `python -m simulation scope --writes 2 --crashes 1 --timeouts 1`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulation.harness.small_scope import Explored, ScopeBreach, explore
from simulation.mutants import Mutant
from simulation.raft.bench import voter_set
from simulation.raft.log import EpochRecord
from simulation.raft.scope.laws import PastEvents, View, learn
from simulation.raft.scope.scope import QuorumBudget, RaftScope
from tailrace.raft.leadership import RaftLeadership
from tailrace.raft.replica import RaftReplica
from tailrace.testing.node_process import package_path

MUTANTS = Path(__file__).parent / "mutants"


def search(budget: QuorumBudget, *, instant_disk: bool = False, may_look: bool = False) -> Explored:
    scope = RaftScope(instant_disk=instant_disk, may_look=may_look)
    found = explore(scope, scope.start(budget), max_states=100_000)
    print(f"{budget}, instant disk {instant_disk}: {found}")  # noqa: T201
    return found


@pytest.mark.parametrize(
    ("budget", "reached"),
    [
        (QuorumBudget(writes=2, duplicates=1), {"two writes are committed"}),
        (QuorumBudget(writes=2, crashes=1), {"two writes are committed"}),
        (QuorumBudget(writes=1, crashes=1, snapshots=1), {"a snapshot is installed", "a log starts at a snapshot"}),
        (QuorumBudget(voter_changes=1), {"a change of voters is committed", "a second leader"}),
    ],
    ids=lambda value: (
        str(value) if isinstance(value, QuorumBudget) else "-".join(sorted(value))
    ),  # the same in each worker
)
def test_every_order_of_a_few_things(budget: QuorumBudget, reached: set[str]) -> None:
    found = search(budget)
    assert found.is_complete
    assert reached <= found.sometimes


def test_every_order_of_a_write_and_an_election() -> None:
    found = search(QuorumBudget(writes=1, timeouts=1), instant_disk=True)
    assert found.is_complete
    assert {"a write survives its leader", "a log is cut"} <= found.sometimes


def test_every_order_of_an_election_with_all_asking_all() -> None:
    found = search(QuorumBudget(timeouts=1), may_look=True)
    assert found.is_complete
    assert "a second leader" in found.sometimes


def test_every_order_of_all_kinds_of_things_on_instant_disks() -> None:
    found = search(QuorumBudget(writes=1, snapshots=1, voter_changes=1), instant_disk=True)
    assert found.is_complete
    assert {"a snapshot is installed", "a change of voters is committed", "a write survives its leader"} <= (
        found.sometimes
    )


SEARCHED_BY_TWO = """
import json
from simulation.raft.scope.scope import QuorumBudget, RaftScope
from simulation.harness.small_scope import explore

scope = RaftScope()
found = explore(scope, scope.start(QuorumBudget(writes=1, crashes=1)), max_states=100_000, processes=2)
print(json.dumps([found.is_complete, found.states, sorted(found.sometimes)]))
"""


def test_two_processes_see_what_one_sees() -> None:
    alone = search(QuorumBudget(writes=1, crashes=1))
    done = subprocess.run(  # it forks, and so must have no threads
        [sys.executable, "-c", SEARCHED_BY_TWO],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": package_path(os.environ)},
    )
    assert done.returncode == 0, done.stderr
    is_complete, states, sometimes = json.loads(done.stdout)
    assert is_complete
    assert set(sometimes) == alone.sometimes
    # Two may come to a world in the same moment: then that world is counted twice.
    assert alone.states <= states <= alone.states * 1.1


@pytest.mark.parametrize(
    ("name", "budget", "broken"),
    [
        ("leader_counts_itself_before_its_flush", QuorumBudget(writes=1), "committed is on a majority's disks"),
        ("follower_acknowledges_before_its_flush", QuorumBudget(writes=1), "committed is on a majority's disks"),
        ("grants_a_second_vote", QuorumBudget(timeouts=2), "one leader per epoch"),
        ("counts_a_majority_of_the_old_epoch", QuorumBudget(timeouts=2), "one leader per epoch"),
        ("votes_twice_after_restart", QuorumBudget(timeouts=2, crashes=1), "one leader per epoch"),
        (
            "loses_a_voter_change_on_restart",
            QuorumBudget(voter_changes=1, crashes=1),
            "the voters are those of the log",
        ),
    ],
)
def test_the_search_finds_what_the_seeds_find(name: str, budget: QuorumBudget, broken: str) -> None:
    mutant = Mutant.read(MUTANTS / f"{name}.toml")
    assert broken in str(mutant.search(max_states=50_000, **budget._asdict()))


def test_the_search_tells_the_way_to_a_leader_that_counts_itself_before_its_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = RaftLeadership._durable_end

    def early(self: RaftLeadership, leader: Any, key: Any) -> int:
        return self._replica.end_offset if key == self._replica.key else original(self, leader, key)

    monkeypatch.setattr(RaftLeadership, "_durable_end", early)
    with pytest.raises(ScopeBreach, match="on a majority's disks") as caught:
        search(QuorumBudget(writes=1))
    assert any(action.startswith("write of 1") for action in caught.value.actions)


def test_worlds_that_differ_in_the_names_of_the_followers_alone_are_one() -> None:
    scope = RaftScope()
    world = scope.start(QuorumBudget(writes=1))
    write = next(action for action in scope.actions(world) if action.kind == "write")
    world = scope.take(world, write)
    deliveries = [action for action in scope.actions(world) if action.kind == "deliver"]
    assert sorted(action.node for action in deliveries) == [1, 2]
    first, second = (scope.take(world, delivery) for delivery in deliveries)
    assert first != second
    assert scope.fingerprint(first) == scope.fingerprint(second) != scope.fingerprint(world)


def test_logs_that_differ_below_an_entry_of_one_epoch_break_a_law() -> None:
    def follower(*entries: EpochRecord) -> View:
        return View(False, 2, 0, 0, entries, (0, ()), (), voter_set(1, 2, 3))

    same = EpochRecord(2, "same")
    with pytest.raises(AssertionError, match="log matching"):
        learn(
            PastEvents(), [follower(EpochRecord(1, "one"), same), follower(EpochRecord(1, "other"), same)], 0, None, 0
        )


def test_an_unknown_part_of_the_machine_stops_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RaftReplica.__init__

    def with_a_new_part(self: Any, **options: Any) -> None:
        original(self, **options)
        self.new_part = 1

    monkeypatch.setattr(RaftReplica, "__init__", with_a_new_part)
    with pytest.raises(AssertionError, match=r"Replica has changed: \['new_part'\]"):
        RaftScope().start(QuorumBudget())
