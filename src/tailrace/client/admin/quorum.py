"""The metadata quorum: its voters and observers, their progress, and changes of voters."""

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.net.connection import Connection
from tailrace.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribedQuorumPartition,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumPartition,
    QuorumReplica,
    RaftVoterListener,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)

_METADATA_TOPIC = "__cluster_metadata"
_WANTED = DescribedQuorumTopic(topic_name=_METADATA_TOPIC, partitions=(DescribedQuorumPartition(partition_index=0),))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplicaState:
    """A voter or an observer, in the leader's report. Times in ms since 1970, -1 if unknown."""

    replica_id: BrokerId
    directory_id: bytes
    """16 bytes; all 0 if the cluster does not report the id."""
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumEndpoint:
    """An address at which a voter listens."""

    listener_name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The quorum in its leader's report."""

    leader_id: BrokerId
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplicaState, ...]
    observers: tuple[QuorumReplicaState, ...]
    endpoints: dict[BrokerId, tuple[QuorumEndpoint, ...]]
    """Endpoints of the voters; empty if the cluster reports no endpoints."""

    def lag(self, replica: QuorumReplicaState) -> int | None:
        """The number of records between the replica's end and the leader's; None if unknown."""
        leader = next((each for each in self.voters if each.replica_id == self.leader_id), None)
        if leader is None or leader.log_end_offset < 0 or replica.log_end_offset < 0:
            return None
        return leader.log_end_offset - replica.log_end_offset


async def describe_quorum(router: Router) -> QuorumDescription:
    """The replicas of the cluster's metadata log, and their progress."""

    async def attempt() -> QuorumDescription:
        return await request_quorum(await router.any_connection(), timeout_ms=router.request_timeout_ms)

    return await router.retry(attempt)


async def request_quorum(connection: Connection, *, timeout_ms: int) -> QuorumDescription:
    """The quorum in this broker's report. Raises KafkaError, also while there is no leader."""
    request = DescribeQuorumRequest(topics=(_WANTED,))
    response = await connection.ask(request, DescribeQuorumResponse, timeout_ms=timeout_ms)
    check(response.error_code, response.error_message or "the quorum cannot be described")
    partition = next((each for topic in response.topics for each in topic.partitions), None)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the cluster says nothing of {_METADATA_TOPIC}")
    check(partition.error_code, partition.error_message or "the quorum cannot be described")
    return _description(partition, response)


def _description(partition: QuorumPartition, response: DescribeQuorumResponse) -> QuorumDescription:
    return QuorumDescription(
        leader_id=BrokerId(partition.leader_id),
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        voters=tuple(map(_replica, partition.current_voters)),
        observers=tuple(map(_replica, partition.observers)),
        endpoints={
            BrokerId(node.node_id): tuple(
                QuorumEndpoint(listener_name=each.name, host=each.host, port=each.port) for each in node.listeners
            )
            for node in response.nodes
        },
    )


def _replica(replica: QuorumReplica) -> QuorumReplicaState:
    return QuorumReplicaState(
        replica_id=BrokerId(replica.replica_id),
        directory_id=replica.replica_directory_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_timestamp,
        last_caught_up_timestamp=replica.last_caught_up_timestamp,
    )


async def add_voter(router: Router, voter_id: int, directory_id: bytes, endpoints: Sequence[QuorumEndpoint]) -> None:
    """Make a controller that follows the quorum already a voter (KIP-853). Returns when the change is committed.

    Raises KafkaError: DUPLICATE_VOTER for an id that votes; REQUEST_TIMED_OUT for an observer that has not caught up.
    """
    listeners = tuple(RaftVoterListener(name=each.listener_name, host=each.host, port=each.port) for each in endpoints)

    async def attempt() -> None:
        connection = await router.any_connection()
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=router.request_timeout_ms,
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=listeners,
        )
        response = await router.ask(connection, request, AddRaftVoterResponse)
        check(response.error_code, response.error_message or f"controller {voter_id} cannot be added")

    # A change that timed out may be committed later: the caller must describe the quorum before another attempt.
    await router.retry(attempt, final=(ErrorCode.REQUEST_TIMED_OUT,))


async def remove_voter(router: Router, voter_id: int, directory_id: bytes) -> None:
    """Make a voter an observer. Returns when the change is committed. Raises KafkaError such as VOTER_NOT_FOUND."""

    async def attempt() -> None:
        connection = await router.any_connection()
        request = RemoveRaftVoterRequest(cluster_id=None, voter_id=voter_id, voter_directory_id=directory_id)
        response = await router.ask(connection, request, RemoveRaftVoterResponse)
        check(response.error_code, response.error_message or f"controller {voter_id} cannot be removed")

    await router.retry(attempt, final=(ErrorCode.REQUEST_TIMED_OUT,))
