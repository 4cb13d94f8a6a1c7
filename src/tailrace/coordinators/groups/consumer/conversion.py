"""The conversion of a group with members from a classic to a consumer group, and back (KIP-848).

Members with the classic protocol stay in a group of either kind, with their ids and partitions. The records of a member
name every partition that the member may be reading, so that no other member gets such a partition too early.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.consumer.assignment import NOTHING, Assignment
from tailrace.coordinators.groups.consumer.group import (
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Topics,
)
from tailrace.coordinators.groups.consumer_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRecord,
    ConsumerRecordKind,
    ConsumerValue,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataValue,
)
from tailrace.coordinators.groups.group import ClassicGroup, Member
from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    encode_record,
)
from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.protocol.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_prefixed,
    version_of,
)
from tailrace.protocol.schema import encode_prefixed

MOST_BYTES: Final = 900_000
"""The most bytes of the records of a conversion and of its request: one batch, which has at most 1 MiB."""
_RECORD_OVERHEAD: Final = 32
Kind = ConsumerRecordKind


def fits(records: Iterable[GroupLogRecord]) -> bool:
    """Whether the records take at most about `MOST_BYTES`."""
    sizes = (len(key) + len(value or b"") + _RECORD_OVERHEAD for key, value in map(encode_record, records))
    return sum(sizes) <= MOST_BYTES


def check_upgrade_fits(group_id: str, records: Iterable[GroupLogRecord]) -> None:
    """Raises KafkaError GROUP_MAX_SIZE_REACHED (81) if the records of a conversion are too large for a batch."""
    if not fits(records):
        detail = f"{_cannot(group_id)} because its members need more than one batch of records"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)


def subscription_of(metadata: bytes) -> ConsumerProtocolSubscription:
    """The subscription in a classic member's metadata. Raises KafkaError INCONSISTENT_GROUP_PROTOCOL (23)."""
    try:
        return decode_prefixed(ConsumerProtocolSubscription, metadata)
    except MalformedMessage as fault:
        detail = f"the member's metadata is not the consumer protocol's: {fault.detail}"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, detail) from None


def by_id(partitions: tuple[ConsumerTopicPartitions, ...], topics: Topics) -> Assignment:
    """The partitions by topic id, without the partitions that do not exist."""
    found: dict[bytes, set[int]] = {}
    for named in partitions:
        topic = topics.find(named.topic)
        if topic is not None:
            numbers = (number for number in named.partitions if 0 <= number < topic.partition_count)
            found.setdefault(topic.topic_id, set()).update(numbers)
    return Assignment.of(found)


def assignment_bytes(held: Assignment, topics: Topics, metadata: bytes) -> bytes:
    """An assignment for a classic client, in the version of the client's metadata."""
    partitions = tuple(
        ConsumerTopicPartitions(topic=name, partitions=numbers)
        for topic_id, numbers in held
        if (name := topics.name_of(topic_id)) is not None
    )
    value = ConsumerProtocolAssignment(assigned_partitions=tuple(sorted(partitions, key=lambda each: each.topic)))
    return encode_prefixed(value, version_of(ConsumerProtocolAssignment, metadata))


def as_consumer_group(
    classic: ClassicGroup, topics: Topics, config: GroupConfig
) -> tuple[ConsumerGroup, tuple[GroupLogRecord, ...]]:
    """The group as a consumer group, with the records of the conversion.

    A member that waits in its first JoinGroup is left out: such a member has no partitions, and joins again. Raises
    KafkaError with Kafka's code: GROUP_ID_NOT_FOUND (69), GROUP_MAX_SIZE_REACHED (81), UNSUPPORTED_VERSION (35).
    """
    _check_upgrade(classic, config)
    group = ConsumerGroup()
    made: list[GroupLogRecord] = [GroupRecord(group_id=classic.group_id, value=None)]

    def emit(kind: ConsumerRecordKind, value: ConsumerValue, member_id: str = "") -> None:
        record = ConsumerGroupRecord(kind=kind, group_id=classic.group_id, member_id=member_id, value=value)
        group.apply(record)
        made.append(record)

    generation = max(classic.generation_id, 0)
    taken = NOTHING
    for member in classic.members.values():
        if member.is_new:
            continue
        # An assignor may have given a partition to two members: the earlier member keeps the partition.
        held = _assigned(member, topics) - taken
        taken |= held
        emit(Kind.MEMBER, _subscription(member), member.member_id)
        emit(Kind.TARGET_MEMBER, TargetAssignmentMemberValue(topic_partitions=held.stored()), member.member_id)
        place = ConsumerMember(
            member_id=member.member_id,
            subscription=group.members[member.member_id].subscription,
            epoch=generation,
            previous_epoch=generation,
            state=MemberState.STABLE,
            assigned=held,
        )
        emit(Kind.CURRENT, place.current(), member.member_id)
    emit(Kind.GROUP, ConsumerGroupMetadataValue(epoch=generation))
    emit(Kind.TARGET, TargetAssignmentMetadataValue(assignment_epoch=generation))
    check_upgrade_fits(classic.group_id, made)
    return group, tuple(made)


