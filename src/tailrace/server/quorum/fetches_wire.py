"""Fetches of records and snapshots of the metadata log as Kafka's messages, for `raft_wire`: Fetch (1), FetchSnapshot
(59)."""

from collections.abc import Sequence
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.ids import METADATA_TOPIC_ID
from tailrace.model.partitions import METADATA_PARTITION
from tailrace.protocol.messages import fetch, quorum
from tailrace.raft.rpc import (
    FetchRecords,
    FetchRecordsReply,
    FetchSnapshot,
    FetchSnapshotReply,
    LogEnd,
    SnapshotId,
)
from tailrace.raft.voters import ReplicaKey
from tailrace.server.errors import unknown_snapshot_part
from tailrace.server.quorum.metadata_partition_wire import (
    INDEX,
    TOPIC,
    Where,
    is_for_all,
    known_code,
    leadership,
    only_answered,
)

_MOST_SNAPSHOTS: Final = 16
"""The most snapshots in one request: a replica requests a single snapshot, and each snapshot takes a step of the
machine."""

# Requests


def fetch_request(request: FetchRecords) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(
        partition=INDEX,
        current_leader_epoch=request.leader_epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        partition_max_bytes=request.max_bytes,
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=request.cluster_id,
        replica_id=request.replica.id,
        replica_state=fetch.ReplicaState(replica_id=request.replica.id),
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=request.max_bytes,
        topics=(fetch.FetchTopic(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(partition,)),),
    )


def fetch_snapshot_request(request: FetchSnapshot) -> quorum.FetchSnapshotRequest:
    position = quorum.SnapshotPosition(
        partition=INDEX,
        current_leader_epoch=request.leader_epoch,
        snapshot_id=_wire_id(request.snapshot_id),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    topic = quorum.SnapshotTopic(name=TOPIC, partitions=(position,))
    return quorum.FetchSnapshotRequest(
        cluster_id=request.cluster_id, replica_id=request.replica.id, max_bytes=request.max_bytes, topics=(topic,)
    )


def _wire_id(snapshot_id: SnapshotId | None) -> fetch.WireSnapshotId:
    if snapshot_id is None:
        return fetch.WireSnapshotId()
    return fetch.WireSnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch)


def is_for_metadata_log(message: fetch.FetchRequest) -> bool:
    """Whether a Fetch is for the metadata log: by its name, or by its id."""
    topics = message.topics
    return len(topics) == 1 and (topics[0].topic == TOPIC or topics[0].topic_id == METADATA_TOPIC_ID)


def fetch_asked(message: fetch.FetchRequest) -> FetchRecords:
    if not is_for_metadata_log(message) or len(message.topics[0].partitions) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"asked for anything else than {METADATA_PARTITION}")
    part = message.topics[0].partitions[0]
    if part.partition != INDEX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{TOPIC} has no partition {part.partition}")
    replica_id = message.replica_state.replica_id if message.replica_state.replica_id >= 0 else message.replica_id
    return FetchRecords(
        cluster_id=message.cluster_id,
        replica=ReplicaKey(replica_id, part.replica_directory_id),
        leader_epoch=part.current_leader_epoch,
        fetch_offset=part.fetch_offset,
        last_fetched_epoch=part.last_fetched_epoch,
        max_wait_ms=message.max_wait_ms,
        max_bytes=max(0, message.max_bytes),  # Kafka's replicas send 0 for the partition, which its leader ignores
        high_watermark=part.high_watermark,
    )


def fetch_snapshots_asked(message: quorum.FetchSnapshotRequest) -> tuple[FetchSnapshot, ...]:
    """A request for each position in a snapshot that the message names; there is no request for partitions without
    snapshots.

    Each request has the `max_bytes` of the message, which limits all requests together.
    """
    wanted = [part for topic in message.topics if topic.name == TOPIC for part in topic.partitions]
    wanted = [part for part in wanted if part.partition == INDEX]
    if len(wanted) > _MOST_SNAPSHOTS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{METADATA_PARTITION} is asked for {len(wanted)} times, more than {_MOST_SNAPSHOTS}",
        )
    if not wanted:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"only {METADATA_PARTITION} has snapshots")
    return tuple(_snapshot_asked(message, part) for part in wanted)


def _snapshot_asked(message: quorum.FetchSnapshotRequest, part: quorum.SnapshotPosition) -> FetchSnapshot:
    return FetchSnapshot(
        cluster_id=message.cluster_id,
        replica=ReplicaKey(message.replica_id, part.replica_directory_id),
        leader_epoch=part.current_leader_epoch,
        snapshot_id=SnapshotId(part.snapshot_id.end_offset, part.snapshot_id.epoch),
        position=part.position,
        max_bytes=message.max_bytes,
    )


# Answers


