"""KIP-630, Kafka Raft snapshots: the text's sentences, in short, and what a replica does by them."""

from typing import Any

import pytest

from simulation.raft.bench import CLUSTER, RaftBench, error_of, voter_set
from simulation.raft.state import key_of
from tailrace.model.errors import ErrorCode, MalformedMessage
from tailrace.model.ids import METADATA_TOPIC_ID
from tailrace.protocol.messages import fetch
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import RaftConfig, SnapshotFile
from tailrace.raft.rpc import (
    BeginEpoch,
    FetchRecords,
    FetchSnapshot,
    FetchSnapshotReply,
    LogEnd,
    SnapshotId,
    Vote,
    VoteReply,
)
from tailrace.raft.snapshots import (
    SnapshotTrigger,
    fair_shares,
    follower_log_start,
    superfluous_snapshots,
    validate_position,
)
from tailrace.server.quorum.raft_wire import request_to_wire, response_from_wire, response_to_wire

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS


def leader_with(
    *, log: list[int], log_start: int = 0, snapshots: list[SnapshotId] | None = None, **more: Any
) -> RaftBench:
    """Node 1, just elected, its LeaderChange record at the end of this log."""
    bench = RaftBench(log=log, log_start=log_start, snapshots=snapshots or [], **more)
    bench.elect()
    bench.forget()
    return bench


def follower_with(**more: Any) -> RaftBench:
    """Node 1, following node 2 in epoch 5, its first fetch sent."""
    bench = RaftBench(**more)
    begin = BeginEpoch(cluster_id=CLUSTER, leader_id=2, leader_epoch=5, voter=key_of(1))
    assert error_of(bench.receive(begin)) is ErrorCode.NONE
    return bench


def fetch_answer_with(fields: dict[str, Any]) -> fetch.FetchResponse:
    """The answer of node 2, which leads in epoch 5, to a Fetch."""
    part = fetch.PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=2,
        last_stable_offset=2,
        log_start_offset=7,
        current_leader=fetch.LeaderIdAndEpoch(leader_id=2, leader_epoch=5),
        aborted_transactions=None,
        records=b"",
        **fields,
    )
    topic = fetch.FetchableTopicResponse(topic="__cluster_metadata", topic_id=METADATA_TOPIC_ID, partitions=(part,))
    return fetch.FetchResponse(responses=(topic,))


def snapshot_request(snapshot_id: SnapshotId, position: int, max_bytes: int, epoch: int) -> FetchSnapshot:
    return FetchSnapshot(
        cluster_id=CLUSTER,
        replica=key_of(3),
        leader_epoch=epoch,
        snapshot_id=snapshot_id,
        position=position,
        max_bytes=max_bytes,
    )


class TestWhenToSnapshot:
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
    def test_half_of_the_records_changed_and_20_mb_of_log(self, changed: int, log_bytes: int, is_due: bool) -> None:
        trigger = SnapshotTrigger()
        asked = trigger.is_due(
            changed_records=changed,
            snapshot_records=1000,
            snapshot_bytes=1 << 20,
            log_bytes=log_bytes,
            has_snapshot=True,
        )
        assert asked is is_due

    def test_without_a_snapshot_the_ratio_is_met(self) -> None:
        trigger = SnapshotTrigger()
        common: dict[str, Any] = {
            "changed_records": 0,
            "snapshot_records": 0,
            "snapshot_bytes": 0,
            "has_snapshot": False,
        }
        assert trigger.is_due(log_bytes=20 << 20, **common)
        assert not trigger.is_due(log_bytes=1 << 20, **common)

    def test_the_bound_grows_with_the_snapshot(self) -> None:
        common: dict[str, Any] = {
            "changed_records": 0,
            "snapshot_records": 9,
            "snapshot_bytes": 100 << 20,
            "has_snapshot": True,
        }
        assert not SnapshotTrigger().is_due(log_bytes=(1000 << 20) - 1, **common)
        assert SnapshotTrigger().is_due(log_bytes=1000 << 20, **common)

    def test_only_committed_records_are_snapshotted(self) -> None:
        """An in-memory representation of the replicated log up to at most the high-watermark."""
        bench = leader_with(log=[1, 1, 1, 1])
        assert "not committed" in (bench.node.snapshot_fault(SnapshotId(4, 1)) or "")
        bench.fetch(2, 7, 2)
        assert bench.node.snapshot_fault(SnapshotId(4, 1)) is None
        assert "not of epoch" in (bench.node.snapshot_fault(SnapshotId(4, 2)) or "")
        assert "not of epoch" in (bench.node.snapshot_fault(SnapshotId(5, 1)) or "")
        assert bench.node.snapshot_fault(SnapshotId(5, 2)) is None


