"""KIP-630, Kafka Raft snapshots: the text's sentences, in short, and what a replica does by them.

When a replica writes and deletes snapshots, and what they change of elections. Fetches have a file of their own.
"""

from typing import Any

import pytest

from scenarios.raft.replica_benches import follower_with, leader_with
from simulation.raft.bench import CLUSTER, RaftBench, voter_set
from simulation.raft.state import key_of
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import RaftConfig, SnapshotFile
from tailrace.raft.rpc import FetchRecords, FetchSnapshot, FetchSnapshotReply, SnapshotId, Vote, VoteReply
from tailrace.raft.snapshots import SnapshotTrigger, follower_log_start, superfluous_snapshots

DAY_MS = 24 * 3600 * 1000


class TestWhenToWriteMetadataSnapshots:
    """Both of these configurations need to be satisfied."""

    @pytest.mark.parametrize(
        ("changed", "log_bytes", "is_due"),
        [
            (500, 20 << 20, True),
            (499, 20 << 20, False),
            (500, (20 << 20) - 1, False),
            (0, (200 << 20) - 1, False),
            (0, 200 << 20, True),  # ours: regardless, past ten times the larger of snapshot and byte trigger
        ],
    )
    def test_a_snapshot_is_due_after_half_of_the_records_changed_and_20_mb_of_log(
        self, changed: int, log_bytes: int, is_due: bool
    ) -> None:
        trigger = SnapshotTrigger()
        asked = trigger.is_due(
            changed_records=changed,
            snapshot_records=1000,
            snapshot_bytes=1 << 20,
            log_bytes=log_bytes,
            has_snapshot=True,
        )
        assert asked is is_due

    def test_the_first_snapshot_is_due_after_20_mb_of_log_alone(self) -> None:
        trigger = SnapshotTrigger()
        common: dict[str, Any] = {
            "changed_records": 0,
            "snapshot_records": 0,
            "snapshot_bytes": 0,
            "has_snapshot": False,
        }
        assert trigger.is_due(log_bytes=20 << 20, **common)
        assert not trigger.is_due(log_bytes=1 << 20, **common)

    def test_the_bytes_after_which_a_snapshot_is_due_grow_with_the_snapshot(self) -> None:
        common: dict[str, Any] = {
            "changed_records": 0,
            "snapshot_records": 9,
            "snapshot_bytes": 100 << 20,
            "has_snapshot": True,
        }
        assert not SnapshotTrigger().is_due(log_bytes=(1000 << 20) - 1, **common)
        assert SnapshotTrigger().is_due(log_bytes=1000 << 20, **common)

    def test_a_snapshot_has_committed_records_alone(self) -> None:
        """An in-memory representation of the replicated log up to at most the high-watermark."""
        bench = leader_with(log=[1, 1, 1, 1])
        assert "not committed" in (bench.node.snapshot_fault(SnapshotId(4, 1)) or "")
        bench.fetch(2, 7, 2)
        assert bench.node.snapshot_fault(SnapshotId(4, 1)) is None
        assert "not of epoch" in (bench.node.snapshot_fault(SnapshotId(4, 2)) or "")
        assert "not of epoch" in (bench.node.snapshot_fault(SnapshotId(5, 1)) or "")
        assert bench.node.snapshot_fault(SnapshotId(5, 2)) is None


