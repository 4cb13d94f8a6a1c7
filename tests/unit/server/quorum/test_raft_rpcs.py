"""Requests of replicas and administrators to a quorum over the wire, and Kafka's answers to them."""

from functools import partial
from typing import Any

import pytest

from simulation.quorum.cluster import QuorumCluster, QuorumPlan
from simulation.quorum.node import CLUSTER_ID, QuorumNode
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import METADATA_TOPIC_ID
from tailrace.protocol.declaration import schema_of
from tailrace.protocol.headers import decode_response
from tailrace.protocol.messages import fetch, quorum
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.schema import replace
from tailrace.raft.events import UpdateVoter
from tailrace.raft.rpc import VoteReply
from tailrace.raft.voters import Voter, VoterListener
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.errors import error_response
from tailrace.server.quorum.description import WANTED, QuorumDescriptionHandler
from tailrace.server.quorum.host import OnAnswer, QuorumHost
from tailrace.server.quorum.raft_rpcs import (
    AddRaftVoterHandler,
    RaftRpcHandler,
    RemoveRaftVoterHandler,
    UpdateRaftVoterHandler,
)
from tailrace.server.response_errors import ResponseErrors
from testkit.nodes.ports import RecordingConnection

pytestmark = pytest.mark.usefixtures("quiet")

TOPIC = "__cluster_metadata"
LISTENERS = (quorum.RaftVoterListener(name="CONTROLLER", host="there", port=9093),)
TOO_MANY_LISTENERS = tuple(quorum.RaftVoterListener(name=f"L{n}", host="there", port=9093) for n in range(101))


@pytest.fixture
def cluster() -> QuorumCluster:
    """Three voters and an observer (4) that are at rest."""
    started = QuorumCluster(1, QuorumPlan(commands_per_s=0, silences_per_s=0, chaos_ms=2000, has_old_directories=True))
    started.run()
    return started


@pytest.fixture
def leader(cluster: QuorumCluster) -> QuorumNode:
    found = cluster.leader()
    assert found is not None
    return found


@pytest.fixture
def follower(cluster: QuorumCluster, leader: QuorumNode) -> QuorumNode:
    return next(node for node in cluster.nodes.values() if node is not leader and node.key.id <= 3)


class HandledRequest:
    """A request on its way through a handler, in its newest version."""

    def __init__(self, cluster: QuorumCluster, handler: Any, request: Any, version: int | None = None) -> None:
        self._cluster = cluster
        self._connection = RecordingConnection()
        schema = schema_of(type(request))
        assert schema.api_key is not None
        self._version = schema.versions.last if version is None else version
        self._response_type = _RESPONSES[type(request)]
        context = RequestContext(
            connection=self._connection,
            slot=self._connection.next_slot(),
            api_key=schema.api_key,
            api_version=self._version,
            correlation_id=7,
            client_id=None,
            services=RequestServices(ResponseErrors()),
        )
        try:
            answer = handler.handle(request, context)
        except KafkaError as error:
            answer = error_response(request, self._version, error)
        if answer is not None:
            context.respond(answer)

    @property
    def is_answered(self) -> bool:
        return bool(self._connection.answers)

    def answer(self, within_ms: int = 2000) -> Any:
        world = self._cluster.world
        assert self.is_answered or world.run(until_ms=world.now_ms + within_ms, stop=lambda: self.is_answered)
        data = self._connection.answers[0]
        assert data is not None
        return decode_response(self._response_type, self._version, data)[1]


_RESPONSES: dict[type, type] = {
    quorum.VoteRequest: quorum.VoteResponse,
    quorum.BeginQuorumEpochRequest: quorum.BeginQuorumEpochResponse,
    quorum.EndQuorumEpochRequest: quorum.EndQuorumEpochResponse,
    quorum.DescribeQuorumRequest: quorum.DescribeQuorumResponse,
    fetch.FetchRequest: fetch.FetchResponse,
    quorum.FetchSnapshotRequest: quorum.FetchSnapshotResponse,
    quorum.AddRaftVoterRequest: quorum.AddRaftVoterResponse,
    quorum.RemoveRaftVoterRequest: quorum.RemoveRaftVoterResponse,
    quorum.UpdateRaftVoterRequest: quorum.UpdateRaftVoterResponse,
}


def vote(epoch: int, *, cluster_id: str | None = CLUSTER_ID, offset: int = 0) -> quorum.VoteRequest:
    part = quorum.VotePartition(
        partition_index=0, replica_epoch=epoch, replica_id=3, last_offset_epoch=0, last_offset=offset
    )
    return quorum.VoteRequest(cluster_id=cluster_id, topics=(quorum.VoteTopic(topic_name=TOPIC, partitions=(part,)),))


