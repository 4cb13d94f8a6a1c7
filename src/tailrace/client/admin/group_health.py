"""The health of a group: lag in records and in time, lost records, and a verdict on each member.

Every coordinator has the committed offsets. The progress of a member's commits and its last heartbeat come only from a
Tailrace coordinator (`protocol.messages.groups`); without them there is no verdict.

| Verdict | The member |
|---|---|
| gone | no heartbeat for more than half its session timeout |
| stuck | in some partition, has unread records for 60 s and no progress of its commits for 60 s |
| slow | in some partition, its commits advance, but by fewer records than arrived in the last 30 s or more |
| working | has unread records, and none of the above |
| idle | has read all records, or has no partitions |

The first verdict that applies counts. Partitions without a committed offset do not count; a member with no other
partitions has no verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace.client.admin.first_records import NO_PROGRESS, FirstRecord, first_records
from tailrace.client.group.range_progress import KeyProgress
from tailrace.client.offsets import EARLIEST, LATEST, OffsetAt, RecordCount, list_offsets
from tailrace.client.router import Router
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import parse_view
from tailrace.protocol.messages.groups import GroupDetails, MemberDetails, PartitionProgress

STUCK_AFTER_MS = 60_000
SLOW_BELOW = 0.95
"""A member is slow if it commits less than this share of the records that arrived; commits are a little uneven."""


_MOST_COUNTS = 20
"""The most questions for a count that becomes better with each; the last answer may be an estimate."""


class MemberHealth(StrEnum):
    """The verdict on a member."""

    GONE = "gone"
    STUCK = "stuck"
    SLOW = "slow"
    WORKING = "working"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHealth:
    """The progress of a group in one partition. None stands for unknown."""

    committed: int | None
    log_start_offset: int | None = None
    end_offset: int | None = None
    unread_since_ms: int | None = None
    """The timestamp of the first unread record, ms since 1970."""
    progress: PartitionProgress | None = None
    arrived: int | None = None
    """Records that were appended while the commits advanced from `progress.earlier_offset` to `progress.offset`."""
    count: RecordCount | None = None
    """The unread records of a view partition, whose offsets are those of a whole partition."""
    first: FirstRecord | None = None
    """The first record that is not done."""

    @property
    def lag(self) -> int | None:
        """The number of records from the committed offset, or the log start if that is higher, to the end.

        Of a view partition from a server that does not count its records: the number of offsets.
        """
        if self.committed is None or self.end_offset is None:
            return None
        if self.count is not None:
            return self.count.records
        return max(self.end_offset - max(self.committed, self.log_start_offset or 0), 0)

    @property
    def lost(self) -> int | None:
        """The number of records that were deleted unread by the group."""
        if self.committed is None or self.log_start_offset is None:
            return None
        return max(self.log_start_offset - self.committed, 0)

    def lag_ms(self, now_ms: int) -> int | None:
        """The age of the first unread record in ms; 0 if all records are read."""
        if self.lag == 0:
            return 0
        return None if self.unread_since_ms is None else max(now_ms - self.unread_since_ms, 0)


def verdict(member: MemberDetails | None, partitions: Sequence[PartitionHealth], now_ms: int) -> MemberHealth | None:
    """The verdict on a member with these partitions; None if too little is known."""
    if member is None:
        return None
    if member.silent_ms * 2 > member.session_timeout_ms:
        return MemberHealth.GONE
    measured = [partition for partition in partitions if partition.lag is not None]
    behind = [partition for partition in measured if partition.lag]
    if any(_is_stuck(partition, now_ms) for partition in behind):
        return MemberHealth.STUCK
    if any(_is_slow(partition) for partition in behind):
        return MemberHealth.SLOW
    if behind:
        return MemberHealth.WORKING
    return MemberHealth.IDLE if measured or not partitions else None


def _is_stuck(partition: PartitionHealth, now_ms: int) -> bool:
    waiting_ms, progress = partition.lag_ms(now_ms), partition.progress
    if waiting_ms is None or progress is None:
        return False
    return min(waiting_ms, now_ms - progress.moved_at_ms) >= STUCK_AFTER_MS


def _is_slow(partition: PartitionHealth) -> bool:
    progress, arrived = partition.progress, partition.arrived
    if progress is None or arrived is None or arrived <= 0:
        return False
    return progress.offset - progress.earlier_offset < arrived * SLOW_BELOW


def progress_of(details: GroupDetails | None) -> dict[TopicPartition, PartitionProgress]:
    """The progress of the group's commits, by partition."""
    return {
        TopicPartition(topic.name, partition.partition_index): partition
        for topic in (details.topics if details is not None else ())
        for partition in topic.partitions
    }


