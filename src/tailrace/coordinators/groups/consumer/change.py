"""A consumer group during a request that changes the group: the records so far, and their result (pure)."""

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from tailrace.coordinators.groups.consumer.group import ConsumerGroup
from tailrace.coordinators.groups.consumer_records import (
    ConsumerGroupMetadataValue,
    ConsumerGroupRecord,
    ConsumerRecordKind,
    ConsumerValue,
    RegularExpressionValue,
)
from tailrace.coordinators.groups.history import GroupEventKind
from tailrace.coordinators.groups.records import GroupLogRecord, GroupRecord

R = TypeVar("R")
Kind = ConsumerRecordKind

_OF_A_MEMBER: Final = (Kind.CURRENT, Kind.TARGET_MEMBER, Kind.MEMBER)


@dataclass(slots=True, kw_only=True)
class ConsumerGroupDecision(Generic[R]):
    """The records and the answer of a decision, with the events for the history."""

    group: ConsumerGroup
    """The group after the records; a group that ends has no members."""
    response: R
    records: tuple[GroupLogRecord, ...]
    events: tuple[tuple[GroupEventKind, str, str], ...]
    """Kind, member id and reason, for the history."""
    is_conversion: bool = False
    """Whether the group changes its kind: then the records are written in one batch."""


@dataclass(slots=True)
class GroupChange:
    """A group that is being changed. The group is copied at the first record, so that most requests copy nothing."""

    group_id: str
    group: ConsumerGroup
    records: list[GroupLogRecord] = field(default_factory=list)
    events: list[tuple[GroupEventKind, str, str]] = field(default_factory=list)
    is_conversion: bool = False

    def emit(self, kind: ConsumerRecordKind, value: ConsumerValue | None, member_id: str = "") -> None:
        self._apply(ConsumerGroupRecord(kind=kind, group_id=self.group_id, member_id=member_id, value=value))

    def resolve(self, expression: str, value: RegularExpressionValue | None) -> None:
        """Record the topics that the expression matches; None: no member subscribes to the expression any more."""
        self._apply(
            ConsumerGroupRecord(
                kind=Kind.EXPRESSION, group_id=self.group_id, regular_expression=expression, value=value
            )
        )

    def _apply(self, record: ConsumerGroupRecord) -> None:
        if not self.records:
            self.group = self.group.copy()
        self.records.append(record)
        self.group.apply(record)

    def forget(self, member_id: str) -> None:
        """Add tombstones for all records of a member."""
        for kind in _OF_A_MEMBER:
            self.emit(kind, None, member_id)

    def forget_expressions(self, subscribed: frozenset[str]) -> None:
        """Add tombstones for every regular expression outside of `subscribed`."""
        for expression in sorted(self.group.expressions.keys() - subscribed):
            self.resolve(expression, None)

    def retire(self) -> None:
        """Add tombstones for all records of the group."""
        for member_id in self.group.member_ids:
            self.forget(member_id)
        self.forget_expressions(frozenset())
        self.emit(Kind.TARGET, None)
        self.emit(Kind.GROUP, None)

    def become(self, classic: GroupRecord) -> None:
        """Make the group a classic group."""
        self.retire()
        self.records.append(classic)
        self.is_conversion = True

    def bump_epoch(self, metadata_hash: int) -> None:
        """Begin the next group epoch."""
        epoch = (self.group.epoch or 0) + 1
        self.emit(Kind.GROUP, ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash))

    def add_event(self, kind: GroupEventKind, reason: str, member_id: str = "") -> None:
        self.events.append((kind, member_id, reason))

    def decided(self, response: R) -> ConsumerGroupDecision[R]:
        return ConsumerGroupDecision(
            group=self.group,
            response=response,
            records=tuple(self.records),
            events=tuple(self.events),
            is_conversion=self.is_conversion,
        )


def retirement(group_id: str, group: ConsumerGroup) -> tuple[GroupLogRecord, ...]:
    """Tombstones for all records of the group."""
    change = GroupChange(group_id, group)
    change.retire()
    return tuple(change.records)
