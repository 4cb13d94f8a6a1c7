"""Addresses at which a controller is looked for: the next address after no answer, or after another node's answer."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import METADATA_TOPIC_ID
from tailrace.net.connection import Address
from tailrace.node.controller_places import ControllerPlaces
from tailrace.protocol.messages import fetch, quorum
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VoterSet

TOPIC = "__cluster_metadata"
STATED, TOLD = Address("stated", 1), Address("told", 2)
OTHER_CLUSTER, MOVED, WRONG_VOTER = (
    ErrorCode.INCONSISTENT_CLUSTER_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.INVALID_VOTER_KEY,
)


def voters(*addresses: Address) -> VoterSet:
    endpoints = tuple(VoterListener("CONTROLLER", address.host, address.port) for address in addresses)
    return VoterSet.of([Voter(ReplicaKey(2, b"directory of two"), endpoints)])


def places(stated: VoterSet | None = None) -> ControllerPlaces:
    """The places of node 1, which looks for node 2: the log has one address, the settings have another."""
    known = voters(STATED) if stated is None else stated
    return ControllerPlaces(node_id=1, founders={1: Address("here", 9), 2: TOLD}, places=(), voters=lambda: known)


def voted(error: ErrorCode, leader_id: int = -1) -> quorum.VoteResponse:
    part = quorum.VotedPartition(
        partition_index=0, error_code=error, leader_id=leader_id, leader_epoch=3, vote_granted=error == 0
    )
    return quorum.VoteResponse(topics=(quorum.VotedTopic(topic_name=TOPIC, partitions=(part,)),))


def begun(error: ErrorCode) -> quorum.BeginQuorumEpochResponse:
    part = quorum.EpochPartition(partition_index=0, error_code=error, leader_id=3, leader_epoch=3)
    return quorum.BeginQuorumEpochResponse(topics=(quorum.EpochTopic(topic_name=TOPIC, partitions=(part,)),))


def fetched(error: ErrorCode, leader_id: int) -> fetch.FetchResponse:
    part = fetch.PartitionData(
        partition_index=0,
        error_code=error,
        high_watermark=5,
        aborted_transactions=None,
        records=b"",
        current_leader=fetch.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=3),
    )
    topic = fetch.FetchableTopicResponse(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(part,))
    return fetch.FetchResponse(responses=(topic,))


def part_of_snapshot(error: ErrorCode, leader_id: int) -> quorum.FetchSnapshotResponse:
    part = quorum.SnapshotPart(
        index=0,
        error_code=error,
        snapshot_id=fetch.WireSnapshotId(end_offset=5, epoch=1),
        size=9,
        position=0,
        unaligned_records=b"",
        current_leader=quorum.SnapshotLeader(leader_id=leader_id, leader_epoch=3),
    )
    topic = quorum.SnapshotPartTopic(name=TOPIC, partitions=(part,))
    return quorum.FetchSnapshotResponse(topics=(topic,))


SOMEBODY_ELSE = (
    quorum.VoteResponse(error_code=OTHER_CLUSTER, topics=()),
    quorum.BeginQuorumEpochResponse(error_code=OTHER_CLUSTER, topics=()),
    quorum.EndQuorumEpochResponse(error_code=OTHER_CLUSTER, topics=()),
    fetch.FetchResponse(error_code=OTHER_CLUSTER, responses=()),
    quorum.FetchSnapshotResponse(error_code=OTHER_CLUSTER, topics=()),
    voted(WRONG_VOTER, leader_id=3),
    begun(WRONG_VOTER),
    fetched(MOVED, leader_id=2),
    fetched(ErrorCode.NONE, leader_id=3),
    part_of_snapshot(MOVED, leader_id=2),
    part_of_snapshot(ErrorCode.NONE, leader_id=3),
)
PERHAPS_ITSELF = (
    voted(ErrorCode.NONE),
    voted(ErrorCode.FENCED_LEADER_EPOCH, leader_id=3),
    begun(ErrorCode.NONE),
    fetched(MOVED, leader_id=3),
    fetched(MOVED, leader_id=-1),
    fetched(ErrorCode.NONE, leader_id=2),
    fetched(ErrorCode.NONE, leader_id=-1),
    fetched(ErrorCode.FENCED_LEADER_EPOCH, leader_id=2),
    part_of_snapshot(ErrorCode.SNAPSHOT_NOT_FOUND, leader_id=2),
    fetch.FetchResponse(responses=()),  # nothing that makes sense
)


@pytest.mark.parametrize("reply", [None, *SOMEBODY_ELSE], ids=repr)
def test_without_an_answer_or_with_a_foreign_one_the_next_address_is_tried(reply: Any) -> None:
    looked = places()
    assert looked.address_of(2) == STATED
    looked.on_response(2, STATED, reply)
    assert looked.address_of(2) == TOLD
    looked.on_response(2, TOLD, reply)
    assert looked.address_of(2) == STATED


@pytest.mark.parametrize("reply", PERHAPS_ITSELF, ids=repr)
def test_an_answer_that_the_node_itself_could_have_given_moves_nothing(reply: Any) -> None:
    looked = places()
    looked.on_response(2, STATED, reply)
    assert looked.address_of(2) == STATED


def test_an_answer_from_a_place_that_was_left_moves_nothing() -> None:
    looked = places()
    for _ in range(2):
        looked.on_response(2, STATED, None)
        assert looked.address_of(2) == TOLD


def test_the_present_address_is_that_of_the_log_or_without_one_that_of_the_settings() -> None:
    assert places().is_present(2, STATED)
    assert not places().is_present(2, TOLD)
    looked = ControllerPlaces(node_id=1, founders={2: TOLD}, places=(), voters=lambda: None)
    assert looked.is_present(2, TOLD)
    assert not looked.is_present(3, TOLD)


def test_an_address_that_is_no_longer_named_is_left() -> None:
    stated = [voters(STATED)]
    looked = ControllerPlaces(node_id=1, founders={2: TOLD}, places=(), voters=lambda: stated[0])
    stated[0] = voters(Address("new", 3))
    assert looked.address_of(2) == Address("new", 3)
    looked.on_response(2, STATED, None)
    assert looked.address_of(2) == Address("new", 3)


def test_a_place_is_tried_that_an_answer_has_named() -> None:
    looked = ControllerPlaces(node_id=1, founders={}, places=(Address("seed", 8),), voters=lambda: None)
    assert (looked.names, looked.address_of(-2), looked.address_of(2)) == ((-2,), Address("seed", 8), None)
    endpoint = fetch.NodeEndpoint(node_id=2, host="said", port=7)
    named = fetch.FetchResponse(responses=fetched(MOVED, leader_id=2).responses, node_endpoints=(endpoint,))
    looked.on_response(-2, Address("seed", 8), named)
    assert looked.address_of(2) == Address("said", 7)


def test_the_leader_is_found_where_it_has_served_and_nowhere_else() -> None:
    looked = places()
    assert looked.found(2) is None
    looked.on_response(2, STATED, voted(ErrorCode.NONE))
    looked.on_response(2, STATED, fetched(MOVED, leader_id=3))
    assert looked.found(2) is None
    looked.on_response(2, STATED, fetched(ErrorCode.NONE, leader_id=2))
    assert looked.found(2) == STATED
    looked.on_response(2, STATED, None)  # it may come back here as well as there
    assert (looked.found(2), looked.address_of(2)) == (STATED, TOLD)
    looked.on_response(2, TOLD, fetched(ErrorCode.NONE, leader_id=2))
    assert looked.found(2) == TOLD
    looked.on_response(2, TOLD, voted(WRONG_VOTER))
    assert looked.found(2) is None