def fetch_from(offset: int, epoch: int, last_epoch: int, *, max_wait_ms: int = 0) -> fetch.FetchRequest:
    part = fetch.FetchPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        partition_max_bytes=1 << 20,
    )
    topic = fetch.FetchTopic(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(part,))
    return fetch.FetchRequest(cluster_id=CLUSTER_ID, max_wait_ms=max_wait_ms, min_bytes=0, topics=(topic,))


def snapshot_from(position: int, epoch: int, *, end_offset: int = 5) -> quorum.FetchSnapshotRequest:
    part = quorum.SnapshotPosition(
        partition=0,
        current_leader_epoch=epoch,
        snapshot_id=fetch.WireSnapshotId(end_offset=end_offset, epoch=1),
        position=position,
    )
    topic = quorum.SnapshotTopic(name=TOPIC, partitions=(part,))
    return quorum.FetchSnapshotRequest(cluster_id=CLUSTER_ID, topics=(topic,))


def test_an_impossible_vote_is_invalid_and_the_answer_names_the_leader(
    cluster: QuorumCluster, leader: QuorumNode
) -> None:
    (topic,) = HandledRequest(cluster, RaftRpcHandler(leader.host), vote(0)).answer().topics
    (part,) = topic.partitions
    assert (part.error_code, part.leader_id, part.leader_epoch, part.vote_granted) == (
        ErrorCode.INVALID_REQUEST,
        leader.key.id,
        leader.host.node.epoch,
        False,
    )


def test_a_vote_of_another_cluster_and_one_about_another_log_are_refused_as_a_whole(
    cluster: QuorumCluster, leader: QuorumNode
) -> None:
    handler = RaftRpcHandler(leader.host)
    before = leader.host.node.epoch
    assert (
        HandledRequest(cluster, handler, vote(9, cluster_id="other")).answer().error_code
        == ErrorCode.INCONSISTENT_CLUSTER_ID
    )
    assert (
        HandledRequest(cluster, handler, quorum.VoteRequest(topics=())).answer().error_code == ErrorCode.INVALID_REQUEST
    )
    assert leader.host.node.epoch == before


def test_a_vote_is_answered_when_the_promise_is_on_disk(cluster: QuorumCluster, follower: QuorumNode) -> None:
    request = HandledRequest(cluster, RaftRpcHandler(follower.host), vote(7, offset=1 << 40))
    (topic,) = request.answer().topics
    assert not topic.partitions[0].vote_granted  # epoch 0 of its last record: not as far as ours
    assert b'"leaderEpoch":7' in follower.files.read_bytes("/data/__cluster_metadata-0/quorum-state")


