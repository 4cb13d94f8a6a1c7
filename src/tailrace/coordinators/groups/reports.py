"""Reports on the groups of one partition of `__consumer_offsets`: lists, descriptions, committed offsets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.coordinators.groups.consumer.coordinator import ConsumerGroups
from tailrace.coordinators.groups.consumer.group import ConsumerGroup
from tailrace.coordinators.groups.group import GroupState, Member
from tailrace.coordinators.groups.history import GroupEvent, GroupHistory, OffsetProgress, ProgressBook
from tailrace.coordinators.groups.membership import GroupMembership
from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.coordinators.groups.removals import no_such_group
from tailrace.coordinators.groups.store import GroupStore
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.groups import DescribedGroup, DescribedGroupMember, ListedGroup, MemberDetails

CLASSIC: Final = "classic"
_CONSUMER: Final = "consumer"
_NOTHING: Final[Mapping[TopicPartition, OffsetCommitValue]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInsight:
    """Details of a group at one moment that Kafka's answers do not have.

    `now_ms` is the moment on the host's monotonic clock, like the times of events; `wall_ms` is the same moment on the
    clock of commits.
    """

    now_ms: int
    wall_ms: int
    events: tuple[GroupEvent, ...]
    liveness: tuple[MemberDetails, ...]
    progress: Mapping[TopicPartition, OffsetProgress]


class GroupReports:
    """Reads the parts of a `GroupCoordinator`, and changes nothing."""

    def __init__(
        self,
        committed: GroupStore,
        memberships: Mapping[str, GroupMembership],
        consumers: ConsumerGroups,
        histories: Mapping[str, GroupHistory],
        progress: ProgressBook,
    ) -> None:
        self._committed = committed
        self._memberships = memberships
        self._consumers = consumers
        self._histories = histories
        self._progress = progress

    def offsets(self, group_id: str) -> Mapping[TopicPartition, OffsetCommitValue]:
        """The group's committed offsets, perhaps none."""
        stored = self._committed.groups.get(group_id)
        return _NOTHING if stored is None else stored.offsets

    def unstable_partitions(self, group_id: str) -> frozenset[TopicPartition]:
        """Partitions for which an open transaction has set the group's offset (KIP-447)."""
        stored = self._committed.groups.get(group_id)
        return frozenset() if stored is None else stored.pending.partitions

    def check_reader(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Raises KafkaError UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH if the reader is not a present member of the group.

        A request without a member may read the offsets of any group.
        """
        consumer = self._consumer(group_id)
        if consumer is None or (member_id is None and epoch < 0):
            return
        fault = consumer.fault_of_commit(member_id or "", epoch, knows_epochs=True)
        if fault:
            raise KafkaError(fault, f"group {group_id!r} does not show its offsets to this member now")

    def _consumer(self, group_id: str) -> ConsumerGroup | None:
        stored = self._committed.groups.get(group_id)
        return None if stored is None else stored.consumer

    def overview(self) -> list[ListedGroup]:
        """The groups, for a list."""
        return [self._overview(group_id) for group_id in {*self._memberships, *self._committed.groups}]

    def _overview(self, group_id: str) -> ListedGroup:
        membership, consumer = self._memberships.get(group_id), self._consumer(group_id)
        if consumer is not None:
            protocol_type, state = _CONSUMER, str(consumer.state)
        elif membership is not None:
            protocol_type, state = membership.group.protocol_type or "", str(membership.group.state)
        else:
            protocol_type, state = "", str(GroupState.EMPTY)  # of consumers that assign themselves
        return ListedGroup(
            group_id=group_id,
            protocol_type=protocol_type,
            group_state=state,
            group_type=CLASSIC if consumer is None else _CONSUMER,
        )

    def describe(self, group_id: str) -> DescribedGroup:
        """The whole group. Only a stable group has a protocol, and members with metadata.

        Raises KafkaError GROUP_ID_NOT_FOUND (69).
        """
        self._check_exists(group_id)
        overview = self._overview(group_id)
        if overview.group_type != CLASSIC:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} is not a classic group")
        membership = self._memberships.get(group_id)
        is_stable = overview.group_state == GroupState.STABLE
        protocol_name = None if membership is None or not is_stable else membership.group.protocol_name
        return DescribedGroup(
            group_id=group_id,
            group_state=overview.group_state,
            protocol_type=overview.protocol_type,
            protocol_data=protocol_name or "",
            members=tuple(
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata_for(protocol_name) if is_stable else b"",
                    member_assignment=member.assignment,
                )
                for member in self._members(group_id)
            ),
        )

    def _members(self, group_id: str) -> tuple[Member, ...]:
        """The members of a classic group."""
        membership = self._memberships.get(group_id)
        return () if membership is None else tuple(membership.group.members.values())

    def _check_exists(self, group_id: str) -> None:
        if group_id not in self._memberships and group_id not in self._committed.groups:
            raise no_such_group(group_id)

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """The consumer group, to be read. Raises KafkaError GROUP_ID_NOT_FOUND (69), also for a classic group."""
        group = self._consumer(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {group_id!r}")
        return group

    def insight(self, group_id: str, *, now_ms: int, wall_ms: int) -> GroupInsight:
        """Details beyond `describe`, at the present times. Raises KafkaError GROUP_ID_NOT_FOUND (69)."""
        self._check_exists(group_id)
        history = self._histories.get(group_id)
        classic = (
            MemberDetails(
                member_id=member.member_id,
                silent_ms=member.silent_ms(now_ms),
                session_timeout_ms=member.session_timeout_ms,
            )
            for member in self._members(group_id)
        )
        return GroupInsight(
            now_ms=now_ms,
            wall_ms=wall_ms,
            events=() if history is None else tuple(history.events),
            liveness=(*self._consumer_liveness(group_id, now_ms), *classic),
            progress=self._progress.of(group_id),
        )

    def _consumer_liveness(self, group_id: str, now_ms: int) -> Iterator[MemberDetails]:
        group = self._consumer(group_id)
        if group is None:
            return
        for member_id in group.members:
            yield MemberDetails(
                member_id=member_id,
                silent_ms=self._consumers.silent_ms(group_id, member_id, now_ms),
                session_timeout_ms=self._consumers.session_timeout_ms(group_id, group, member_id),
            )