class TestWhenToIncreaseTheLogStartOffset:
    """There is a snapshot with an end offset of X, and all live replicas have replicated it, or it is old."""

    def bench(self) -> RaftBench:
        bench = leader_with(log=[1] * 10)
        bench.fetch(2, 13, 2)
        bench.fetch(3, 4, 1)
        bench.put_snapshot(SnapshotId(8, 1), last_contained_ms=bench.now_ms)
        bench.step(events.SnapshotWritten(SnapshotId(8, 1)))
        return bench

    def test_a_live_replica_that_is_behind_is_waited_for(self) -> None:
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

    def test_an_observer_is_a_replica_too(self) -> None:
        bench = self.bench()
        bench.fetch(9, 4, 1)
        bench.fetch(3, 8, 1)
        bench.advance(2000)
        assert bench.all(do.RaiseLogStart) == []

    def test_a_replica_that_has_not_fetched_for_300_s_is_not_live(self) -> None:
        bench = self.bench()
        for _ in range(299):
            bench.fetch(2, 13, 2)
            bench.advance(1000)
        assert bench.all(do.RaiseLogStart) == []
        for _ in range(3):
            bench.fetch(2, 13, 2)
            bench.advance(1000)
        assert bench.all(do.RaiseLogStart) == [do.RaiseLogStart(8)]

    def test_a_replica_that_stays_behind_is_waited_for_at_most_7_days(self) -> None:
        bench = leader_with(log=[1] * 10)
        bench.fetch(2, 13, 2)
        bench.fetch(3, 4, 1)
        bench.put_snapshot(SnapshotId(8, 1), last_contained_ms=bench.now_ms - 7 * DAY_MS + 500)
        bench.step(events.SnapshotWritten(SnapshotId(8, 1)))
        assert bench.all(do.RaiseLogStart) == []
        bench.advance(1200)
        assert bench.all(do.RaiseLogStart) == [do.RaiseLogStart(8)]

    def test_a_voter_without_a_fetch_since_the_election_is_waited_for(self) -> None:
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

    def test_a_followers_is_the_leaders_or_its_own_largest_snapshot(self) -> None:
        snapshots = [SnapshotFile(SnapshotId(end, 1), 1, 0) for end in (5, 9)]
        assert follower_log_start(snapshots, 0, leaders=7) == 7
        assert follower_log_start(snapshots, 0, leaders=20) == 9
        assert follower_log_start([], 0, leaders=20) == 0
        assert follower_log_start(snapshots, 8, leaders=7) == 8

    def test_a_follower_raises_it_when_the_leader_says_so(self) -> None:
        bench = follower_with(log=[1] * 10, snapshots=[SnapshotId(6, 1)])
        (sent,) = bench.sent(FetchRecords)
        bench.answer(sent, bench.led(high_watermark=10, log_start_offset=8))
        assert bench.last(do.RaiseLogStart) == do.RaiseLogStart(6)


class TestWhenToDeleteSnapshots:
    """Any snapshot with an end offset less than the LogStartOffset is deleted."""

    def files(self, *ends: int) -> list[SnapshotFile]:
        return [SnapshotFile(SnapshotId(end, 1), 1, 0) for end in ends]

    def test_those_below_the_log_start_go(self) -> None:
        assert superfluous_snapshots(self.files(3, 5, 8), 5) == (SnapshotId(3, 1),)

    def test_above_it_the_next_the_newest_and_those_being_fetched_stay(self) -> None:
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


