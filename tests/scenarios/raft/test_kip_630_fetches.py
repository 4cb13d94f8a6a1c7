"""KIP-630: a replica whose fetch is answered with a snapshot, the leader that serves the snapshot, and the download."""

from typing import Any

import pytest

from scenarios.raft.replica_benches import follower_with, leader_with
from simulation.raft.bench import CLUSTER, RaftBench, error_of
from simulation.raft.state import key_of
from tailrace.model.errors import ErrorCode, MalformedMessage
from tailrace.model.ids import METADATA_TOPIC_ID
from tailrace.protocol.messages import fetch
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.ports import RaftConfig
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
from tailrace.raft.snapshots import fair_shares, validate_position
from tailrace.server.quorum.raft_wire import request_to_wire, response_from_wire, response_to_wire


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


class TestRaftFetchesThatNeedASnapshot:
    """If FetchOffset is less than LogStartOffset the leader responds with the SnapshotId of the latest snapshot."""

    SNAPSHOTS = [SnapshotId(4, 2), SnapshotId(7, 3)]  # noqa: RUF012

    def bench(self) -> RaftBench:
        return leader_with(log=[3, 3, 3, 4, 4], log_start=4, snapshots=self.SNAPSHOTS)

    @pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (3, 2), (3, 9), (1, 1)])
    def test_a_fetch_below_the_log_start_is_answered_with_the_latest_snapshot(self, offset: int, epoch: int) -> None:
        bench = self.bench()
        epoch = min(epoch, bench.node.epoch)
        response = bench.fetched(2, offset, epoch)
        assert (response.snapshot_id, response.diverging) == (SnapshotId(7, 3), None)
        assert bench.last(do.SendResponse).read is None

    def test_a_fetch_at_the_log_start_with_the_epoch_of_its_snapshot_reads_the_log(self) -> None:
        bench = self.bench()
        response = bench.fetched(2, 4, 2)
        assert (response.snapshot_id, response.diverging) == (None, None)
        assert bench.last(do.SendResponse).read == do.ReadLog(4, 1 << 20)

    def test_a_stale_tail_that_ends_exactly_at_the_log_start_gets_the_snapshot(self) -> None:
        assert self.bench().fetched(2, 4, 1).snapshot_id == SnapshotId(7, 3)

    def test_a_fetch_at_a_log_start_without_its_snapshot_is_answered_with_the_latest_snapshot(self) -> None:
        bench = leader_with(log=[3, 3, 3, 4, 4], log_start=4, snapshots=[SnapshotId(7, 3)])
        assert bench.fetched(2, 4, 3).snapshot_id == SnapshotId(7, 3)
        assert bench.fetched(2, 5, 3).snapshot_id is None

    @pytest.mark.parametrize(
        ("offset", "epoch", "diverging"), [(8, 3, LogEnd(3, 7)), (6, 2, LogEnd(2, 4)), (30, 4, LogEnd(4, 9))]
    )
    def test_a_fetch_above_the_log_start_diverges_where_the_epochs_do(
        self, offset: int, epoch: int, diverging: LogEnd
    ) -> None:
        response = self.bench().fetched(2, offset, epoch)
        assert (response.diverging, response.snapshot_id) == (diverging, None)

    def test_a_fetch_of_an_epoch_before_the_snapshot_is_answered_with_the_snapshot(self) -> None:
        assert self.bench().fetched(2, 6, 1).snapshot_id == SnapshotId(7, 3)

    def test_a_new_replica_reads_a_whole_log_without_the_snapshot(self) -> None:
        bench = leader_with(log=[1, 1], snapshots=[SnapshotId(1, 1)])
        assert bench.fetched(2, 0, 0).snapshot_id is None

    def test_a_position_in_a_log_of_another_epoch_than_its_snapshot_needs_the_snapshot(self) -> None:
        bench = RaftBench(log=[3, 3], log_start=4, snapshots=[SnapshotId(4, 2)])
        assert str(validate_position(bench.log, 4, 3)) == "NeedsSnapshot(id=SnapshotId(end_offset=4, epoch=2))"


