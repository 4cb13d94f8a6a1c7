"""The records of one partition that are done, and the commit that describes these records with few rectangles (KIP-X).
Pure.

1. A commit covers offsets that were read, and no record in hand, which was read and is not done.
2. A record that was in hand at the last commit already gets a hole of its own: its hash is covered up to the record.
   Later records hold back the frontier instead: all other hashes are covered up to the first later record. So a commit
   has few rectangles however many keys are in hand, and a key that is stuck holds back itself alone.
3. The number of holes is limited; the lowest offsets get the holes. The next old record holds back the frontier as
   well, and a commit is due as soon as the old records in hand fit into the holes.
4. The last commit before the partition leaves gives every record in hand a hole: nothing in hand will finish, and what
   the frontier held back would be repeated.
5. A server that does not know rectangles gets the stable offset: the lowest offset in hand.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.key_ranges import WHOLE, KeyRange, contains, hash_of


class ProgressCommit(NamedTuple):
    """The progress of one partition at one moment."""

    stable_offset: int
    """Records below this offset are done: read, committed before, or no more in the log."""
    rectangles: tuple[Rectangle, ...]
    """Records in the rectangles are done. Rectangles cover no less than a stable offset other than 0 does."""
    read_to: int
    holes: int
    left_out: int
    """The number of old records without a hole, since the limit was reached: these records hold back the frontier."""
    note: str = ""
    """The text that is stored with the progress."""


class DoneOffsets:
    """The state of one partition from the offset at which its reader starts."""

    def __init__(
        self,
        start: int,
        *,
        committed: CommittedProgress | None = None,
        key_ranges: Sequence[KeyRange] = (WHOLE,),
    ) -> None:
        """`start`: the first offset that is read. `committed`: the progress of the group; None without a commit.
        Everything below the start counts as done: committed, gone from the log, or not wanted. `key_ranges` are the
        hashes of this reader, in order.
        """
        self._committed = committed
        self._key_ranges: Final = tuple(key_ranges)
        self._committed_to: Final = 0 if committed is None else committed.stable_offset
        self._first: Final = min(start, self._committed_to)
        self.read_to = start
        """The reader has added every record that the log has below this offset."""
        self.known_end: Final = start if committed is None else max(start, committed.end_offset)
        """Records from here on are new to the group: no such record is committed."""
        self._in_hand: dict[int, bytes | None] = {}
        """The key of each record in hand, by offset, in order."""
        self._old_to = start
        """The offset up to which the last commit had read."""
        self._awaited_holes: int | None = None
        """The holes of the last commit, if it left out old records: a commit is due when no more old records than this
        are in hand."""

    def is_committed(self, offset: int, key: bytes | None) -> bool:
        """Whether the group has done this record before: then the handler does not get the record."""
        if self._committed is None or offset >= self.known_end:
            return False
        return self._committed.is_committed(offset, hash_of(key, offset))

    def add(self, offset: int, key: bytes | None) -> None:
        """Take the next record of the partition in hand."""
        assert offset >= self.read_to, f"offset {offset} after all below {self.read_to}"
        self._in_hand[offset] = key
        self.read_to = offset + 1

    def advance(self, read_to: int) -> None:
        """Note that the reader has read up to this offset; every record below it was added."""
        self.read_to = max(self.read_to, read_to)

    def done(self, *offsets: int) -> None:
        """Note that these records are done, and so not in hand any more."""
        in_hand = self._in_hand
        for offset in offsets:
            del in_hand[offset]

    @property
    def stable_offset(self) -> int:
        """The lowest offset in hand; without a record in hand the offset up to which all records were read or committed
        before."""
        return next(iter(self._in_hand), max(self.read_to, self._committed_to))

    def commit(self, most_holes: int, *, is_last: bool = False) -> ProgressCommit:
        """The commit of this moment, with so many holes at most. After the last commit the partition leaves."""
        heads, young, left_out = self._heads(most_holes, old_to=self.read_to if is_last else self._old_to)
        frontier = self.read_to if young is None else young
        lowest = min(heads.values(), default=frontier)
        rectangles = [
            Rectangle(self._first, lowest - 1, first, last) for first, last in self._key_ranges if lowest > self._first
        ]
        for (first, last), end in _strips(self._key_ranges, heads, frontier):
            if end > lowest:
                rectangles.append(Rectangle(lowest, end - 1, first, last))
        return ProgressCommit(self.stable_offset, tuple(rectangles), self.read_to, len(heads), left_out)

    def _heads(self, most: int, *, old_to: int) -> tuple[dict[int, int], int | None, int]:
        """The first offset of each hole by its hash; the first offset in hand without a hole; the number of old records
        without a hole. Records from `old_to` on are later records."""
        heads: dict[int, int] = {}
        frontier: int | None = None
        left_out = 0
        for offset, key in self._in_hand.items():
            if offset >= old_to:
                return heads, offset if frontier is None else frontier, left_out
            key_hash = hash_of(key, offset)
            if key_hash in heads:
                continue
            if len(heads) < most:
                heads[key_hash] = offset
                continue
            left_out += 1
            frontier = offset if frontier is None else frontier
        return heads, frontier, left_out

    def committed(self, commit: ProgressCommit) -> None:
        """Note that the server has this commit."""
        self._old_to = max(self._old_to, commit.read_to)
        self._awaited_holes = commit.holes if commit.left_out else None

    @property
    def is_commit_due(self) -> bool:
        """Whether a commit before its time moves a frontier that the limit of holes has held back."""
        if self._awaited_holes is None:
            return False
        first_beyond = next(islice(self._in_hand, self._awaited_holes, None), self._old_to)
        return first_beyond >= self._old_to


def _strips(key_ranges: Iterable[KeyRange], heads: dict[int, int], frontier: int) -> Iterable[tuple[KeyRange, int]]:
    """The ranges of hashes, cut at the holes, each with the offset below which its records are done."""
    holes = iter(sorted(hole for hole in heads.items() if contains(tuple(key_ranges), hole[0])))
    hole = next(holes, None)
    for first, last in key_ranges:
        begun = first
        while hole is not None and hole[0] <= last:
            if begun < hole[0]:
                yield KeyRange(begun, hole[0] - 1), frontier
            yield KeyRange(hole[0], hole[0]), hole[1]
            begun, hole = hole[0] + 1, next(holes, None)
        if begun <= last:
            yield KeyRange(begun, last), frontier
