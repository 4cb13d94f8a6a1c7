"""A group's progress, carried from a topic to a view of the topic, and back (KIP-X): no record is done again, and none
is left out.

1. The progress in a partition is an offset, and ranges of done records beyond the offset. A slot of a view gets the
   part of the progress that has the slot's hashes: the offset of the slot is the lowest undone offset of its hashes.
2. On the way back, the offset of a partition is the lowest offset of its slots. Records beyond that offset that other
   slots have done become ranges.
3. A slot whose offset is its end has done everything up to the end of the partition: between both ends are records of
   other slots alone. A slot without an offset has done nothing.
4. A coordinator refuses the new offsets if the group has a member by then. The offsets in the source are deleted last,
   so that a move that fails half way can be repeated.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.client.admin.groups import commit_offsets, delete_offsets
from tailrace.client.admin.present_members import refuse_members
from tailrace.client.admin.topics import existing_topics
from tailrace.client.group.committed_offsets import OUTSIDE
from tailrace.client.group.described_groups import describe_groups
from tailrace.client.group.range_progress import KeyProgress, RangeProgress, fetch_progress
from tailrace.client.offsets import EARLIEST, LATEST, list_offsets
from tailrace.client.router import Router
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import WHOLE, KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import folded_id, key_range_of, parse_view
from tailrace.protocol.messages.offsets import OffsetFetchRequestTopics

_DEAD: Final = "Dead"


class OffsetMove(NamedTuple):
    """The progress of a group in a partition that it moves to."""

    before: int | None
    """The committed offset before the move; None without an offset."""
    after: int
    ranges: tuple[Rectangle, ...] = ()
    """The records beyond the offset that are done."""


class SlotProgress(NamedTuple):
    """The progress of a group in a partition of a view, and the end of the partition."""

    hashes: KeyRange
    committed: CommittedProgress | None
    """None without a committed offset."""
    end_offset: int


class _Side(NamedTuple):
    """A topic, or a view of a topic."""

    name: str
    topic: str
    fan_out: int
    """The partitions here for each partition of the topic; 1 for the topic itself."""

    def of(self, number: int) -> list[TopicPartition]:
        """The partitions here of this partition of the topic."""
        return [TopicPartition(self.name, self.fan_out * number + place) for place in range(self.fan_out)]

    def hashes(self, partition: TopicPartition) -> KeyRange:
        return WHOLE if self.fan_out == 1 else key_range_of(partition.partition, self.fan_out)


async def move_group(
    router: Router, group: str, source: str, target: str, *, dry_run: bool = False
) -> dict[TopicPartition, OffsetMove]:
    """Carry the group's progress from a topic to a view of the topic, from a view to its topic, or to another view.

    Returns the progress in the partitions of the target. Offsets that the group had there are replaced, and its offsets
    in the source are deleted; partitions without an offset have no part in it. With `dry_run` nothing is changed.

    Raises KafkaError: NON_EMPTY_GROUP for a group with members; GROUP_ID_NOT_FOUND for a group that does not exist, or
    has no offset in the source; INVALID_REQUEST for two names that are not a topic and its views;
    UNKNOWN_TOPIC_OR_PARTITION for a topic or view that does not exist; OFFSET_METADATA_TOO_LARGE for more ranges in a
    partition than the server keeps.
    """
    sides = _sides(source, target)
    partitions = await _check_topics(router, *sides)
    await _check_group(router, group)
    moved: dict[TopicPartition, OffsetMove] = {}
    left: list[TopicPartition] = []
    for number in range(partitions):
        found = await _move_of(router, group, *sides, number)
        if found is not None:
            left += found[0]
            moved.update(found[1])
    if not moved:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group!r} has no committed offset in {source}")
    if not dry_run:
        await _write(router, group, moved)
        await delete_offsets(router, group, left)
    return moved


# The names, and the group


def _sides(source: str, target: str) -> tuple[_Side, _Side]:
    """Both as sides of one topic. Raises KafkaError INVALID_REQUEST."""
    view = parse_view(source)
    for topic in (source, target, *(() if view is None else (view.topic,))):
        sides = _side(source, topic), _side(target, topic)
        if source != target and sides[0] is not None and sides[1] is not None:
            return sides[0], sides[1]
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"{source!r} and {target!r} are not a topic and a view of it: a view of T is T.shared-N, N is 2, 4, ... or 256",
    )


def _side(name: str, topic: str) -> _Side | None:
    """The name as this topic or a view of it; None for any other name."""
    if name == topic:
        return _Side(name, topic, 1)
    view = parse_view(name)
    return _Side(name, topic, view.fan_out) if view is not None and view.topic == topic else None


async def _check_topics(router: Router, source: _Side, target: _Side) -> int:
    """The number of partitions of the topic. Raises KafkaError unless the topic and the views exist."""
    names = dict.fromkeys((source.topic, source.name, target.name))
    found = {topic.name: topic for topic in await existing_topics(router, names)}
    if source.topic not in found:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {source.topic!r} does not exist")
    topic = found[source.topic]
    for side in (source, target):
        if side.fan_out == 1:
            continue
        view = found.get(side.name)
        if view is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{side.topic} has no view {side.name}: the server is not Tailrace, key.ranges.enable or "
                "group.key.ranges.enable is off, or the view would have too many partitions",
            )
        if view.topic_id != folded_id(topic.topic_id, side.fan_out):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{side.name} is a topic of its own, no view of {side.topic}")
    return len(topic.partitions)


async def _check_group(router: Router, group: str) -> None:
    (description,) = await describe_groups(router, [group])
    if description.state == _DEAD:  # the answer of brokers without an error for a missing group
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group!r}")
    refuse_members(description)


# The progress


async def _move_of(
    router: Router, group: str, source: _Side, target: _Side, number: int
) -> tuple[list[TopicPartition], dict[TopicPartition, OffsetMove]] | None:
    """The move of one partition of the topic: the partitions of the source that have an offset, and the progress in
    each partition of the target. None without an offset in the source."""
    known = await _progress(router, group, (*source.of(number), *target.of(number)))
    left = [partition for partition in source.of(number) if partition in known]
    if not left:
        return None
    stored = TopicPartition(source.topic, number)
    # The end of the whole partition is requested before the ends of slots: so every record below this end is also below
    # the end of its slot.
    end = (await list_offsets(router, {stored: LATEST}))[stored].offset
    start = (await list_offsets(router, {stored: EARLIEST}))[stored].offset
    ends = {partition: end for side in (source, target) if side.fan_out == 1 for partition in side.of(number)}
    of_views = [partition for side in (source, target) if side.fan_out > 1 for partition in side.of(number)]
    ends |= {name: at.offset for name, at in (await list_offsets(router, dict.fromkeys(of_views, LATEST))).items()}
    slots = [
        SlotProgress(
            source.hashes(partition), _committed_in(known[partition]) if partition in known else None, ends[partition]
        )
        for partition in source.of(number)
    ]
    whole = slots[0].committed if source.fan_out == 1 else united(slots, start, end)
    assert whole is not None, "a topic's partition without an offset has left above"
    moved: dict[TopicPartition, OffsetMove] = {}
    for partition in target.of(number):
        after = whole if target.fan_out == 1 else of_slot(whole, target.hashes(partition), ends[partition])
        before = known[partition].stable_offset if partition in known else None
        moved[partition] = OffsetMove(before, after.stable_offset, tuple(after.rectangles()))
    return left, moved


async def _progress(
    router: Router, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, KeyProgress]:
    """The group's progress in these partitions; waits while a transaction has set an offset."""
    numbers: dict[str, list[int]] = {}
    for partition in partitions:
        numbers.setdefault(partition.topic, []).append(partition.partition)
    topics = tuple(OffsetFetchRequestTopics(name=name, partition_indexes=tuple(each)) for name, each in numbers.items())
    return await fetch_progress(router, group, topics, require_stable=True)


