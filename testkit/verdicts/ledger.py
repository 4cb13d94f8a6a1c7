"""The ledger of transactions that many clients write: its records, the clients' diaries, and the readings of the
ledger.

Two topics. In *accounts* each partition is an account, and a transfer moves amounts between two accounts: its records
sum to zero. Between its first record and its second it reads, and the second record names the records that the transfer
has seen. The topic *copies* has copies of the records of a client's own source, written in one transaction with the
offset of the client's group.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

ACCOUNTS: Final = "accounts"
COPIES: Final = "copies"
TRANSFER: Final = "transfer"
COPY: Final = "copy"
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
UNKNOWN: Final = "unknown"


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Observation(NamedTuple):
    """A record of the accounts that a transfer has read."""

    partition: int
    offset: int
    transaction: str


class Sight(NamedTuple):
    """The records that a transfer has read since the last transfer of its client: of each partition only the latest
    records, in order."""

    at_ns: int
    """The time at which the last of these records came."""
    observations: Sequence[Observation]


@dataclass(frozen=True, slots=True)
class Entry:
    """A record."""

    transaction: str
    index: int
    size: int
    """The number of records of its transaction."""
    amount: int = 0
    """The amount of a transfer."""
    copied: tuple[str, int] | None = None
    """For a copy: the client, and the offset of the copied record in the client's source."""
    sight: Sight | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A transaction in the diary of its client. Times are of one clock for all processes, in ns."""

    name: str
    client: str
    life: int
    """The number of the process: a client that ends is started again."""
    number: int
    began_ns: int
    commit_ns: int | None
    """The time just before its commit was requested; None: its commit was never requested."""
    outcome: str


Reading = Mapping[Place, Sequence[tuple[int, Entry]]]
"""The records of each partition that a reader at read_committed has got, in the order of reading, with their
offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEvidence:
    """The evidence that a run has gathered."""

    attempts: Mapping[str, Attempt]
    """The transactions by name."""
    readings: Mapping[str, Reading]
    """The readings by reader. Every reader has read from the beginning to the end."""
    copied_to: Mapping[str, int]
    """The committed offset of each client's group in the client's source after the run."""


def entry_of(value: str | bytes) -> Entry:
    """The record with this value. Raises ValueError or KeyError if the ledger has no such records."""
    fields = json.loads(value)
    copied, sight = fields.get("copied"), fields.get("saw")
    return Entry(
        transaction=fields["t"],
        index=fields["i"],
        size=fields["of"],
        amount=fields.get("amount", 0),
        copied=None if copied is None else (copied[0], copied[1]),
        sight=None if sight is None else Sight(fields["at"], tuple(Observation(*seen) for seen in sight)),
    )
