"""Majorities: of votes, of offsets, of contact. Pure arithmetic over a set of voters."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.raft.voters import ReplicaKey, VoterSet


@dataclass(slots=True)
class Tally:
    """The votes of one election. Only voters of the set it began with count, each once."""

    voters: VoterSet
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def record(self, voter_id: int, granted: bool) -> None:
        """A voter answered. The first answer stays."""
        if self.voters.find(voter_id) is None or voter_id in self.granted or voter_id in self.rejected:
            return
        (self.granted if granted else self.rejected).add(voter_id)

    @property
    def is_won(self) -> bool:
        return len(self.granted) >= self.voters.majority

    @property
    def is_lost(self) -> bool:
        """Whether too many have refused for it to be won."""
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