def _committed_in(progress: KeyProgress) -> CommittedProgress:
    return CommittedProgress(progress.stable_offset).with_committed(progress.ranges)


def united(slots: Sequence[SlotProgress], start_offset: int, end_offset: int) -> CommittedProgress:
    """The progress in a partition whose slots have this progress; `start_offset` and `end_offset` are the partition's.

    The end was asked for before the ends of the slots.
    """
    done: list[Rectangle] = []
    reached: list[tuple[KeyRange, int]] = []
    for hashes, committed, end_of_slot in slots:
        progress = committed or CommittedProgress(start_offset)
        offset = max(progress.stable_offset, start_offset)
        reached.append((hashes, max(offset, end_offset) if offset >= end_of_slot else offset))
        done += progress.rectangles()
    lowest = min(offset for _, offset in reached)
    done += [Rectangle(lowest, offset - 1, *hashes) for hashes, offset in reached if offset > lowest]
    return CommittedProgress(lowest).with_committed(done)


def of_slot(whole: CommittedProgress, hashes: KeyRange, end_offset: int) -> CommittedProgress:
    """The part of a partition's progress that a slot has, which ends there: its progress goes no further."""
    first, last = hashes
    ranges = [
        rectangle._replace(first_hash=max(first, rectangle.first_hash), last_hash=min(last, rectangle.last_hash))
        for rectangle in whole.rectangles()
        if rectangle.first_hash <= last and first <= rectangle.last_hash
    ]
    found = CommittedProgress(whole.stable_offset, hashes=hashes).with_committed(ranges)
    if found.stable_offset >= end_offset:
        return CommittedProgress(end_offset, hashes=hashes)
    return found.cut_at(end_offset)


# The write


async def _write(router: Router, group: str, moved: Mapping[TopicPartition, OffsetMove]) -> None:
    """Replace the offsets of the group in these partitions. Raises KafkaError as soon as the group has a member."""
    progress = RangeProgress(router, group, lambda: OUTSIDE)
    ranges = {partition: move.ranges for partition, move in moved.items() if move.ranges}
    if ranges and not await progress.takes_ranges():
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"the coordinator of group {group!r} takes no commits of ranges"
        )
    # The old offsets are deleted first: then the new offsets have no old ranges beyond them, and the first state epoch.
    await delete_offsets(router, group, [partition for partition, move in moved.items() if move.before is not None])
    await commit_offsets(router, group, {partition: move.after for partition, move in moved.items()})
    for partition, found in ranges.items():
        await progress.commit({partition: found})
