"""Messages between replicas survive Kafka's bytes, and all other bytes are answered with Kafka's codes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.ids import METADATA_TOPIC_ID
from tailrace.protocol.declaration import schema_of
from tailrace.protocol.messages import fetch, quorum
from tailrace.protocol.schema import decode, encode_bytes
from tailrace.raft import rpc
from tailrace.raft.voters import NO_DIRECTORY, ReplicaKey, VoterListener
from tailrace.server.quorum.metadata_partition_wire import NEWEST_EPOCH
from tailrace.server.quorum.raft_wire import (
    oldest_version,
    request_from_wire,
    request_to_wire,
    response_from_wire,
    response_to_wire,
)
from testkit.records.strategies import messages

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
ids = st.integers(0, 2**31 - 1)
epochs = st.integers(-(2**31), NEWEST_EPOCH)
clusters = st.none() | st.text(max_size=20)
directories = st.just(NO_DIRECTORY) | st.binary(min_size=16, max_size=16)
keys = st.builds(ReplicaKey, ids, directories)
snapshot_ids = st.builds(rpc.SnapshotId, st.integers(0, 2**63 - 1), ids)
REQUESTS = {
    rpc.Vote: st.builds(
        rpc.Vote,
        cluster_id=clusters,
        candidate_epoch=epochs,
        candidate=keys,
        voter=st.none() | keys,
        last_epoch=int32,
        last_offset=int64,
        pre_vote=st.booleans(),
    ),
    rpc.BeginEpoch: st.builds(
        rpc.BeginEpoch, cluster_id=clusters, leader_id=int32, leader_epoch=epochs, voter=st.none() | keys
    ),
    rpc.EndEpoch: st.builds(
        rpc.EndEpoch,
        cluster_id=clusters,
        leader_id=int32,
        leader_epoch=epochs,
        preferred_candidates=st.lists(keys, max_size=3).map(tuple),
    ),
    rpc.FetchRecords: st.builds(
        rpc.FetchRecords,
        cluster_id=clusters,
        replica=keys,
        leader_epoch=int32,
        fetch_offset=int64,
        last_fetched_epoch=int32,
        max_wait_ms=int32,
        max_bytes=ids,
        high_watermark=int64,
    ),
    rpc.FetchSnapshot: st.builds(
        rpc.FetchSnapshot,
        cluster_id=clusters,
        replica=keys,
        leader_epoch=int32,
        snapshot_id=st.builds(rpc.SnapshotId, int64, int32),
        position=int64,
        max_bytes=int32,
    ),
}
errors = st.sampled_from([error for error in ErrorCode if error is not ErrorCode.INCONSISTENT_CLUSTER_ID])
known = {"error": errors, "leader_id": st.integers(-1, 2**31 - 1), "leader_epoch": st.integers(-1, NEWEST_EPOCH)}
RESPONSES = {
    rpc.VoteReply: st.builds(rpc.VoteReply, vote_granted=st.booleans(), **known),
    rpc.BeginEpochReply: st.builds(rpc.BeginEpochReply, **known),
    rpc.EndEpochReply: st.builds(rpc.EndEpochReply, **known),
    rpc.FetchRecordsReply: st.builds(
        rpc.FetchRecordsReply,
        high_watermark=int64,
        log_start_offset=int64,
        diverging=st.none() | st.builds(rpc.LogEnd, ids, st.integers(0, 2**63 - 1)),
        snapshot_id=st.none() | snapshot_ids,
        records=st.none() | st.binary(min_size=1, max_size=50),
        **known,
    ),
    rpc.FetchSnapshotReply: st.builds(
        rpc.FetchSnapshotReply,
        snapshot_id=st.none() | snapshot_ids,
        size=st.integers(0, 2**63 - 1),
        position=st.integers(0, 2**63 - 1),
        data=st.binary(max_size=50),
        **known,
    ),
}
ASKED = request_to_wire(
    rpc.FetchSnapshot(
        cluster_id=None,
        replica=ReplicaKey(1),
        leader_epoch=1,
        snapshot_id=rpc.SnapshotId(1, 1),
        position=0,
        max_bytes=1,
    ),
    listeners=(),
)
MESSAGES = (
    quorum.VoteRequest,
    quorum.BeginQuorumEpochRequest,
    quorum.EndQuorumEpochRequest,
    fetch.FetchRequest,
    quorum.FetchSnapshotRequest,
    quorum.VoteResponse,
    quorum.BeginQuorumEpochResponse,
    quorum.EndQuorumEpochResponse,
    fetch.FetchResponse,
    quorum.FetchSnapshotResponse,
)
quick = settings(max_examples=30, deadline=None, database=None)


def newest_version(message: object) -> int:
    return schema_of(type(message)).versions.last


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_survives_every_version_that_may_carry_it(kind: type) -> None:
    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        request: Any = data.draw(REQUESTS[kind])
        message = request_to_wire(request, listeners=(VoterListener("CONTROLLER", "here", 9093),))
        version = data.draw(st.integers(oldest_version(request), newest_version(message)))
        arrived = request_from_wire(decode(type(message), version, encode_bytes(message, version)))
        if kind is rpc.FetchRecords and version < 18:
            request = replace(request, high_watermark=2**63 - 1)
        if version == 0 and kind in (rpc.Vote, rpc.BeginEpoch):
            request = replace(request, voter=None)
        assert arrived == request

    check()


@pytest.mark.parametrize("kind", RESPONSES, ids=lambda kind: kind.__name__)
def test_an_answer_survives_every_version(kind: type) -> None:
    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        response: Any = data.draw(RESPONSES[kind])
        leader = data.draw(st.none() | st.just(VoterListener("CONTROLLER", "there", 9093)))
        message = response_to_wire(response, ASKED, leader=leader)
        oldest = 12 if kind is rpc.FetchRecordsReply else 0
        version = data.draw(st.integers(oldest, newest_version(message)))
        assert response_from_wire(decode(type(message), version, encode_bytes(message, version))) == response

    check()


@pytest.mark.parametrize("kind", RESPONSES, ids=lambda kind: kind.__name__)
def test_another_cluster_gets_one_error_for_the_whole_request(kind: type) -> None:
    message = response_to_wire(
        kind(error=ErrorCode.INCONSISTENT_CLUSTER_ID, leader_id=3, leader_epoch=4), ASKED, leader=None
    )
    assert message.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert response_from_wire(message) == kind(error=ErrorCode.INCONSISTENT_CLUSTER_ID)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_any_message_is_understood_or_refused_and_never_anything_else(kind: type) -> None:
    @quick
    @given(st.data())
    def check(data: st.DataObject) -> None:
        message: Any = data.draw(messages(kind, schema_of(kind).versions.last))
        try:
            if kind.__name__.endswith("Request"):
                request_from_wire(message)
            else:
                response_from_wire(message)
        except MalformedMessage:
            assert kind.__name__.endswith("Response")
        except KafkaError as refusal:
            assert refusal.code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    check()


def vote_on(topic: str, *indexes: int) -> quorum.VoteRequest:
    parts = tuple(
        quorum.VotePartition(partition_index=index, replica_epoch=1, replica_id=2, last_offset_epoch=0, last_offset=0)
        for index in indexes
    )
    return quorum.VoteRequest(topics=(quorum.VoteTopic(topic_name=topic, partitions=parts),))


@pytest.mark.parametrize(
    "message",
    [
        quorum.VoteRequest(topics=()),
        vote_on("orders", 0),
        vote_on("__cluster_metadata", 1),
        vote_on("__cluster_metadata"),
        vote_on("__cluster_metadata", 0, 0),
    ],
    ids=["nothing", "another topic", "another partition", "no partition", "twice"],
)
def test_a_request_about_anything_else_than_the_metadata_log_is_invalid(message: quorum.VoteRequest) -> None:
    with pytest.raises(KafkaError) as refusal:
        request_from_wire(message)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


def test_a_fetch_may_name_the_log_by_its_id() -> None:
    part = fetch.FetchPartition(partition=0, fetch_offset=5, partition_max_bytes=100, last_fetched_epoch=2)
    by_id = fetch.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=(part,))
    message = fetch.FetchRequest(max_wait_ms=1, min_bytes=0, max_bytes=50, topics=(by_id,))
    request = request_from_wire(message)
    assert isinstance(request, rpc.FetchRecords)
    assert (request.fetch_offset, request.max_bytes, request.replica.id) == (5, 50, -1)


def test_partitions_without_snapshots_are_answered_each_beside_the_one_that_has_them() -> None:
    def part(partition: int) -> quorum.SnapshotPosition:
        return quorum.SnapshotPosition(
            partition=partition,
            current_leader_epoch=1,
            snapshot_id=fetch.WireSnapshotId(end_offset=9, epoch=1),
            position=0,
        )

    message = quorum.FetchSnapshotRequest(
        topics=(
            quorum.SnapshotTopic(name="orders", partitions=(part(0),)),
            quorum.SnapshotTopic(name="__cluster_metadata", partitions=(part(0), part(1))),
        )
    )
    assert isinstance(request_from_wire(message), rpc.FetchSnapshot)
    answer = response_to_wire(
        rpc.FetchSnapshotReply(leader_id=1, leader_epoch=1, snapshot_id=rpc.SnapshotId(9, 1), size=3, data=b"abc"),
        message,
        leader=None,
    )
    assert isinstance(answer, quorum.FetchSnapshotResponse)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = [
        (topic.name, answered.index, answered.error_code) for topic in answer.topics for answered in topic.partitions
    ]
    assert codes == [("orders", 0, unknown), ("__cluster_metadata", 0, 0), ("__cluster_metadata", 1, unknown)]
    assert all(answered.unaligned_records is not None for topic in answer.topics for answered in topic.partitions)


def test_a_fetch_of_other_snapshots_only_is_about_unknown_partitions() -> None:
    with pytest.raises(KafkaError) as refusal:
        request_from_wire(quorum.FetchSnapshotRequest(topics=()))
    assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_answer_with_impossible_leadership_is_malformed() -> None:
    for leader_id, epoch in ((-2, 1), (1, -2), (1, NEWEST_EPOCH + 1)):
        part = quorum.EpochPartition(partition_index=0, error_code=0, leader_id=leader_id, leader_epoch=epoch)
        topic = quorum.EpochTopic(topic_name="__cluster_metadata", partitions=(part,))
        with pytest.raises(MalformedMessage):
            response_from_wire(quorum.BeginQuorumEpochResponse(topics=(topic,)))


def test_an_unknown_code_is_an_unknown_error() -> None:
    part = quorum.EpochPartition(partition_index=0, error_code=9999, leader_id=1, leader_epoch=1)
    topic = quorum.EpochTopic(topic_name="__cluster_metadata", partitions=(part,))
    answer = response_from_wire(quorum.EndQuorumEpochResponse(topics=(topic,)))
    assert answer.error is ErrorCode.UNKNOWN_SERVER_ERROR