async def partition_health(
    router: Router,
    committed: Mapping[TopicPartition, int | None],
    details: GroupDetails | None,
    *,
    ranged: Mapping[TopicPartition, KeyProgress] = NO_PROGRESS,
    timeout_ms: int,
) -> dict[TopicPartition, PartitionHealth]:
    """The health of a group with these committed offsets in these partitions, which must exist.

    `ranged` is the progress beyond the offsets, of partitions in which there is some. Raises KafkaError if a leader
    does not answer in time.
    """
    starts = await list_offsets(router, dict.fromkeys(committed, EARLIEST), timeout_ms=timeout_ms)
    ends = await _ends(router, committed, timeout_ms)
    progress = progress_of(details)
    arrived = await _arrived(router, {p: found for p, found in progress.items() if p in committed}, timeout_ms)
    positions = {p: max(offset, starts[p].offset) for p, offset in committed.items() if offset is not None}
    behind = {p: position for p, position in positions.items() if position < ends[p].offset}
    firsts = await first_records(router, behind, ranged, timeout_ms=timeout_ms)
    health: dict[TopicPartition, PartitionHealth] = {}
    for partition, offset in committed.items():
        first = firsts.get(partition)
        health[partition] = PartitionHealth(
            committed=offset,
            log_start_offset=starts[partition].offset,
            end_offset=ends[partition].offset,
            unread_since_ms=None if first is None else first.timestamp,
            progress=progress.get(partition),
            arrived=arrived.get(partition),
            count=ends[partition].record_count,
            first=first,
        )
    return health


async def _ends(
    router: Router, committed: Mapping[TopicPartition, int | None], timeout_ms: int
) -> dict[TopicPartition, OffsetAt]:
    """The end of each partition, and the number of unread records of each view partition with an offset."""
    wanted = {
        partition: offset
        for partition, offset in committed.items()
        if offset is not None and parse_view(partition.topic) is not None
    }
    ends = await list_offsets(router, dict.fromkeys(committed, LATEST), timeout_ms=timeout_ms, count_from=wanted)
    for _ in range(_MOST_COUNTS):
        counts = {partition: end.record_count for partition, end in ends.items()}
        again = [partition for partition, found in counts.items() if found is not None and found.has_more_steps]
        if not again:
            break
        ends |= await list_offsets(router, dict.fromkeys(again, LATEST), timeout_ms=timeout_ms, count_from=wanted)
    return ends


async def _arrived(
    router: Router, progress: Mapping[TopicPartition, PartitionProgress], timeout_ms: int
) -> dict[TopicPartition, int]:
    paced = {p: found for p, found in progress.items() if found.moved_at_ms > found.earlier_at_ms}
    if not paced:
        return {}
    before = await list_offsets(router, {p: found.earlier_at_ms for p, found in paced.items()}, timeout_ms=timeout_ms)
    after = await list_offsets(router, {p: found.moved_at_ms for p, found in paced.items()}, timeout_ms=timeout_ms)
    ends = await list_offsets(router, dict.fromkeys(paced, LATEST), timeout_ms=timeout_ms)

    def offset_at(found: int, end: int) -> int:
        return end if found < 0 else found

    return {p: offset_at(after[p].offset, ends[p].offset) - offset_at(before[p].offset, ends[p].offset) for p in paced}