class TestHandlingFetchRequests:
    """If FetchOffset is less than LogStartOffset the leader responds with the SnapshotId of the latest snapshot."""

    SNAPSHOTS = [SnapshotId(4, 2), SnapshotId(7, 3)]  # noqa: RUF012

    def bench(self) -> RaftBench:
        return leader_with(log=[3, 3, 3, 4, 4], log_start=4, snapshots=self.SNAPSHOTS)

    @pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (3, 2), (3, 9), (1, 1)])
    def test_below_the_log_start(self, offset: int, epoch: int) -> None:
        bench = self.bench()
        epoch = min(epoch, bench.node.epoch)
        response = bench.fetched(2, offset, epoch)
        assert (response.snapshot_id, response.diverging) == (SnapshotId(7, 3), None)
        assert bench.last(do.SendResponse).read is None

    def test_at_the_log_start_with_the_epoch_of_the_snapshot_there(self) -> None:
        bench = self.bench()
        response = bench.fetched(2, 4, 2)
        assert (response.snapshot_id, response.diverging) == (None, None)
        assert bench.last(do.SendResponse).read == do.ReadLog(4, 1 << 20)

    def test_a_stale_tail_that_ends_exactly_at_the_log_start_gets_the_snapshot(self) -> None:
        assert self.bench().fetched(2, 4, 1).snapshot_id == SnapshotId(7, 3)

    def test_a_log_start_without_a_snapshot_there_decides_nothing(self) -> None:
        bench = leader_with(log=[3, 3, 3, 4, 4], log_start=4, snapshots=[SnapshotId(7, 3)])
        assert bench.fetched(2, 4, 3).snapshot_id == SnapshotId(7, 3)
        assert bench.fetched(2, 5, 3).snapshot_id is None

    @pytest.mark.parametrize(
        ("offset", "epoch", "diverging"), [(8, 3, LogEnd(3, 7)), (6, 2, LogEnd(2, 4)), (30, 4, LogEnd(4, 9))]
    )
    def test_above_it_the_logs_part_where_the_epochs_do(self, offset: int, epoch: int, diverging: LogEnd) -> None:
        response = self.bench().fetched(2, offset, epoch)
        assert (response.diverging, response.snapshot_id) == (diverging, None)

    def test_an_epoch_older_than_anything_known_gets_the_snapshot(self) -> None:
        assert self.bench().fetched(2, 6, 1).snapshot_id == SnapshotId(7, 3)

    def test_a_new_replica_reads_a_log_that_is_whole(self) -> None:
        bench = leader_with(log=[1, 1], snapshots=[SnapshotId(1, 1)])
        assert bench.fetched(2, 0, 0).snapshot_id is None

    def test_the_same_for_a_bare_log(self) -> None:
        bench = RaftBench(log=[3, 3], log_start=4, snapshots=[SnapshotId(4, 2)])
        assert str(validate_position(bench.log, 4, 3)) == "NeedsSnapshot(id=SnapshotId(end_offset=4, epoch=2))"