def _cannot(group_id: str) -> str:
    return f"classic group {group_id!r} cannot become a consumer group"


def _check_upgrade(classic: ClassicGroup, config: GroupConfig) -> None:
    cannot = _cannot(classic.group_id)
    policy = config.group_consumer_migration_policy
    if not config.upgrades:
        detail = f"{cannot} while it has members, since group.consumer.migration.policy={policy}"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)
    if classic.protocol_type != PROTOCOL_TYPE:
        detail = f"{cannot}: its members are no consumers, their protocol type is {classic.protocol_type!r}"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)
    if len(classic.members) > config.group_consumer_max_size:
        detail = f"{cannot}: it has {len(classic.members)} members, more than group.consumer.max.size allows"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)
    for member in classic.members.values():
        try:
            for protocol in member.protocols:
                subscription_of(protocol.metadata)
            assignment = decode_prefixed(ConsumerProtocolAssignment, member.assignment) if member.assignment else None
        except (KafkaError, MalformedMessage) as fault:
            detail = f"{cannot}: member {member.member_id}: {fault.detail}"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail) from None
        if assignment is not None and assignment.user_data:
            detail = f"{cannot}: the user data in the assignment of member {member.member_id} would be lost"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)


def _assigned(member: Member, topics: Topics) -> Assignment:
    """The member's last assignment."""
    if not member.assignment:
        return NOTHING
    return by_id(decode_prefixed(ConsumerProtocolAssignment, member.assignment).assigned_partitions, topics)


def _subscription(member: Member) -> ConsumerGroupMemberMetadataValue:
    protocols = {protocol.name: protocol.metadata for protocol in member.protocols}
    return classic_subscription(
        protocols,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
    )


def classic_subscription(
    protocols: Mapping[str, bytes],
    *,
    instance_id: str | None,
    client_id: str,
    client_host: str,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
) -> ConsumerGroupMemberMetadataValue:
    """The subscription record of a member with the classic protocol; `protocols` in order of preference."""
    wanted = subscription_of(next(iter(protocols.values())))
    return ConsumerGroupMemberMetadataValue(
        instance_id=instance_id,
        rack_id=wanted.rack_id,
        client_id=client_id,
        client_host=client_host,
        subscribed_topic_names=tuple(sorted(set(wanted.topics))),
        rebalance_timeout_ms=rebalance_timeout_ms,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=session_timeout_ms,
            supported_protocols=tuple(
                ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols.items()
            ),
        ),
    )


def as_classic(group_id: str, group: ConsumerGroup, topics: Topics, config: GroupConfig) -> GroupRecord | None:
    """The record of the classic group that this group may become, or None. The size is not checked.

    The record has no leader: every member has to join again, also if another coordinator loads the record.
    """
    members = group.classic_members
    if not config.downgrades or not members or len(members) != len(group.members):
        return None
    protocol = _common_protocol(members)
    if protocol is None or len(members) > config.group_max_size:
        return None
    value = GroupMetadataValue(
        protocol_type=PROTOCOL_TYPE,
        generation=group.epoch or 0,
        protocol=protocol,
        leader=None,
        members=tuple(_classic_member(member, protocol, topics) for member in members),
    )
    return GroupRecord(group_id=group_id, value=value)


def _classic_member(member: ConsumerMember, protocol: str, topics: Topics) -> MemberMetadata:
    wants = member.subscription
    assert wants.classic_member_metadata is not None
    metadata = protocols_of(member)[protocol]
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=wants.instance_id,
        client_id=wants.client_id,
        client_host=wants.client_host,
        rebalance_timeout=wants.rebalance_timeout_ms,
        session_timeout=wants.classic_member_metadata.session_timeout_ms,
        subscription=metadata,
        assignment=assignment_bytes(member.held, topics, metadata),
    )


def protocols_of(member: ConsumerMember) -> dict[str, bytes]:
    """The assignors of a member with the classic protocol, by preference, with the member's metadata per assignor."""
    classic = member.subscription.classic_member_metadata
    return {} if classic is None else {each.name: each.metadata for each in classic.supported_protocols}


def _common_protocol(members: list[ConsumerMember]) -> str | None:
    """The assignor with the most votes that every member supports; of equals, the first with a vote."""
    supported = [protocols_of(member) for member in members]
    common = set(supported[0]).intersection(*supported)
    votes = Counter(next(name for name in protocols if name in common) for protocols in supported if common)
    return max(votes, key=votes.__getitem__) if votes else None
