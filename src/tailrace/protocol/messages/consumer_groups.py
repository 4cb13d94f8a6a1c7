"""ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69): the coordinator assigns the partitions (KIP-848)."""

from tailrace.protocol.messages.groups import GroupDetails
from tailrace.protocol.schema import Int8, Int16, Int32, Uuid, field, message, struct


@struct
class HeartbeatTopicPartitions:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    """Joins (epoch 0), stays, leaves (-1) or leaves to come back (-2, static members). A null field: as in the last
    heartbeat.

    v1: the member makes its own id, and may subscribe by a regular expression.
    """

    group_id: str
    member_id: str
    member_epoch: Int32
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = field(versions="1+", default=None)
    server_assignor: str | None = None
    topic_partitions: tuple[HeartbeatTopicPartitions, ...] | None = None


@struct
class HeartbeatAssignment:
    """The partitions that the member may read from now on; any other partition is taken away."""

    topic_partitions: tuple[HeartbeatTopicPartitions, ...]


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: HeartbeatAssignment | None = None


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    """Asks for all about some groups of this kind, which this broker must coordinate."""

    group_ids: tuple[str, ...]
    include_authorized_operations: bool = False
    include_details: bool = field(versions="0+", tag=10000, default=False)


@struct
class DescribedTopicPartitions:
    """Partitions of one topic, by id and name."""

    topic_id: Uuid
    topic_name: str
    partitions: tuple[Int32, ...]


@struct
class DescribedAssignment:
    """Partitions of a member."""

    topic_partitions: tuple[DescribedTopicPartitions, ...]


@struct
class DescribedConsumerMember:
    """A member, with its present and its target partitions. v1 tells whether it speaks the classic protocol."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None = None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Int8 = field(versions="1+", default=-1)


@struct
class DescribedConsumerGroup:
    """A group, or why it cannot be described."""

    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: str
    members: tuple[DescribedConsumerMember, ...]
    authorized_operations: Int32 = -2147483648
    details: tuple[GroupDetails, ...] = field(versions="0+", tag=10000, default=())


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """The groups asked for, in the order of the request."""

    throttle_time_ms: Int32 = 0
    groups: tuple[DescribedConsumerGroup, ...]