def fetch_response(response: FetchRecordsReply, where: Where) -> fetch.FetchResponse:
    if is_for_all(response):
        return fetch.FetchResponse(error_code=response.error, responses=())
    diverging = response.diverging
    records = response.records
    assert records is None or isinstance(records, bytes | bytearray | memoryview), f"not records: {type(records)}"
    partition = fetch.PartitionData(
        partition_index=INDEX,
        error_code=response.error,
        high_watermark=response.high_watermark,
        last_stable_offset=response.high_watermark,
        log_start_offset=response.log_start_offset,
        diverging_epoch=fetch.DivergingEpoch()
        if diverging is None
        else fetch.DivergingEpoch(epoch=diverging.epoch, end_offset=diverging.offset),
        current_leader=fetch.LeaderIdAndEpoch(leader_id=response.leader_id, leader_epoch=response.leader_epoch),
        snapshot_id=_wire_id(response.snapshot_id),
        aborted_transactions=None,
        records=b"" if records is None else records,
    )
    topic = fetch.FetchableTopicResponse(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(partition,))
    endpoints = () if where is None else (fetch.NodeEndpoint(node_id=where[1], host=where[0].host, port=where[0].port),)
    return fetch.FetchResponse(responses=(topic,), node_endpoints=endpoints)


def fetch_snapshot_response(
    responses: Sequence[FetchSnapshotReply], request: quorum.FetchSnapshotRequest, where: Where
) -> quorum.FetchSnapshotResponse:
    """`responses` answer the requests of `fetch_snapshots_asked`, in their order."""
    for response in responses:
        if is_for_all(response):
            return quorum.FetchSnapshotResponse(error_code=response.error, topics=())
    parts = map(_snapshot_part, responses)
    topics = tuple(
        quorum.SnapshotPartTopic(
            name=topic.name,
            partitions=tuple(
                next(parts)
                if (topic.name, partition.partition) == METADATA_PARTITION
                else unknown_snapshot_part(partition)
                for partition in topic.partitions
            ),
        )
        for topic in request.topics
    )
    endpoints = (
        ()
        if where is None
        else (quorum.SnapshotLeaderEndpoint(node_id=where[1], host=where[0].host, port=where[0].port),)
    )
    return quorum.FetchSnapshotResponse(topics=topics, node_endpoints=endpoints)


def _snapshot_part(response: FetchSnapshotReply) -> quorum.SnapshotPart:
    return quorum.SnapshotPart(
        index=INDEX,
        error_code=response.error,
        snapshot_id=_wire_id(response.snapshot_id),
        current_leader=quorum.SnapshotLeader(leader_id=response.leader_id, leader_epoch=response.leader_epoch),
        size=response.size,
        position=response.position,
        unaligned_records=response.data,
    )


def fetch_answer(message: fetch.FetchResponse, for_all: ErrorCode) -> FetchRecordsReply:
    if for_all is not ErrorCode.NONE:
        return FetchRecordsReply(error=for_all)
    part = only_answered(
        message.responses,
        lambda topic, partition: (
            (topic.topic == TOPIC or topic.topic_id == METADATA_TOPIC_ID) and partition.partition_index == INDEX
        ),
    )
    diverging, snapshot_id = part.diverging_epoch, part.snapshot_id
    return FetchRecordsReply(
        error=known_code(part.error_code),
        high_watermark=part.high_watermark,
        log_start_offset=part.log_start_offset,
        diverging=LogEnd(*whole) if (whole := _whole(diverging.epoch, diverging.end_offset)) else None,
        snapshot_id=SnapshotId(*whole) if (whole := _whole(snapshot_id.end_offset, snapshot_id.epoch)) else None,
        records=part.records or None,
        **leadership(part.current_leader.leader_id, part.current_leader.leader_epoch),
    )


def fetch_snapshot_answer(message: quorum.FetchSnapshotResponse, for_all: ErrorCode) -> FetchSnapshotReply:
    if for_all is not ErrorCode.NONE:
        return FetchSnapshotReply(error=for_all)
    part = only_answered(message.topics, lambda topic, partition: (topic.name, partition.index) == METADATA_PARTITION)
    if part.size < 0 or part.position < 0:
        raise MalformedMessage(f"bytes of a snapshot at {part.position} of {part.size}")
    return FetchSnapshotReply(
        error=known_code(part.error_code),
        snapshot_id=_known_id(part.snapshot_id),
        size=part.size,
        position=part.position,
        data=part.unaligned_records,
        **leadership(part.current_leader.leader_id, part.current_leader.leader_epoch),
    )


def _whole(*pair: int) -> tuple[int, ...] | None:
    """An epoch and an offset, or None if neither is set. Raises MalformedMessage if only one of both is set.

    Half of a pair must not pass for no pair, which means that the replica's log is a prefix of the leader's log. Kafka
    ignores such an answer too, and asks again after a while.
    """
    if all(number < 0 for number in pair):
        return None
    if any(number < 0 for number in pair):
        raise MalformedMessage(f"an answer with half a SnapshotId or half a DivergingEpoch: {pair}")
    return pair


def _known_id(snapshot_id: fetch.WireSnapshotId) -> SnapshotId | None:
    if snapshot_id.end_offset < 0 or snapshot_id.epoch < 0:
        return None
    return SnapshotId(snapshot_id.end_offset, snapshot_id.epoch)