class TestWhenToRaiseTheLogStartOfTheMetadataLog:
    """There is a snapshot with an end offset of X, and all live replicas have replicated it, or it is old."""

    def bench(self) -> RaftBench:
        bench = leader_with(log=[1] * 10)
        bench.fetch(2, 13, 2)
        bench.fetch(3, 4, 1)
        bench.put_snapshot(SnapshotId(8, 1), last_contained_ms=bench.now_ms)
        bench.step(events.SnapshotWritten(SnapshotId(8, 1)))
        return bench

    def test_the_log_start_waits_for_a_live_replica_that_is_behind(self) -> None:
        bench = self.bench()
        assert bench.all(do.RaiseLogStart) == []
        bench.fetch(3, 8, 1)
        bench.advance(2000)
        assert bench.all(do.RaiseLogStart) == [do.RaiseLogStart(8)]

    def test_a_replica_one_record_behind_keeps_the_log_start_of_the_metadata_log(self) -> None:
        """ "All of the live replicas (followers and observers) have replicated LogStartOffset." """
        bench = self.bench()
        bench.fetch(3, 7, 1)
        bench.advance(2000)
        assert bench.all(do.RaiseLogStart) == []

    def test_the_log_start_waits_for_an_observer_too(self) -> None:
        bench = self.bench()
        bench.fetch(9, 4, 1)
        bench.fetch(3, 8, 1)
        bench.advance(2000)
        assert bench.all(do.RaiseLogStart) == []

    def test_the_log_start_does_not_wait_for_a_replica_that_has_not_fetched_for_300_s(self) -> None:
        bench = self.bench()
        for _ in range(299):
            bench.fetch(2, 13, 2)
            bench.advance(1000)
        assert bench.all(do.RaiseLogStart) == []
        for _ in range(3):
            bench.fetch(2, 13, 2)
            bench.advance(1000)
        assert bench.all(do.RaiseLogStart) == [do.RaiseLogStart(8)]

    def test_the_log_start_waits_for_a_replica_7_days_at_most(self) -> None:
        bench = leader_with(log=[1] * 10)
        bench.fetch(2, 13, 2)
        bench.fetch(3, 4, 1)
        bench.put_snapshot(SnapshotId(8, 1), last_contained_ms=bench.now_ms - 7 * DAY_MS + 500)
        bench.step(events.SnapshotWritten(SnapshotId(8, 1)))
        assert bench.all(do.RaiseLogStart) == []
        bench.advance(1200)
        assert bench.all(do.RaiseLogStart) == [do.RaiseLogStart(8)]

    def test_the_log_start_waits_for_a_voter_without_a_fetch_since_the_election(self) -> None:
        """Live or not: that is known only when it could have fetched for 300 s."""
        bench = leader_with(log=[1] * 10)
        bench.fetch(2, 13, 2)
        bench.put_snapshot(SnapshotId(8, 1), last_contained_ms=bench.now_ms)
        bench.step(events.SnapshotWritten(SnapshotId(8, 1)))
        for _ in range(299):
            bench.fetch(2, 13, 2)
            bench.advance(1000)
        assert bench.all(do.RaiseLogStart) == []
        bench.fetch(2, 13, 2)
        bench.advance(1400)
        assert bench.all(do.RaiseLogStart) == [do.RaiseLogStart(8)]

    def test_the_log_start_of_a_follower_is_the_leaders_or_its_own_largest_snapshot(self) -> None:
        snapshots = [SnapshotFile(SnapshotId(end, 1), 1, 0) for end in (5, 9)]
        assert follower_log_start(snapshots, 0, leaders=7) == 7
        assert follower_log_start(snapshots, 0, leaders=20) == 9
        assert follower_log_start([], 0, leaders=20) == 0
        assert follower_log_start(snapshots, 8, leaders=7) == 8

    def test_a_follower_raises_its_log_start_when_the_leader_has(self) -> None:
        bench = follower_with(log=[1] * 10, snapshots=[SnapshotId(6, 1)])
        (sent,) = bench.sent(FetchRecords)
        bench.answer(sent, bench.led(high_watermark=10, log_start_offset=8))
        assert bench.last(do.RaiseLogStart) == do.RaiseLogStart(6)


class TestWhenToDeleteMetadataSnapshots:
    """Any snapshot with an end offset less than the LogStartOffset is deleted."""

    def files(self, *ends: int) -> list[SnapshotFile]:
        return [SnapshotFile(SnapshotId(end, 1), 1, 0) for end in ends]

    def test_snapshots_below_the_log_start_are_deleted(self) -> None:
        assert superfluous_snapshots(self.files(3, 5, 8), 5) == (SnapshotId(3, 1),)

    def test_above_the_log_start_the_next_the_newest_and_fetched_snapshots_stay(self) -> None:
        served = [SnapshotId(12, 1)]
        assert superfluous_snapshots(self.files(5, 8, 10, 12, 14, 16), 5, served) == (
            SnapshotId(10, 1),
            SnapshotId(14, 1),
        )

    def test_a_snapshot_that_is_being_fetched_holds_the_log_start_back(self) -> None:
        bench = leader_with(log=[1] * 8, log_start=2, snapshots=[SnapshotId(2, 1)], config=RaftConfig())
        assert bench.fetched(3, 1, 1).snapshot_id == SnapshotId(2, 1)
        bench.put_snapshot(SnapshotId(6, 1))
        bench.fetch(2, bench.log.end_offset, 2)
        bench.step(events.SnapshotWritten(SnapshotId(6, 1)))
        bench.advance(1400)
        assert (bench.all(do.RaiseLogStart), bench.all(do.DeleteSnapshots)) == ([], [])