class TestHandlingFetchResponses:
    """If SnapshotId is set the follower pauses fetching of the log and fetches the snapshot."""

    ID = SnapshotId(40, 4)

    def downloading(self, **more: Any) -> RaftBench:
        bench = follower_with(**more)
        (sent,) = bench.sent(FetchRecords)
        bench.answer(sent, bench.led(snapshot_id=self.ID, log_start_offset=40, high_watermark=44))
        return bench

    def part(self, bench: RaftBench, at: int, data: bytes, size: int = 10, **more: Any) -> FetchSnapshotReply:
        fields: dict[str, Any] = {
            "leader_id": 2,
            "leader_epoch": 5,
            "snapshot_id": self.ID,
            "size": size,
            "position": at,
        } | more
        return FetchSnapshotReply(data=data, **fields)

    def test_fetching_of_the_log_pauses(self) -> None:
        bench = self.downloading(log=[1, 1])
        bench.advance(300)
        assert len(bench.sent(FetchRecords)) == 1
        (sent,) = bench.sent(FetchSnapshot)
        request = sent.request
        assert isinstance(request, FetchSnapshot)
        assert (request.snapshot_id, request.position, request.leader_epoch) == (self.ID, 0, 5)

    def test_the_next_position_is_that_of_the_answer_plus_its_bytes(self) -> None:
        bench = self.downloading()
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdef"))
        assert bench.last(do.WriteSnapshotPart) == do.WriteSnapshotPart(self.ID, 0, b"abcdef")
        assert bench.sent(FetchSnapshot)[1].request.position == 6  # type: ignore[union-attr]
        assert bench.all(do.InstallSnapshot) == []

    def test_complete_it_is_validated_and_moved_and_only_then_loaded(self) -> None:
        bench = self.downloading(log=[1, 1])
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdef"))
        bench.answer(bench.sent(FetchSnapshot)[1], self.part(bench, 6, b"ghij"))
        assert bench.last(do.InstallSnapshot) == do.InstallSnapshot(self.ID)
        assert bench.all(do.LoadSnapshot) == []
        bench.forget()
        bench.install(self.ID)
        assert bench.last(do.LoadSnapshot) == do.LoadSnapshot(self.ID)
        assert bench.last(do.HighWatermarkMoved) == do.HighWatermarkMoved(40)

    def test_fetching_resumes_at_the_snapshots_end_with_its_epoch(self) -> None:
        bench = self.downloading(log=[1, 1])
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdefghij"))
        bench.forget()
        bench.install(self.ID)
        (sent,) = bench.sent(FetchRecords)
        request = sent.request
        assert isinstance(request, FetchRecords)
        assert (request.fetch_offset, request.last_fetched_epoch) == (40, 4)
        assert (bench.log.log_start_offset, bench.log.end_offset) == (40, 40)

    def test_nothing_is_fetched_while_it_is_validated(self) -> None:
        bench = self.downloading()
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdefghij"))
        bench.forget()
        bench.advance(5000)
        assert bench.all(do.SendRequest) == []
        assert bench.role == "Follower"

    def test_a_damaged_one_is_forgotten_and_fetched_again(self) -> None:
        bench = self.downloading()
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdefghij"))
        bench.forget()
        bench.step(events.SnapshotRejected(self.ID, "a checksum"))
        bench.advance(250)
        assert len(bench.sent(FetchRecords)) == 1
        assert bench.all(do.LoadSnapshot) == []

    @pytest.mark.parametrize(
        "error",
        [ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER],
    )
    def test_after_an_error_the_snapshot_is_rediscovered_by_another_fetch(self, error: ErrorCode) -> None:
        bench = self.downloading()
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"", error=error))
        assert bench.last(do.DiscardSnapshotPart) == do.DiscardSnapshotPart(self.ID)
        bench.advance(30)
        assert len(bench.sent(FetchRecords)) == 2

    @pytest.mark.parametrize(
        "wrong", [{"position": 3}, {"snapshot_id": SnapshotId(41, 4)}, {"size": 2}], ids=["position", "id", "size"]
    )
    def test_bytes_that_do_not_fit_are_not_written(self, wrong: dict[str, Any]) -> None:
        bench = self.downloading()
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abc", **wrong))
        assert bench.all(do.WriteSnapshotPart) == []

    @pytest.mark.parametrize("snapshot_id", [SnapshotId(-1, 4), SnapshotId(40, -1), SnapshotId(-1, -1)])
    def test_an_answer_about_no_snapshot_leads_back_to_fetch(self, snapshot_id: SnapshotId) -> None:
        """The follower can rediscover the new snapshot by sending another Fetch request."""
        bench = self.downloading()
        (sent,) = bench.sent(FetchSnapshot)
        message = response_to_wire(
            self.part(bench, 0, b"abc", snapshot_id=snapshot_id),
            request_to_wire(sent.request, listeners=()),
            leader=None,
        )
        response = response_from_wire(message)
        assert isinstance(response, FetchSnapshotReply)
        bench.answer(sent, response)
        assert bench.last(do.DiscardSnapshotPart) == do.DiscardSnapshotPart(self.ID)
        assert bench.all(do.WriteSnapshotPart) == []
        bench.advance(30)
        assert len(bench.sent(FetchRecords)) == 2

    @pytest.mark.parametrize(
        "half",
        [
            {"snapshot_id": fetch.WireSnapshotId(end_offset=-1, epoch=3)},
            {"snapshot_id": fetch.WireSnapshotId(end_offset=7, epoch=-1)},
            {"diverging_epoch": fetch.DivergingEpoch(end_offset=-1, epoch=3)},
            {"diverging_epoch": fetch.DivergingEpoch(end_offset=2, epoch=-1)},
        ],
        ids=["no end", "no epoch", "diverging without an end", "diverging without an epoch"],
    )
    def test_half_a_snapshot_id_is_no_answer(self, half: dict[str, Any]) -> None:
        """If SnapshotId is set: half an id is neither a snapshot nor a
        statement that our log is the leader's."""
        with pytest.raises(MalformedMessage, match="half"):
            response_from_wire(fetch_answer_with(half))
        bench = follower_with(log=[1, 1, 1])
        (sent,) = bench.sent(FetchRecords)
        bench.step(events.RequestFailed(sent.request_id))  # what the host makes of it
        assert bench.all(do.HighWatermarkMoved) == []
        assert len(bench.sent(FetchRecords)) == 1
        bench.advance(30)
        assert len(bench.sent(FetchRecords)) == 2

    def test_a_new_epoch_ends_the_download(self) -> None:
        bench = self.downloading()
        begin = BeginEpoch(cluster_id=CLUSTER, leader_id=3, leader_epoch=6, voter=key_of(1))
        bench.receive(begin)
        assert bench.last(do.DiscardSnapshotPart) == do.DiscardSnapshotPart(self.ID)
        assert bench.sent(FetchRecords)[-1].destination == 3

    def test_a_leader_never_loads_a_snapshot(self) -> None:
        """While it is validated this replica votes, but does not stand."""
        bench = self.downloading()
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdefghij"))
        vote = Vote(
            cluster_id=CLUSTER,
            candidate_epoch=9,
            candidate=key_of(3),
            voter=key_of(1),
            last_epoch=7,
            last_offset=50,
            pre_vote=False,
        )
        response = bench.receive(vote)
        assert isinstance(response, VoteReply)
        assert response.vote_granted
        bench.advance(20_000)
        assert bench.role == "Unattached"
        bench.install(self.ID)
        assert bench.last(do.LoadSnapshot) == do.LoadSnapshot(self.ID)

    def test_a_snapshot_of_less_than_is_known_to_be_committed_is_of_no_use(self) -> None:
        bench = follower_with(log=[1] * 50)
        bench.answer(bench.sent(FetchRecords)[0], bench.led(high_watermark=45, log_start_offset=0))
        bench.answer(bench.sent(FetchRecords)[1], bench.led(snapshot_id=self.ID, log_start_offset=40))
        bench.advance(30)
        assert bench.sent(FetchSnapshot) == []


