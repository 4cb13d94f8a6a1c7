"""DescribeQuorum (55) on a node that knows of no quorum yet: its identity, so that founders find each other.

The answer has no voters, and one observer: this replica, by its id and the directory of its log.
"""

from typing import Any, Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumPartition,
    QuorumReplica,
    QuorumTopic,
)
from tailrace.raft.rpc import NO_LEADER
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VoterSet
from tailrace.server.context import RequestContext
from tailrace.server.quorum.description import WANTED, unknown_topic
from tailrace.server.quorum.metadata_directory import METADATA_PARTITION

NO_EPOCH: Final = -1
"""The leader epoch of a node that knows of no quorum."""


class FounderHandler:
    """Answers with the replica that waits here for the other founders."""

    def __init__(self, key: ReplicaKey) -> None:
        self._key = key

    def handle(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        if request.topics != WANTED:
            return DescribeQuorumResponse(topics=tuple(unknown_topic(topic) for topic in request.topics))
        partition = QuorumPartition(
            partition_index=METADATA_PARTITION.partition,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            error_message="the quorum is being founded",
            leader_id=NO_LEADER,
            leader_epoch=NO_EPOCH,
            high_watermark=-1,
            current_voters=(),
            observers=(
                QuorumReplica(replica_id=self._key.id, replica_directory_id=self._key.directory_id, log_end_offset=-1),
            ),
        )
        topic = QuorumTopic(topic_name=METADATA_PARTITION.topic, partitions=(partition,))
        return DescribeQuorumResponse(topics=(topic,))


class NotFoundedHandler:
    """Refuses everything else for now. The APIs are announced all the same, since clients cache the list."""

    def handle(self, request: Any, context: RequestContext) -> None:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the quorum is being founded")


def waiting_founder(response: DescribeQuorumResponse) -> ReplicaKey | None:
    """The replica that gave this answer, if it knows of no quorum yet."""
    partition = _partition(response)
    if partition is None or partition.leader_epoch != NO_EPOCH or partition.current_voters:
        return None
    found = [ReplicaKey(one.replica_id, one.replica_directory_id) for one in partition.observers]
    return found[0] if len(found) == 1 else None


def stated_voters(response: DescribeQuorumResponse) -> VoterSet | None:
    """The voters that an answer names, of a quorum that there is."""
    partition = _partition(response)
    if partition is None or not partition.current_voters:
        return None
    endpoints = {
        node.node_id: tuple(VoterListener(one.name, one.host, one.port) for one in node.listeners)
        for node in response.nodes
    }
    voters = {
        one.replica_id: Voter(ReplicaKey(one.replica_id, one.replica_directory_id), endpoints.get(one.replica_id, ()))
        for one in partition.current_voters
    }
    return VoterSet.of(voters.values())


def _partition(response: DescribeQuorumResponse) -> QuorumPartition | None:
    for topic in response.topics:
        for partition in topic.partitions:
            if (topic.topic_name, partition.partition_index) == METADATA_PARTITION:
                return partition
    return None