def test_a_fetch_reads_the_log_by_the_leader_only(
    cluster: QuorumCluster, leader: QuorumNode, follower: QuorumNode
) -> None:
    epoch = leader.host.node.epoch
    answer = HandledRequest(cluster, RaftRpcHandler(leader.host), fetch_from(0, epoch, 0)).answer()
    part = answer.responses[0].partitions[0]
    ends = [header.end_offset for _, header in iter_batches(part.records)]
    assert (part.error_code, ends[-1]) == (ErrorCode.NONE, leader.host.log.end_offset)
    refused = HandledRequest(cluster, RaftRpcHandler(follower.host), fetch_from(0, epoch, 0)).answer()
    part = refused.responses[0].partitions[0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert part.current_leader == fetch.LeaderIdAndEpoch(leader_id=leader.key.id, leader_epoch=epoch)


@pytest.mark.parametrize("version", [12, 13, 17, 18])
def test_a_fetch_names_the_log_by_its_name_or_its_id(cluster: QuorumCluster, leader: QuorumNode, version: int) -> None:
    answer = HandledRequest(
        cluster, RaftRpcHandler(leader.host), fetch_from(0, leader.host.node.epoch, 0), version
    ).answer()
    part = answer.responses[0].partitions[0]
    assert (part.error_code, part.high_watermark) == (ErrorCode.NONE, leader.host.log.end_offset)


def test_a_fetch_at_the_end_waits_and_impossible_ones_do_not(cluster: QuorumCluster, leader: QuorumNode) -> None:
    handler, epoch = RaftRpcHandler(leader.host), leader.host.node.epoch
    end_offset = leader.host.log.end_offset
    waiting = HandledRequest(cluster, handler, fetch_from(end_offset, epoch, epoch, max_wait_ms=300))
    assert not waiting.is_answered
    assert waiting.answer().responses[0].partitions[0].records == b""
    for offset, fetch_epoch, last_epoch, code in (
        (-1, epoch, 0, ErrorCode.INVALID_REQUEST),
        (0, epoch, -1, ErrorCode.INVALID_REQUEST),
        (0, epoch - 1, 0, ErrorCode.FENCED_LEADER_EPOCH),
        (0, epoch + 1, 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        answer = HandledRequest(cluster, handler, fetch_from(offset, fetch_epoch, last_epoch)).answer()
        assert answer.responses[0].partitions[0].error_code == code


def write_snapshot(node: QuorumNode) -> None:
    node.controller.write_snapshot()


def test_bytes_of_a_snapshot_and_the_three_refusals(
    cluster: QuorumCluster, leader: QuorumNode, follower: QuorumNode
) -> None:
    epoch = leader.host.node.epoch
    leader.host.perform(partial(write_snapshot, leader))
    cluster.world.run(until_ms=cluster.world.now_ms + 500)
    (stored,) = leader.host.log.snapshots
    end_offset = stored.id.end_offset

    def part(node: QuorumNode, request: quorum.FetchSnapshotRequest) -> quorum.SnapshotPart:
        answer = HandledRequest(cluster, RaftRpcHandler(node.host), request).answer()
        found: quorum.SnapshotPart = answer.topics[0].partitions[0]
        return found

    first = part(leader, snapshot_from(0, epoch, end_offset=end_offset))
    assert (first.error_code, first.size) == (ErrorCode.NONE, stored.size_bytes)
    assert first.unaligned_records
    at_end = part(leader, snapshot_from(stored.size_bytes, epoch, end_offset=end_offset))
    assert (at_end.error_code, at_end.unaligned_records) == (ErrorCode.NONE, b"")
    for node, position, wanted, code in (
        (leader, stored.size_bytes + 1, end_offset, ErrorCode.POSITION_OUT_OF_RANGE),
        (leader, -1, end_offset, ErrorCode.POSITION_OUT_OF_RANGE),
        (leader, 0, end_offset - 1, ErrorCode.SNAPSHOT_NOT_FOUND),
        (follower, 0, end_offset, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        assert part(node, snapshot_from(position, epoch, end_offset=wanted)).error_code == code
    other = quorum.SnapshotTopic(name="orders", partitions=snapshot_from(0, epoch).topics[0].partitions)
    unknown = part(leader, quorum.FetchSnapshotRequest(topics=(other,)))
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_snapshots_of_one_request_share_its_bytes(cluster: QuorumCluster, leader: QuorumNode) -> None:
    """The leader will evenly distribute the number of bytes sent; what one does not need the others get."""
    epoch = leader.host.node.epoch
    leader.host.perform(partial(write_snapshot, leader))
    cluster.world.run(until_ms=cluster.world.now_ms + 500)
    (stored,) = leader.host.log.snapshots
    size, end_offset = stored.size_bytes, stored.id.end_offset

    def sent(max_bytes: int, *positions: int, end: int = end_offset) -> list[int]:
        parts = [snapshot_from(position, epoch, end_offset=end).topics[0].partitions[0] for position in positions]
        other = replace(parts[0], partition=1)
        topics = (
            quorum.SnapshotTopic(name="orders", partitions=(parts[0],)),
            quorum.SnapshotTopic(name=TOPIC, partitions=(other, *parts)),
        )
        request = quorum.FetchSnapshotRequest(cluster_id=CLUSTER_ID, max_bytes=max_bytes, topics=topics)
        orders, metadata = HandledRequest(cluster, RaftRpcHandler(leader.host), request).answer().topics
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [partition.error_code for partition in (*orders.partitions, metadata.partitions[0])] == [
            unknown,
            unknown,
        ]
        assert [partition.position for partition in metadata.partitions[1:]] == list(positions)
        return [len(partition.unaligned_records) for partition in metadata.partitions[1:]]

    assert sent(100, 0) == [100]
    assert sent(100, 0, 0) == [50, 50]
    assert sent(100, 0, size - 10) == [90, 10]
    assert sent(100, 0, size - 10, 5) == [45, 10, 45]
    assert sent(100, 0, size) == [100, 0]
    assert sent(100, 0, size + 1) == [100, 0]
    assert sum(sent(1, 0, 0)) == 1
    assert sent(100, 0, end=end_offset - 1) == [0]
    parts = (snapshot_from(0, epoch).topics[0].partitions[0],) * 17
    topics = (quorum.SnapshotTopic(name=TOPIC, partitions=parts),)
    too_many = quorum.FetchSnapshotRequest(cluster_id=CLUSTER_ID, topics=topics)
    answer = HandledRequest(cluster, RaftRpcHandler(leader.host), too_many).answer()
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_begin_and_end_are_answered_with_what_is_known(cluster: QuorumCluster, follower: QuorumNode) -> None:
    handler, node = RaftRpcHandler(follower.host), follower.host.node
    began = quorum.BeginEpochPartition(partition_index=0, leader_id=99, leader_epoch=node.epoch)
    request = quorum.BeginQuorumEpochRequest(topics=(quorum.BeginEpochTopic(topic_name=TOPIC, partitions=(began,)),))
    part = HandledRequest(cluster, handler, request).answer().topics[0].partitions[0]
    assert (part.error_code, part.leader_id) == (ErrorCode.INVALID_REQUEST, node.leader_id)
    ended = quorum.EndEpochPartition(partition_index=0, leader_id=node.leader_id, leader_epoch=node.epoch - 1)
    end = quorum.EndQuorumEpochRequest(topics=(quorum.EndEpochTopic(topic_name=TOPIC, partitions=(ended,)),))
    assert (
        HandledRequest(cluster, handler, end).answer().topics[0].partitions[0].error_code
        == ErrorCode.FENCED_LEADER_EPOCH
    )


def test_the_last_epoch_of_a_raft_request_is_invalid_and_no_node_enters_it(
    cluster: QuorumCluster, follower: QuorumNode
) -> None:
    """A replica that stood in 2^31-1 would be elected in an epoch that no batch can hold, after each start again."""
    handler, before = RaftRpcHandler(follower.host), follower.host.node.epoch
    last = 2**31 - 1
    began = quorum.BeginEpochPartition(partition_index=0, leader_id=1, leader_epoch=last)
    ended = quorum.EndEpochPartition(partition_index=0, leader_id=1, leader_epoch=last)
    for request in (
        vote(last),
        quorum.BeginQuorumEpochRequest(topics=(quorum.BeginEpochTopic(topic_name=TOPIC, partitions=(began,)),)),
        quorum.EndQuorumEpochRequest(topics=(quorum.EndEpochTopic(topic_name=TOPIC, partitions=(ended,)),)),
    ):
        assert HandledRequest(cluster, handler, request).answer().error_code == ErrorCode.INVALID_REQUEST
        assert follower.host.node.epoch == before


class SlowHost:
    """A replica that knows the addresses of all voters, and answers later: by then another one leads."""

    def __init__(self, host: QuorumHost) -> None:
        self._host = host
        self.node = host.node
        self.answers: list[OnAnswer] = []

    def receive(self, request: Any, on_answer: OnAnswer) -> None:
        self.answers.append(on_answer)

    def leader_endpoint(self, *names: Any) -> VoterListener | None:
        return self._host.leader_endpoint(*names)


def test_a_raft_answer_says_where_the_leader_listens_that_it_names(cluster: QuorumCluster, leader: QuorumNode) -> None:
    keys = leader.host.node.voters.keys
    named = next(key for key in keys if key != leader.key)
    for key in keys:
        changes: list[ErrorCode] = []
        moved = UpdateVoter(Voter(key, (VoterListener("CONTROLLER", f"host-{key.id}", 9093),)))
        leader.host.change_voters(moved, partial(lambda results, error, _: results.append(error), changes))
        cluster.world.run(until_ms=cluster.world.now_ms + 2000)
        assert changes == [ErrorCode.NONE]
    slow = SlowHost(leader.host)
    request = HandledRequest(cluster, RaftRpcHandler(slow), vote(1))  # type: ignore[arg-type]
    (on_answer,) = slow.answers
    on_answer(VoteReply(leader_id=named.id, leader_epoch=leader.host.node.epoch))
    (endpoint,) = request.answer().node_endpoints
    assert (endpoint.node_id, endpoint.host) == (named.id, f"host-{named.id}")


def test_the_quorum_is_described_by_its_leader(
    cluster: QuorumCluster, leader: QuorumNode, follower: QuorumNode
) -> None:
    request = quorum.DescribeQuorumRequest(topics=WANTED)
    handler = QuorumDescriptionHandler(leader.host, clock=leader.clock, controller=leader.controller)
    part = HandledRequest(cluster, handler, request).answer().topics[0].partitions[0]
    assert [voter.replica_id for voter in part.current_voters] == [1, 2, 3]
    assert [observer.replica_id for observer in part.observers] == [4]
    assert {voter.log_end_offset for voter in part.current_voters} == {leader.host.log.end_offset}
    others = [replica for replica in (*part.current_voters, *part.observers) if replica.replica_id != leader.key.id]
    assert all(0 <= leader.clock.now_ms() - replica.last_fetch_timestamp < 2000 for replica in others)
    other = QuorumDescriptionHandler(follower.host, clock=follower.clock, controller=follower.controller)
    part = HandledRequest(cluster, other, request).answer().topics[0].partitions[0]
    assert (part.error_code, part.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, leader.key.id)
    nothing = HandledRequest(cluster, handler, quorum.DescribeQuorumRequest(topics=WANTED * 2)).answer()
    assert {partition.error_code for topic in nothing.topics for partition in topic.partitions} == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


def test_an_observer_is_added_described_anew_and_removed(
    cluster: QuorumCluster, leader: QuorumNode, follower: QuorumNode
) -> None:
    key = cluster.nodes[4].key
    add = quorum.AddRaftVoterRequest(
        cluster_id=CLUSTER_ID, timeout_ms=1000, voter_id=4, voter_directory_id=key.directory_id, listeners=LISTENERS
    )
    refused = HandledRequest(cluster, AddRaftVoterHandler(follower.host), add).answer()
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert HandledRequest(cluster, AddRaftVoterHandler(leader.host), add).answer().error_code == ErrorCode.NONE
    voter = leader.host.node.voters.find(4)
    assert voter is not None
    assert voter.endpoints == (VoterListener("CONTROLLER", "there", 9093),)
    assert (
        HandledRequest(cluster, AddRaftVoterHandler(leader.host), add).answer().error_code == ErrorCode.DUPLICATE_VOTER
    )

    def update(epoch: int) -> quorum.UpdateRaftVoterRequest:
        return quorum.UpdateRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            current_leader_epoch=epoch,
            voter_id=4,
            voter_directory_id=key.directory_id,
            listeners=(quorum.RaftVoterListener(name="CONTROLLER", host="elsewhere", port=1),),
            k_raft_version_feature=quorum.KRaftVersionRange(min_supported_version=0, max_supported_version=1),
        )

    epoch = leader.host.node.epoch
    handler = UpdateRaftVoterHandler(leader.host)
    assert HandledRequest(cluster, handler, update(epoch - 1)).answer().error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert HandledRequest(cluster, handler, update(epoch + 1)).answer().error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    updated = HandledRequest(cluster, handler, update(epoch)).answer()
    assert (updated.error_code, updated.current_leader.leader_id) == (ErrorCode.NONE, leader.key.id)
    remove = quorum.RemoveRaftVoterRequest(cluster_id=CLUSTER_ID, voter_id=4, voter_directory_id=key.directory_id)
    assert HandledRequest(cluster, RemoveRaftVoterHandler(leader.host), remove).answer().error_code == ErrorCode.NONE
    again = HandledRequest(cluster, RemoveRaftVoterHandler(leader.host), remove).answer()
    assert (again.error_code, "not a voter" in again.error_message) == (ErrorCode.VOTER_NOT_FOUND, True)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"voter_id": -1}, ErrorCode.INVALID_REQUEST),
        ({"listeners": ()}, ErrorCode.INVALID_REQUEST),
        ({"listeners": LISTENERS * 2}, ErrorCode.INVALID_REQUEST),
        ({"listeners": TOO_MANY_LISTENERS}, ErrorCode.INVALID_REQUEST),
        ({"voter_directory_id": bytes(16)}, ErrorCode.INVALID_REQUEST),
        ({"voter_id": 9, "timeout_ms": -5}, ErrorCode.REQUEST_TIMED_OUT),
    ],
    ids=["cluster", "id", "no listener", "twice", "too many listeners", "no directory", "unknown"],
)
def test_impossible_voters_are_refused(
    cluster: QuorumCluster, leader: QuorumNode, fields: dict[str, Any], code: ErrorCode
) -> None:
    values = {
        "cluster_id": CLUSTER_ID,
        "timeout_ms": 100,
        "voter_id": 9,
        "voter_directory_id": b"9" * 16,
        "listeners": LISTENERS,
    }
    request = quorum.AddRaftVoterRequest(**{**values, **fields})
    before = leader.host.node.voters
    assert HandledRequest(cluster, AddRaftVoterHandler(leader.host), request).answer().error_code == code
    assert leader.host.node.voters == before
