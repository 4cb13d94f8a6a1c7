"""DescribeQuorum (55): who keeps the cluster's metadata log (KIP-595); v1 times (KIP-836), v2 addresses (KIP-853).

The log has one voter so far, which leads. A request names the metadata log's partition and nothing else, as in Kafka.
"""

from typing import Protocol

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
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
from tailrace.server.context import RequestContext
from tailrace.server.hosts.metadata_directory import METADATA_PARTITION
from tailrace.server.ports import Clock, Controller

WANTED = (
    DescribedQuorumTopic(
        topic_name=METADATA_PARTITION.topic,
        partitions=(DescribedQuorumPartition(partition_index=METADATA_PARTITION.partition),),
    ),
)
"""What a request names."""


class MetadataLog(Protocol):
    """The log, as the node that leads it knows it."""

    @property
    def leader_id(self) -> BrokerId: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...


class DescribeQuorumHandler:
    """Describes the quorum of one."""

    def __init__(self, *, log: MetadataLog, controller: Controller, clock: Clock, directory_id: bytes) -> None:
        """`directory_id` is the leader's, of which its log is."""
        self._log = log
        self._controller = controller
        self._clock = clock
        self._directory_id = directory_id

    def handle(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        if request.topics != WANTED:
            return DescribeQuorumResponse(topics=tuple(unknown_topic(topic) for topic in request.topics))
        topic = QuorumTopic(topic_name=METADATA_PARTITION.topic, partitions=(self._described(),))
        return DescribeQuorumResponse(topics=(topic,), nodes=self._nodes())

    def _described(self) -> QuorumPartition:
        log, now_ms = self._log, self._clock.now_ms()
        leader = QuorumReplica(
            replica_id=log.leader_id,
            replica_directory_id=self._directory_id,
            log_end_offset=log.log_end_offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        return QuorumPartition(
            partition_index=METADATA_PARTITION.partition,
            error_code=ErrorCode.NONE,
            leader_id=log.leader_id,
            leader_epoch=log.leader_epoch,
            high_watermark=log.high_watermark,
            current_voters=(leader,),
            observers=(),
        )

    def _nodes(self) -> tuple[QuorumNode, ...]:
        """Where the voter listens: as the broker that it is too."""
        leader_id = self._log.leader_id
        broker = self._controller.image.brokers.get(leader_id)
        if broker is None:
            return ()
        listeners = tuple(QuorumListener(name=e.listener_name, host=e.host, port=e.port) for e in broker.endpoints)
        return (QuorumNode(node_id=leader_id, listeners=listeners),)


def unknown_topic(topic: DescribedQuorumTopic) -> QuorumTopic:
    """The answer for anything else than the metadata log."""
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
