"""The world of the commits of one partition between two events: the log, what committers know, commits on their way."""

from typing import Final, NamedTuple

NEVER: Final = -1
"""The number of the last reset of a committer that found no progress."""

Pair = tuple[int, int]
"""An offset and a half of the hashes."""
Pairs = frozenset[Pair]


class CommitBudget(NamedTuple):
    """The numbers of events that may still happen."""

    fetches: int = 1
    """The fetches of each committer."""
    commits: int = 1
    """The commits of each committer."""
    duplicates: int = 0
    plain_commits: int = 0
    """Commits of a member that has the whole partition, at any offset."""
    resets: int = 0
    """Plain commits of a tool."""
    cuts: int = 0
    """Cuts by a committer that finds the log truncated."""
    deletions: int = 0
    """Deletions of the offset, by a tool or by retention."""
    failovers: int = 0


class CommitSize(NamedTuple):
    """The size of a scope."""

    offsets: int = 2
    max_rectangles: int = 8
    has_offset: bool = True
    """Whether the group begins with a committed offset: 0."""


class Committer(NamedTuple):
    """A reader of one half of the hashes, since it last fetched the progress."""

    state_epoch: int = -1
    seen_reset: int = NEVER
    """The number of the last reset whose outcome the committer has seen."""
    stable_offset: int = -1
    first: int = 0
    """The frontier of the committer in the progress that it fetched."""
    position: int = 0
    """The records below this position are done."""
    fetches: int = 0
    commits: int = 0


class Flight(NamedTuple):
    """A commit on its way to the coordinator."""

    kind: str
    """The kind of commit: ranges, member, reset, cut or deletion."""
    who: int = 0
    offset: int = -1
    state_epoch: int = -1
    pairs: Pairs = frozenset()
    copies: int = 1


class CommitEntry(NamedTuple):
    """The state behind one record of the log: the record's bytes, and the truth about the record."""

    value: tuple[bytes, bytes | None] | None
    kind: str
    cover: Pairs
    """Every pair that is committed according to the model."""
    promised: Pairs
    """The pairs that are acknowledged once this record is replicated, without pairs that were reset since."""
    stated: int
    """Plain commits say that everything below this offset is done."""
    resets: int
    """The number of records so far that could lower a frontier."""
    since: tuple[tuple[int, int], ...] = ()
    """For each reset or cut its number, and the offset from which records that were done before are undone again."""
    is_forgiven: bool = False
    """Whether the offset was deleted: the number of resets is forgotten together with the offset."""


class CommitWorld(NamedTuple):
    """Everything between two events."""

    budget: CommitBudget
    committed: CommitEntry
    staged: tuple[CommitEntry, ...]
    committers: tuple[Committer, ...]
    flights: tuple[Flight, ...]
    done: frozenset[tuple[int, int, int]]
    """Offset, half, and the last reset that the committer had seen when it did the record."""
