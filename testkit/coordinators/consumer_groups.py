"""Members of a consumer group (KIP-848) that send heartbeats when a test says so."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
    HeartbeatTopicPartitions,
)
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.ports import RecordingConnection

Owned = dict[TopicId, set[int]]
LEAVE, LEAVE_FOR_A_WHILE = -1, -2


def _on_the_wire(owned: Mapping[TopicId, set[int]]) -> tuple[HeartbeatTopicPartitions, ...]:
    return tuple(HeartbeatTopicPartitions(topic_id=name, partitions=tuple(sorted(owned[name]))) for name in owned)


@dataclass(slots=True)
class TableMember:
    """A client by the rules of KIP-848: the member reads exactly the partitions of its assignment, and reports
    these."""

    node: GroupPath
    name: str
    topics: tuple[str, ...] = ("orders",)
    regex: str | None = None
    group_id: str = "g"
    instance_id: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = 10_000
    connection: RecordingConnection | None = None
    """The connection of the member; None: the connection that members share."""
    epoch: int = 0
    owned: Owned = field(default_factory=dict)
    interval_ms: int = 0
    """The heartbeat interval in the last answer."""

    def join(self) -> ErrorCode:
        """Join, or join again after it was fenced."""
        self.owned = {}
        return self._take(
            self._send(
                member_epoch=0,
                instance_id=self.instance_id,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                subscribed_topic_names=self.topics,
                subscribed_topic_regex=self.regex,
                server_assignor=self.assignor,
                topic_partitions=(),
            )
        )

    def beat(self, *, says_owned: bool = True, epoch: int | None = None) -> ErrorCode:
        """Send a heartbeat, and obey the answer."""
        return self._take(
            self._send(
                member_epoch=self.epoch if epoch is None else epoch,
                instance_id=self.instance_id,
                topic_partitions=_on_the_wire(self.owned) if says_owned else None,
            )
        )

    def subscribe(self, *topics: str) -> ErrorCode:
        """Subscribe to other topics from now on."""
        return self.subscribe_to_pattern("", *topics)

    def subscribe_to_pattern(self, regex: str, *topics: str) -> ErrorCode:
        """Subscribe from now on to the topics that this expression matches, and to `topics`; an empty expression
        matches no topic."""
        self.topics, self.regex = topics, regex or None
        return self._take(
            self._send(
                member_epoch=self.epoch,
                instance_id=self.instance_id,
                subscribed_topic_names=topics,
                subscribed_topic_regex=regex,
            )
        )

    def move(self, rack_id: str) -> ErrorCode:
        """Be in another rack from now on."""
        return self._take(self._send(member_epoch=self.epoch, instance_id=self.instance_id, rack_id=rack_id))

    def leave(self, epoch: int = LEAVE) -> ErrorCode:
        """Leave, for good or for a while."""
        answer = self._send(member_epoch=epoch, instance_id=self.instance_id)
        self.owned = {}
        return ErrorCode(answer.error_code)

    def _send(self, **fields: object) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id=self.group_id, member_id=self.name, **fields)  # type: ignore[arg-type]
        answer: ConsumerGroupHeartbeatResponse = self.node.send(request, 1, connection=self.connection).response
        return answer

    def _take(self, answer: ConsumerGroupHeartbeatResponse) -> ErrorCode:
        if not answer.error_code:
            self.epoch, self.interval_ms = answer.member_epoch, answer.heartbeat_interval_ms
            if answer.assignment is not None:
                self.owned = {
                    TopicId(topic.topic_id): set(topic.partitions) for topic in answer.assignment.topic_partitions
                }
        return ErrorCode(answer.error_code)

    def partitions(self, topic: str = "orders") -> set[int]:
        """The partitions of a topic that the member reads."""
        return self.owned.get(self.node.topic_id(topic), set())

    @property
    def topics_read(self) -> set[str]:
        """The topics of which the member reads partitions."""
        names = self.node.controller.image.topic_names
        return {names[topic_id] for topic_id in self.owned}


def describe(node: GroupPath, group_id: str = "g") -> DescribedConsumerGroup:
    """The description of the group that clients get."""
    group: DescribedConsumerGroup
    (group,) = node.send(ConsumerGroupDescribeRequest(group_ids=(group_id,)), 1).response.groups
    return group
