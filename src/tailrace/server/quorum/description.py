"""DescribeQuorum (55): the progress of the voters and observers of the metadata log, from its leader.

v1 times (KIP-836), v2 directories and addresses (KIP-853). Other replicas answer NOT_LEADER_OR_FOLLOWER, with the
leader and the voters that they know. A request may name only the metadata log's partition, as in Kafka.
"""

from collections.abc import Iterable
from typing import Any, Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import METADATA_PARTITION
from tailrace.protocol.messages.quorum import (
    DescribedQuorumPartition,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartition,
    QuorumReplica,
    QuorumTopic,
)
from tailrace.raft.rpc import NO_LEADER, DescribeQuorumReply, ReplicaDescription
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VoterSet
from tailrace.server.context import RequestContext
from tailrace.server.ports import Clock, Controller
from tailrace.server.quorum.host import QuorumHost

WANTED: Final = (
    DescribedQuorumTopic(
        topic_name=METADATA_PARTITION.topic,
        partitions=(DescribedQuorumPartition(partition_index=METADATA_PARTITION.partition),),
    ),
)
"""The only partition that a request may name."""


class QuorumDescriptionHandler:
    """Describes the quorum, as known to this node's replica."""

    def __init__(self, host: QuorumHost, *, clock: Clock, controller: Controller) -> None:
        """`controller` has the addresses of brokers, for a lone voter that has no listener for controllers."""
        self._host = host
        self._clock = clock
        self._controller = controller

    def handle(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse | None:
        if request.topics != WANTED:
            return DescribeQuorumResponse(topics=tuple(unknown_topic(topic) for topic in request.topics))
        self._host.describe(lambda description: context.respond(self._response(description)))
        return None

    def _response(self, description: DescribeQuorumReply) -> DescribeQuorumResponse:
        is_known = description.error is ErrorCode.NONE
        partition = QuorumPartition(
            partition_index=METADATA_PARTITION.partition,
            error_code=description.error,
            error_message=None if is_known else f"the leader is {description.leader_id}",
            leader_id=description.leader_id,
            leader_epoch=description.leader_epoch,
            high_watermark=description.high_watermark,
            current_voters=self._replicas(description.voters) if is_known else _known(self._host.node.voters),
            observers=self._replicas(description.observers),
        )
        topic = QuorumTopic(topic_name=METADATA_PARTITION.topic, partitions=(partition,))
        return DescribeQuorumResponse(topics=(topic,), nodes=self._nodes())

    def _nodes(self) -> tuple[QuorumNode, ...]:
        return tuple(
            QuorumNode(node_id=voter.key.id, listeners=self._listeners(voter)) for voter in self._host.node.voters
        )

    def _listeners(self, voter: Voter) -> tuple[QuorumListener, ...]:
        if voter.endpoints:
            return tuple(QuorumListener(name=e.name, host=e.host, port=e.port) for e in voter.endpoints)
        broker = self._controller.image.brokers.get(BrokerId(voter.key.id))
        found = () if broker is None else broker.endpoints
        return tuple(QuorumListener(name=e.listener_name, host=e.host, port=e.port) for e in found)

    def _replicas(self, replicas: Iterable[ReplicaDescription]) -> tuple[QuorumReplica, ...]:
        return tuple(
            QuorumReplica(
                replica_id=replica.key.id,
                replica_directory_id=replica.key.directory_id,
                log_end_offset=replica.log_end_offset,
                last_fetch_timestamp=self._wall_ms(replica.last_fetch_ms),
                last_caught_up_timestamp=self._wall_ms(replica.last_caught_up_ms),
            )
            for replica in replicas
        )

    def _wall_ms(self, monotonic_ms: int) -> int:
        """Convert a time of the monotonic clock to wall-clock time; -1 stays -1."""
        if monotonic_ms < 0:
            return -1
        return self._clock.now_ms() - self._clock.monotonic_ms() + monotonic_ms


def _known(voters: VoterSet) -> tuple[QuorumReplica, ...]:
    """The voters without their progress, which only the leader has."""
    return tuple(
        QuorumReplica(replica_id=key.id, replica_directory_id=key.directory_id, log_end_offset=-1)
        for key in voters.keys
    )


def unknown_topic(topic: DescribedQuorumTopic) -> QuorumTopic:
    """The answer for any topic but the metadata log."""
    return QuorumTopic(
        topic_name=topic.topic_name,
        partitions=tuple(
            QuorumPartition(
                partition_index=each.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                leader_id=-1,
                leader_epoch=-1,
                high_watermark=-1,
                current_voters=(),
                observers=(),
            )
            for each in topic.partitions
        ),
    )


NO_EPOCH: Final = -1
"""The leader epoch in the answer of a node that knows no quorum."""


class FounderHandler:
    """Describes the replica of this node, which waits for the other founders.

    The answer has no voters, and one observer: this replica, by its id and the directory of its log.
    """

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
    """Refuses all other requests until the quorum is founded. The APIs are announced already, since clients cache the
    list."""

    def handle(self, request: Any, context: RequestContext) -> None:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the quorum is being founded")


def waiting_founder(response: DescribeQuorumResponse) -> ReplicaKey | None:
    """The replica that sent this answer if it has no quorum yet; else None."""
    partition = _partition(response)
    if partition is None or partition.leader_epoch != NO_EPOCH or partition.current_voters:
        return None
    found = [ReplicaKey(observer.replica_id, observer.replica_directory_id) for observer in partition.observers]
    return found[0] if len(found) == 1 else None


def stated_voters(response: DescribeQuorumResponse) -> VoterSet | None:
    """The voters in an answer; None if there is no quorum yet."""
    partition = _partition(response)
    if partition is None or not partition.current_voters:
        return None
    endpoints = {
        node.node_id: tuple(VoterListener(listener.name, listener.host, listener.port) for listener in node.listeners)
        for node in response.nodes
    }
    voters = {
        voter.replica_id: Voter(
            ReplicaKey(voter.replica_id, voter.replica_directory_id), endpoints.get(voter.replica_id, ())
        )
        for voter in partition.current_voters
    }
    return VoterSet.of(voters.values())


def _partition(response: DescribeQuorumResponse) -> QuorumPartition | None:
    for topic in response.topics:
        for partition in topic.partitions:
            if (topic.topic_name, partition.partition_index) == METADATA_PARTITION:
                return partition
    return None