class TestRaftElectionsWithSnapshots:
    """The latest epoch and end offset of a replica is the latest snapshot or replicated log."""

    def vote(self, last_epoch: int, last_offset: int) -> Vote:
        return Vote(
            cluster_id=CLUSTER,
            candidate_epoch=9,
            candidate=key_of(3),
            voter=key_of(1),
            last_epoch=last_epoch,
            last_offset=last_offset,
            pre_vote=False,
        )

    @pytest.mark.parametrize(
        ("last_epoch", "last_offset", "granted"), [(4, 40, True), (4, 39, False), (3, 90, False), (5, 2, True)]
    )
    def test_a_voter_with_a_snapshot_and_no_log_compares_its_snapshot(
        self, last_epoch: int, last_offset: int, granted: bool
    ) -> None:
        bench = RaftBench(log_start=40, snapshots=[SnapshotId(40, 4)])
        response = bench.receive(self.vote(last_epoch, last_offset))
        assert isinstance(response, VoteReply)
        assert response.vote_granted is granted

    @pytest.mark.parametrize(
        ("last_epoch", "last_offset", "granted"),
        [(1, 10, False), (4, 39, False), (4, 40, True), (5, 2, True)],
    )
    @pytest.mark.parametrize("is_damaged", [False, True])
    def test_a_voter_compares_the_snapshot_that_is_being_validated(
        self, last_epoch: int, last_offset: int, granted: bool, is_damaged: bool
    ) -> None:
        """The follower needs to use the snapshot with epoch E1 and end offset O1, and not the replicated log."""
        bench = follower_with(log=[1, 1])
        bench.answer(bench.sent(FetchRecords)[0], bench.led(snapshot_id=SnapshotId(40, 4), log_start_offset=40))
        part = FetchSnapshotReply(
            leader_id=2, leader_epoch=5, snapshot_id=SnapshotId(40, 4), size=1, position=0, data=b"x"
        )
        bench.answer(bench.sent(FetchSnapshot)[0], part)
        if is_damaged:  # then the log is all that there is
            bench.step(events.SnapshotRejected(SnapshotId(40, 4), "a checksum"))
        response = bench.receive(self.vote(last_epoch, last_offset))
        assert isinstance(response, VoteReply)
        assert response.vote_granted is (granted or is_damaged)

    def test_a_snapshot_newer_than_the_log_replaces_it_at_the_start(self) -> None:
        """The replica must set the LogStartOffset and LEO to the snapshot's end offset."""
        bench = RaftBench(log=[1, 1, 1], snapshots=[SnapshotId(40, 4)])
        assert (bench.log.log_start_offset, bench.log.end_offset, bench.log.last_epoch) == (40, 40, 4)
        bench.advance(1100)
        request = bench.sent(Vote)[0].request
        assert isinstance(request, Vote)
        assert (request.last_epoch, request.last_offset) == (4, 40)

    def test_a_metadata_log_newer_than_its_snapshot_stays_at_the_start(self) -> None:
        bench = RaftBench(log=[1] * 3 + [2], snapshots=[SnapshotId(3, 1)])
        assert (bench.log.log_start_offset, bench.log.end_offset) == (0, 4)

    def test_the_voters_of_a_snapshot_are_the_voters_of_the_replica_that_loads_it(self) -> None:
        bench = follower_with()
        bench.answer(bench.sent(FetchRecords)[0], bench.led(snapshot_id=SnapshotId(40, 4), log_start_offset=40))
        part = FetchSnapshotReply(
            leader_id=2, leader_epoch=5, snapshot_id=SnapshotId(40, 4), size=1, position=0, data=b"x"
        )
        bench.answer(bench.sent(FetchSnapshot)[0], part)
        bench.install(SnapshotId(40, 4), voter_set(1, 2, 3, 4))
        assert bench.node.voters == voter_set(1, 2, 3, 4)
        assert bench.node.voters_at(40) == voter_set(1, 2, 3, 4)
