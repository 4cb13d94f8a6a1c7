"""The latest moves of a group's committed offsets: the basis of a verdict on its members (a function of the log).

Times are those of the commits, in ms since 1970. After compaction and a restart only the last commit of each offset is
known, and counts as the last move.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tailrace.coordinators.groups.records import OffsetRecord
from tailrace.model.partitions import TopicPartition

WINDOW_MS = 30_000
"""The pace is measured over at least this long, once there are commits for so long, and mostly less than twice that."""


class OffsetProgress:
    """The moves of one committed offset."""

    __slots__ = ("_next_at_ms", "_next_offset", "earlier_at_ms", "earlier_offset", "moved_at_ms", "offset")

    def __init__(self, offset: int, at_ms: int) -> None:
        self._start(offset, at_ms)

    def _start(self, offset: int, at_ms: int) -> None:
        self.offset = offset
        self.moved_at_ms = at_ms
        """When the offset last went forward, or was first committed."""
        self.earlier_offset = self._next_offset = offset
        """A commit of before, for the pace; the same as the last one if there is none."""
        self.earlier_at_ms = self._next_at_ms = at_ms

    def commit(self, offset: int, at_ms: int) -> None:
        """It was committed again."""
        if offset < self.offset:
            # The offset was set back on purpose: earlier moves say nothing about the pace from here.
            self._start(offset, at_ms)
        elif offset > self.offset:
            self.offset, self.moved_at_ms = offset, at_ms
            if at_ms - self._next_at_ms >= WINDOW_MS:
                self.earlier_offset, self.earlier_at_ms = self._next_offset, self._next_at_ms
                self._next_offset, self._next_at_ms = offset, at_ms


_NONE: Mapping[TopicPartition, OffsetProgress] = MappingProxyType({})


class ProgressBook:
    """The progress of all groups of a coordinator."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, OffsetProgress]] = {}

    def apply(self, record: OffsetRecord) -> None:
        """Take one committed offset."""
        partition = TopicPartition(record.topic, record.partition)
        if record.value is None:
            self._forget(record.group_id, partition)
            return
        offsets = self._groups.setdefault(record.group_id, {})
        progress = offsets.get(partition)
        if progress is None:
            offsets[partition] = OffsetProgress(record.value.offset, record.value.commit_timestamp)
        else:
            progress.commit(record.value.offset, record.value.commit_timestamp)

    def _forget(self, group_id: str, partition: TopicPartition) -> None:
        offsets = self._groups.get(group_id)
        if offsets is not None:
            offsets.pop(partition, None)
            if not offsets:
                del self._groups[group_id]

    def of(self, group_id: str) -> Mapping[TopicPartition, OffsetProgress]:
        """The group's progress by partition."""
        return self._groups.get(group_id, _NONE)
