"""The ledger of transactions that many clients write: its records, the clients' diaries, and the readings of the
ledger.

Two topics. In *accounts* each partition is an account, and a transfer moves amounts between two accounts: its records
sum to zero. Between its first record and its second it reads, and the second record names the records that the transfer
has seen. In *copies* stand copies of the records of a client's own source, made together with the commit of its group's
offset.
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
    """The records that a transfer has read since its client's last transfer; of each partition the latest, in order."""

    at_ns: int
    """The time when the last of them had come."""
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
    """The client and the offset of the source's record of which this is the copy."""
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
    """The time at which its commit was about to be requested; None: it never was."""
    outcome: str


Reading = Mapping[Place, Sequence[tuple[int, Entry]]]
"""The records of each partition that a reader at read_committed has got, in that order, with their offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEvidence:
    """The evidence that a run has gathered."""

    attempts: Mapping[str, Attempt]
    """By name."""
    readings: Mapping[str, Reading]
    """The readings by reader. Every reader has read from the beginning to the end."""
    copied_to: Mapping[str, int]
    """The committed offset of each client's group in its source, in the end."""


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
