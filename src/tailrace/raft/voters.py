"""Voters: replicas by id and directory, sets of voters, and the sets that a log has held (KIP-853).

A voter is an id *and* the directory that holds its log. A node that comes back with an empty directory has its id, but
not the promises of its old directory: the node is an observer until an administrator adds it again.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.model.ids import format_topic_id

NO_DIRECTORY = bytes(16)
"""The directory of a voter whose directory is unknown. The voters of a static quorum (kraft.version 0) are known by id
alone."""


class ReplicaKey(NamedTuple):
    """A replica: its node id, and the id of the directory that its log is in."""

    id: int
    directory_id: bytes = NO_DIRECTORY

    def __str__(self) -> str:
        return f"{self.id} ({format_topic_id(self.directory_id)})" if any(self.directory_id) else str(self.id)


class VoterListener(NamedTuple):
    """An address that a voter listens at."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Voter:
    """A replica that votes, with its listeners and the versions that it supports."""

    key: ReplicaKey
    endpoints: tuple[VoterListener, ...] = ()
    min_kraft_version: int = 0
    max_kraft_version: int = 1


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters of one moment, by ascending id. Successive sets differ by one voter at most."""

    voters: tuple[Voter, ...]
    keys: tuple[ReplicaKey, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(voter.key for voter in self.voters))
        ids = [key.id for key in self.keys]
        assert ids == sorted(set(ids)), f"voters stand in the order of their ids, each once: {ids}"

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> "VoterSet":
        """The set of these voters, in order."""
        return cls(tuple(sorted(voters, key=lambda voter: voter.key.id)))

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def majority(self) -> int:
        """The number of voters that decide."""
        return len(self.voters) // 2 + 1

    @property
    def is_dynamic(self) -> bool:
        """Whether voters are known by id and directory, so that voters may change (kraft.version 1)."""
        return all(voter.key.directory_id != NO_DIRECTORY for voter in self.voters)

    def find(self, node_id: int) -> Voter | None:
        """The voter with this id, whatever its directory."""
        for voter in self.voters:
            if voter.key.id == node_id:
                return voter
        return None

    def has(self, key: ReplicaKey) -> bool:
        """Whether this replica is a voter: the id and the directory must be the same. For a static voter the id is
        enough."""
        voter = self.find(key.id)
        return voter is not None and voter.key.directory_id in (NO_DIRECTORY, key.directory_id)

    def key_of(self, key: ReplicaKey) -> ReplicaKey:
        """The key under which this replica votes; its own key if the replica does not vote."""
        voter = self.find(key.id)
        return voter.key if voter is not None and self.has(key) else key

    def with_voter(self, voter: Voter) -> "VoterSet":
        """This set with `voter` added, or put in place of the voter with its id."""
        return VoterSet.of([*(other for other in self.voters if other.key.id != voter.key.id), voter])

    def without(self, node_id: int) -> "VoterSet":
        return VoterSet(tuple(voter for voter in self.voters if voter.key.id != node_id))


class VotersAt(NamedTuple):
    """A set of voters and the offset of its record."""

    offset: int
    voters: VoterSet


BEFORE_THE_LOG = -1
"""The offset of the set that the node was started with."""


class VoterHistory:
    """The sets of voters in a log, the newest in force, committed or not (as Raft requires of single changes).

    A truncation of the log removes the sets above it from the history. The sets that a snapshot covers collapse into
    one entry.
    """

    def __init__(self, initial: VoterSet, in_log: Iterable[VotersAt] = ()) -> None:
        self._sets: list[VotersAt] = [VotersAt(BEFORE_THE_LOG, initial)]
        for entry in in_log:
            self.append(entry)

    @property
    def initial(self) -> VoterSet:
        """The voters that the node was started with."""
        return self._sets[0].voters

    @property
    def last(self) -> VotersAt:
        return self._sets[-1]

    @property
    def current(self) -> VoterSet:
        return self._sets[-1].voters

    @property
    def previous(self) -> VoterSet | None:
        """The set before the current set, if that set is known."""
        return self._sets[-2].voters if len(self._sets) > 1 else None

    @property
    def is_in_log(self) -> bool:
        """Whether the voters are from a record, and not only from the start of the node."""
        return self.last.offset != BEFORE_THE_LOG

    def at(self, offset: int) -> VoterSet | None:
        """The voters that the log states below this offset, which a snapshot with this end offset must have; None if
        the log states no voters."""
        index = bisect_right(self._sets, offset - 1, key=lambda entry: entry.offset)
        return self._sets[index - 1].voters if index > 1 else None

    def append(self, entry: VotersAt) -> None:
        """Add a set of voters whose record was appended."""
        assert entry.offset > self.last.offset or entry == self.last, f"{entry.offset} is not above {self.last.offset}"
        if entry != self.last:
            self._sets.append(entry)

    def truncate(self, end_offset: int) -> None:
        """Remove the sets at or above this end of the log."""
        while self.last.offset >= end_offset and len(self._sets) > 1:
            self._sets.pop()

    def load(self, end_offset: int, voters: VoterSet | None) -> None:
        """Take the voters of the snapshot that has replaced the log; None: the snapshot states no voters (kraft.version
        0)."""
        first = self._sets[0]
        self._sets = [first]
        if voters is not None:
            self._sets.append(VotersAt(max(end_offset - 1, 0), voters))

    def trim(self, log_start_offset: int) -> None:
        """Note that the log starts at this offset now: of the sets below, only the newest stays in the history."""
        while len(self._sets) > 2 and self._sets[2].offset < log_start_offset:
            del self._sets[1]


@dataclass(slots=True)
class Tally:
    """The votes of one election: one per voter of the set with which it began."""

    voters: VoterSet
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def record(self, voter_id: int, granted: bool) -> None:
        """Record a voter's first answer; later answers of the same voter are ignored."""
        if self.voters.find(voter_id) is None or voter_id in self.granted or voter_id in self.rejected:
            return
        (self.granted if granted else self.rejected).add(voter_id)

    @property
    def is_won(self) -> bool:
        return len(self.granted) >= self.voters.majority

    @property
    def is_lost(self) -> bool:
        """Whether so many voters have refused that the election cannot be won."""
        return len(self.voters) - len(self.rejected) < self.voters.majority

    @property
    def unanswered(self) -> tuple[ReplicaKey, ...]:
        return tuple(key for key in self.voters.keys if key.id not in self.granted and key.id not in self.rejected)

    @property
    def granting(self) -> tuple[ReplicaKey, ...]:
        return tuple(key for key in self.voters.keys if key.id in self.granted)


def majority_value(voters: VoterSet, value_of: Callable[[ReplicaKey], int]) -> int:
    """The largest value that a majority of the voters has reached: the offset that is committed, or the time of the
    last contact with a majority."""
    values = sorted((value_of(key) for key in voters.keys), reverse=True)
    return values[voters.majority - 1]