class TestSnapshotDownloads:
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

    def test_fetches_of_the_log_pause_during_a_snapshot_download(self) -> None:
        bench = self.downloading(log=[1, 1])
        bench.advance(300)
        assert len(bench.sent(FetchRecords)) == 1
        (sent,) = bench.sent(FetchSnapshot)
        request = sent.request
        assert isinstance(request, FetchSnapshot)
        assert (request.snapshot_id, request.position, request.leader_epoch) == (self.ID, 0, 5)

    def test_a_snapshot_download_goes_on_behind_the_bytes_of_the_answer(self) -> None:
        bench = self.downloading()
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdef"))
        assert bench.last(do.WriteSnapshotPart) == do.WriteSnapshotPart(self.ID, 0, b"abcdef")
        assert bench.sent(FetchSnapshot)[1].request.position == 6  # type: ignore[union-attr]
        assert bench.all(do.InstallSnapshot) == []

    def test_a_complete_snapshot_is_installed_and_only_then_loaded(self) -> None:
        bench = self.downloading(log=[1, 1])
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdef"))
        bench.answer(bench.sent(FetchSnapshot)[1], self.part(bench, 6, b"ghij"))
        assert bench.last(do.InstallSnapshot) == do.InstallSnapshot(self.ID)
        assert bench.all(do.LoadSnapshot) == []
        bench.forget()
        bench.install(self.ID)
        assert bench.last(do.LoadSnapshot) == do.LoadSnapshot(self.ID)
        assert bench.last(do.HighWatermarkMoved) == do.HighWatermarkMoved(40)

    def test_fetches_of_the_log_resume_at_the_end_of_the_snapshot_with_its_epoch(self) -> None:
        bench = self.downloading(log=[1, 1])
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdefghij"))
        bench.forget()
        bench.install(self.ID)
        (sent,) = bench.sent(FetchRecords)
        request = sent.request
        assert isinstance(request, FetchRecords)
        assert (request.fetch_offset, request.last_fetched_epoch) == (40, 4)
        assert (bench.log.log_start_offset, bench.log.end_offset) == (40, 40)

    def test_a_replica_fetches_nothing_while_a_snapshot_is_validated(self) -> None:
        bench = self.downloading()
        bench.answer(bench.sent(FetchSnapshot)[0], self.part(bench, 0, b"abcdefghij"))
        bench.forget()
        bench.advance(5000)
        assert bench.all(do.SendRequest) == []
        assert bench.role == "Follower"

    def test_a_damaged_snapshot_is_forgotten_and_fetched_again(self) -> None:
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
    def test_bytes_of_another_snapshot_or_position_are_not_written(self, wrong: dict[str, Any]) -> None:
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

    def test_a_new_leader_epoch_ends_a_snapshot_download(self) -> None:
        bench = self.downloading()
        begin = BeginEpoch(cluster_id=CLUSTER, leader_id=3, leader_epoch=6, voter=key_of(1))
        bench.receive(begin)
        assert bench.last(do.DiscardSnapshotPart) == do.DiscardSnapshotPart(self.ID)
        assert bench.sent(FetchRecords)[-1].destination == 3

    def test_a_replica_whose_snapshot_is_validated_votes_and_does_not_stand(self) -> None:
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


class TestSnapshotsThatTheRaftLeaderServes:
    """The leader sends the bytes from Position on, at most ResponseMaxBytes."""

    ID = SnapshotId(4, 2)

    def bench(self, **more: Any) -> RaftBench:
        return leader_with(log=[3, 3], log_start=4, snapshots=[self.ID], snapshot_bytes=100, **more)

    @pytest.mark.parametrize(
        ("position", "max_bytes", "expected"), [(0, 40, 40), (80, 40, 20), (0, 1000, 60), (99, 1, 1), (0, -5, 0)]
    )
    def test_a_leader_serves_as_many_snapshot_bytes_as_are_wanted_allowed_and_there(
        self, position: int, max_bytes: int, expected: int
    ) -> None:
        bench = self.bench(config=RaftConfig(snapshot_max_bytes=60))
        response = bench.receive(snapshot_request(self.ID, position, max_bytes, bench.node.epoch))
        assert isinstance(response, FetchSnapshotReply)
        assert (response.error, response.size, response.position) == (ErrorCode.NONE, 100, position)
        read = bench.last(do.SendResponse).read
        assert read == (do.ReadSnapshot(self.ID, position, expected) if expected else None)

    def test_a_snapshot_position_at_the_size_is_zero_bytes_and_above_it_an_error(self) -> None:
        bench = self.bench()
        epoch = bench.node.epoch
        assert error_of(bench.receive(snapshot_request(self.ID, 100, 10, epoch))) is ErrorCode.NONE
        assert error_of(bench.receive(snapshot_request(self.ID, 101, 10, epoch))) is ErrorCode.POSITION_OUT_OF_RANGE
        assert error_of(bench.receive(snapshot_request(self.ID, -1, 10, epoch))) is ErrorCode.POSITION_OUT_OF_RANGE

    def test_a_fetch_of_a_snapshot_that_does_not_exist_is_refused(self) -> None:
        bench = self.bench()
        request = snapshot_request(SnapshotId(4, 1), 0, 10, bench.node.epoch)
        assert error_of(bench.receive(request)) is ErrorCode.SNAPSHOT_NOT_FOUND

    def test_a_fetch_of_a_snapshot_from_a_follower_is_refused(self) -> None:
        bench = RaftBench(log=[3, 3], log_start=4, snapshots=[self.ID])
        request = snapshot_request(self.ID, 0, 10, bench.node.epoch)
        assert error_of(bench.receive(request)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_a_fetch_of_a_snapshot_in_another_leader_epoch_is_fenced(self) -> None:
        bench = self.bench()
        epoch = bench.node.epoch
        old, new = snapshot_request(self.ID, 0, 10, epoch - 1), snapshot_request(self.ID, 0, 10, epoch + 1)
        assert error_of(bench.receive(old)) is ErrorCode.FENCED_LEADER_EPOCH
        assert error_of(bench.receive(new)) is ErrorCode.UNKNOWN_LEADER_EPOCH

    def test_fetches_of_snapshots_keep_a_raft_leader_in_office(self) -> None:
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
    def test_each_partition_of_a_snapshot_fetch_gets_the_average_and_spare_bytes_go_to_others(
        self, remaining: list[int], max_bytes: int, shares: list[int]
    ) -> None:
        got = fair_shares(remaining, max_bytes)
        assert sorted(got) == sorted(shares)
        assert sum(got) == min(sum(remaining), max_bytes)
        average = max_bytes // len(remaining) if remaining else 0
        assert all(share >= min(rest, average) for share, rest in zip(got, remaining, strict=True))