class TestServingSnapshots:
    """The leader sends the bytes from Position on, at most ResponseMaxBytes."""

    ID = SnapshotId(4, 2)

    def bench(self, **more: Any) -> RaftBench:
        return leader_with(log=[3, 3], log_start=4, snapshots=[self.ID], snapshot_bytes=100, **more)

    @pytest.mark.parametrize(
        ("position", "max_bytes", "expected"), [(0, 40, 40), (80, 40, 20), (0, 1000, 60), (99, 1, 1), (0, -5, 0)]
    )
    def test_as_many_bytes_as_are_wanted_allowed_and_there(self, position: int, max_bytes: int, expected: int) -> None:
        bench = self.bench(config=RaftConfig(snapshot_max_bytes=60))
        response = bench.receive(snapshot_request(self.ID, position, max_bytes, bench.node.epoch))
        assert isinstance(response, FetchSnapshotReply)
        assert (response.error, response.size, response.position) == (ErrorCode.NONE, 100, position)
        read = bench.last(do.SendResponse).read
        assert read == (do.ReadSnapshot(self.ID, position, expected) if expected else None)

    def test_the_position_at_the_size_is_zero_bytes_and_above_it_an_error(self) -> None:
        bench = self.bench()
        epoch = bench.node.epoch
        assert error_of(bench.receive(snapshot_request(self.ID, 100, 10, epoch))) is ErrorCode.NONE
        assert error_of(bench.receive(snapshot_request(self.ID, 101, 10, epoch))) is ErrorCode.POSITION_OUT_OF_RANGE
        assert error_of(bench.receive(snapshot_request(self.ID, -1, 10, epoch))) is ErrorCode.POSITION_OUT_OF_RANGE

    def test_a_snapshot_that_does_not_exist(self) -> None:
        bench = self.bench()
        request = snapshot_request(SnapshotId(4, 1), 0, 10, bench.node.epoch)
        assert error_of(bench.receive(request)) is ErrorCode.SNAPSHOT_NOT_FOUND

    def test_a_replica_that_is_not_the_leader(self) -> None:
        bench = RaftBench(log=[3, 3], log_start=4, snapshots=[self.ID])
        request = snapshot_request(self.ID, 0, 10, bench.node.epoch)
        assert error_of(bench.receive(request)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_epochs_fence(self) -> None:
        bench = self.bench()
        epoch = bench.node.epoch
        old, new = snapshot_request(self.ID, 0, 10, epoch - 1), snapshot_request(self.ID, 0, 10, epoch + 1)
        assert error_of(bench.receive(old)) is ErrorCode.FENCED_LEADER_EPOCH
        assert error_of(bench.receive(new)) is ErrorCode.UNKNOWN_LEADER_EPOCH

    def test_fetching_a_snapshot_keeps_a_leader_in_office(self) -> None:
        bench = self.bench()
        for _ in range(10):
            bench.advance(1000)
            bench.receive(snapshot_request(self.ID, 0, 10, bench.node.epoch))
        assert bench.role == "Leader"
        bench.advance(1600)
        assert bench.role == "Resigned"

    @pytest.mark.parametrize(
        ("remaining", "max_bytes", "shares"),
        [
            ([100, 100], 60, [30, 30]),
            ([10, 100], 60, [10, 50]),
            ([100, 10, 100], 90, [40, 10, 40]),
            ([5, 5], 60, [5, 5]),
            ([100, 100, 100], 50, [17, 17, 16]),
            ([0, 7], 3, [0, 3]),
            ([], 10, []),
            ([9], 0, [0]),
        ],
    )
    def test_each_partition_gets_the_average_and_spare_bytes_go_to_the_others(
        self, remaining: list[int], max_bytes: int, shares: list[int]
    ) -> None:
        got = fair_shares(remaining, max_bytes)
        assert sorted(got) == sorted(shares)
        assert sum(got) == min(sum(remaining), max_bytes)
        average = max_bytes // len(remaining) if remaining else 0
        assert all(share >= min(rest, average) for share, rest in zip(got, remaining, strict=True))


class TestChangesToLeaderElection:
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
    def test_a_snapshot_that_is_being_validated_counts(
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

    def test_a_log_newer_than_the_snapshot_stays(self) -> None:
        bench = RaftBench(log=[1] * 3 + [2], snapshots=[SnapshotId(3, 1)])
        assert (bench.log.log_start_offset, bench.log.end_offset) == (0, 4)

    def test_voters_are_those_of_the_snapshot(self) -> None:
        bench = follower_with()
        bench.answer(bench.sent(FetchRecords)[0], bench.led(snapshot_id=SnapshotId(40, 4), log_start_offset=40))
        part = FetchSnapshotReply(
            leader_id=2, leader_epoch=5, snapshot_id=SnapshotId(40, 4), size=1, position=0, data=b"x"
        )
        bench.answer(bench.sent(FetchSnapshot)[0], part)
        bench.install(SnapshotId(40, 4), voter_set(1, 2, 3, 4))
        assert bench.node.voters == voter_set(1, 2, 3, 4)
        assert bench.node.voters_at(40) == voter_set(1, 2, 3, 4)
