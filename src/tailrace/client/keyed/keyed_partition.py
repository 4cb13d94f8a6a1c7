"""A partition of a keyed consumer: the records read and done, and the room for its progress. Pure."""

from collections.abc import Sequence
from typing import Final

from tailrace.client.group.range_progress import RangeBudget
from tailrace.client.keyed.done_offsets import DoneOffsets, ProgressCommit
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.model.committed_progress import CommittedProgress
from tailrace.model.partitions import TopicPartition

MOST_LAST_HOLES: Final = 2_000
"""The holes of the last commit: a hole makes two rectangles, and a server keeps 4,096 of a group in a partition unless
its offsets.max.ranges.per.partition says otherwise."""


class KeyedPartition:
    """The state of one partition from its assignment on. Until the group's progress is known, records wait."""

    def __init__(self, name: TopicPartition, start: int, most_holes: int, *, is_displaced: bool = False) -> None:
        """`is_displaced`: the log did not have the committed offset; a reset or a truncation has led to this offset."""
        self.name: Final = name
        self.start: Final = start
        self.is_displaced: Final = is_displaced
        self.read_to = start
        self.done: DoneOffsets | None = None
        """None until the group's progress is known."""
        self.has_progress = False
        """Whether the group had committed something here when its progress became known."""
        self.is_leaving = False
        """Whether the group takes the partition away: the handler gets no more records of it."""
        self.is_cut = False
        """Whether the log was cut. Reading starts over as soon as the group's progress is cut at the same offset."""
        self.note = ""
        """The text of the next commit: a handler that runs for long."""
        self.use: RangeBudget | None = None
        self.is_refused = False
        """Whether the server had no room for the latest commit."""
        self._early: list[KeyedRecord] = []
        self._most_holes: Final = most_holes
        self._holes = most_holes
        self._last_holes = max(most_holes, MOST_LAST_HOLES)

    def read(self, records: Sequence[KeyedRecord], read_to: int) -> list[KeyedRecord]:
        """Take the next records; every record below `read_to` was read. Returns the records that are in hand now."""
        self.read_to = read_to
        if self.done is None:
            self._early.extend(records)
            return []
        new = list(records)
        if records and records[0].offset < self.done.known_end:
            new = [record for record in records if not self.done.is_committed(record.offset, record.key)]
        add = self.done.add
        for record in new:
            add(record.offset, record.key)
        self.done.advance(read_to)
        return new

    def open(self, committed: CommittedProgress | None) -> list[KeyedRecord]:
        """Take over the group's progress, which is known now. Returns the records that are in hand now."""
        assert self.done is None, f"{self.name} is open already"
        self.has_progress = committed is not None
        self.done = DoneOffsets(self.start, committed=committed)
        early, self._early = self._early, []
        return self.read(early, self.read_to)

    @property
    def waits(self) -> bool:
        """Whether no more records are to be read now: records wait for the group's progress, or reading starts over."""
        return self.is_cut or bool(self._early)

    @property
    def not_done(self) -> int:
        """The lowest offset that is not done."""
        return self.start if self.done is None else self.done.stable_offset

    # faults of the log and of the progress

    def cut_in(self, records: Sequence[KeyedRecord], position: int) -> int | None:
        """The offset at which the log was cut, as the next records and the position behind them show; None: no cut.

        The log has lost some or all records that were read: records of the old log may be at hand still.
        """
        cuts = [position] if position < self.read_to or (records and position <= records[-1].offset) else []
        if records and records[0].offset < self.read_to:
            cuts.append(records[0].offset)  # the log has grown again since
        return min(cuts, default=None)

    def is_rewound(self, committed: CommittedProgress | None) -> bool:
        """Whether the group's offset was set back after reading had started at that offset."""
        return committed is not None and committed.stable_offset < self.start and not self.is_displaced

    # commits

    def commit(self) -> ProgressCommit | None:
        """The commit of this moment; None while the group's progress is unknown, or has yet to be cut as the log was.

        None too for a partition that leaves, which has a last commit: a commit behind that may come when the partition
        has its next owner, and would move the owner's offset back.
        """
        if self.done is None or self.is_cut or self.is_leaving:
            return None
        commit = self.done.commit(self._holes)
        return commit._replace(note=self.note) if self.note else commit

    def last_commit(self) -> ProgressCommit | None:
        """The last commit of a partition that leaves: covers exactly the done records, if the server keeps that many
        rectangles."""
        if self.done is None or self.is_cut:
            return None
        return self.done.commit(self._last_holes, is_last=True)

    def committed(self, commit: ProgressCommit, use: RangeBudget | None) -> None:
        """Note that the server has this commit. `use` is None if the server knows no rectangles."""
        assert self.done is not None, "its commit was made of this"
        self.done.committed(commit)
        self.use = use
        self.is_refused = False
        if use is not None and not use.is_high:
            self._holes = self._most_holes

    def refused(self) -> None:
        """The server keeps no more rectangles: the next commit has fewer, and nothing new is read until there is
        room."""
        self.is_refused = True
        self._holes //= 2
        self._last_holes //= 2
        limit = 1 if self.use is None else self.use.limit
        self.use = RangeBudget(limit, limit)

    @property
    def has_room(self) -> bool:
        """Whether the next records may be read: there is room for the group's progress, or the records are not new to
        the group."""
        if self.use is None or not self.use.is_high or self.done is None:
            return True
        return self.read_to < self.done.known_end

    @property
    def is_commit_due(self) -> bool:
        """Whether a commit is due before its time."""
        return self.done is not None and self.done.is_commit_due
