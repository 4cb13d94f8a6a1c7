"""The state of groups for `tailrace groups describe`: progress, health, and handlers that run for long."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailrace.client.admin.first_records import FirstRecord
from tailrace.client.admin.group_health import PartitionHealth
from tailrace.client.blocking.admin import Admin
from tailrace.client.group.described_groups import DescribedMember, GroupDescription
from tailrace.client.group.range_progress import KeyProgress
from tailrace.client.group.running_notes import RunningNote, note_in
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition

_TIMEOUT_MS = 5_000


@dataclass(slots=True)
class KnownGroup:
    """A group, and what is known of its partitions."""

    group: GroupDescription
    committed: Mapping[TopicPartition, int | None]
    """The committed offset of each partition, None for an assigned partition without an offset."""
    ranged: Mapping[TopicPartition, KeyProgress]
    """The progress by offsets and key hashes in the partitions in which there is some."""
    notes: Mapping[TopicPartition, RunningNote]
    """The notes of the owners of partitions about their handlers."""
    health: dict[TopicPartition, PartitionHealth] = field(default_factory=dict)
    running: dict[TopicPartition, FirstRecord] = field(default_factory=dict)
    """The records that handlers have had for long, as far as they can be read."""

    @property
    def now_ms(self) -> int:
        """The time of the coordinator's clock if known: its commits have this clock's timestamps."""
        return int(time.time() * 1000) if self.group.details is None else self.group.details.now_ms

    @property
    def owners(self) -> dict[TopicPartition, DescribedMember]:
        """The owner of each assigned partition."""
        return {partition: member for member in self.group.members for partition in member.assignment}


def states_of(
    admin: Admin, described: Iterable[GroupDescription], *, has_progress: bool
) -> tuple[list[KnownGroup], KafkaError | None]:
    """The state of each group. With a fault, some partitions have only the committed offset.

    `has_progress`: with the progress by key hashes, and the handlers that run for long.
    """
    states = [_committed(admin, group, has_progress=has_progress) for group in described]
    counts: Mapping[str, int] = {}
    names = sorted({partition.topic for state in states for partition in state.committed})
    if names:
        counts = {topic.name: len(topic.partitions) for topic in admin.existing_topics(names)}
    fault: KafkaError | None = None
    for state in states:
        known: Mapping[TopicPartition, PartitionHealth] = {}
        alive = {p: offset for p, offset in state.committed.items() if p.partition < counts.get(p.topic, 0)}
        if alive and fault is None:
            try:
                known = admin.partition_health(alive, state.group.details, ranged=state.ranged, timeout_ms=_TIMEOUT_MS)
            except KafkaError as error:
                fault = error
        for partition, offset in state.committed.items():
            state.health[partition] = known.get(partition, PartitionHealth(committed=offset))
        state.running = _running(admin, state)
    return states, fault


def _committed(admin: Admin, group: GroupDescription, *, has_progress: bool) -> KnownGroup:
    found = admin.group_offsets(group.group)
    owners = {partition: member for member in group.members for partition in member.assignment}
    offsets: dict[TopicPartition, int | None] = {partition: at.offset for partition, at in found.items()}
    for partition in owners:
        offsets.setdefault(partition, None)
    ranged: dict[TopicPartition, KeyProgress] = {}
    notes: dict[TopicPartition, RunningNote] = {}
    if has_progress:
        if group.details is not None and group.details.max_ranges:
            progress = admin.group_progress(group.group)
            ranged = {partition: known for partition, known in progress.items() if known.ranges}
        for partition, owner in owners.items():
            note = note_in(found[partition].metadata) if partition in found else None
            if note is not None and note.member_id == owner.member_id:  # else a former owner has left the note
                notes[partition] = note
    return KnownGroup(group, offsets, ranged, notes)


def _running(admin: Admin, state: KnownGroup) -> dict[TopicPartition, FirstRecord]:
    """The records of the notes. A note is a client's text, so only a record that exists and is not done counts."""
    found: dict[TopicPartition, FirstRecord] = {}
    wanted: dict[TopicPartition, int] = {}
    for partition, note in state.notes.items():
        health = state.health[partition]
        if health.committed is None or health.end_offset is None:
            continue
        if health.first is not None and health.first.offset == note.offset:
            found[partition] = health.first
        elif health.committed <= note.offset < health.end_offset:
            wanted[partition] = note.offset
    if wanted:
        records = admin.first_records(wanted, state.ranged, timeout_ms=_TIMEOUT_MS)
        found |= {p: record for p, record in records.items() if record.offset == wanted[p]}
    return found
