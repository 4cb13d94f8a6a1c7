"""AlterPartition (56): a leader says which replicas are in sync (KIP-497). v2 topic ids, v3 broker epochs (KIP-903)."""

from tailrace.protocol.schema import Int8, Int16, Int32, Int64, Uuid, field, message, struct


@struct
class InSyncBroker:
    """A replica, and the registration that the leader knows of it; -1 if it knows none."""

    broker_id: Int32 = field(versions="3+", default=0)
    broker_epoch: Int64 = field(versions="3+", default=-1)


@struct
class AlterPartitionData:
    """The in-sync replicas that a leader proposes, on what it knows of the partition."""

    partition_index: Int32
    leader_epoch: Int32
    new_isr: tuple[Int32, ...] = field(versions="0-2", default=())
    new_isr_with_epochs: tuple[InSyncBroker, ...] = field(versions="3+", default=())
    leader_recovery_state: Int8 = field(versions="1+", default=0)
    """1 while the leader recovers from an unclean election (KIP-704)."""
    partition_epoch: Int32
    leaving: Int8 = field(versions="0+", tag=10000, default=0)
    """Ours: the replica that asks leaves, leader or not: 1 since it has lost something, 2 since it cannot store."""


@struct
class AlterPartitionTopic:
    """A topic with its partitions."""

    topic_id: Uuid
    partitions: tuple[AlterPartitionData, ...]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest:
    """A broker's proposal for the in-sync replicas of partitions that it leads."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: tuple[AlterPartitionTopic, ...]
    wants_end_offset: bool = field(versions="0+", tag=10000, default=False)
    """Ours: the answer is to say up to where the metadata log has to be applied to see it."""


@struct
class AlteredPartition:
    """The partition as it is now, or why it stays as it was."""

    partition_index: Int32
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32
    isr: tuple[Int32, ...] = ()
    leader_recovery_state: Int8 = field(versions="1+", default=0)
    partition_epoch: Int32


@struct
class AlteredTopic:
    """A topic with its partitions."""

    topic_id: Uuid
    partitions: tuple[AlteredPartition, ...]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse:
    """Partition by partition, what the controller makes of it."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: tuple[AlteredTopic, ...]
    metadata_end_offset: Int64 = field(versions="0+", tag=10000, default=-1)
    """Ours: everything that the answer is based on lies below. Only if the request asked for it."""
