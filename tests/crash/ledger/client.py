"""The small face that each Python client shows the programs of the ledger."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from testkit.verdicts.ledger import Place

CALL_S = 15.0
"""The longest wait of one call of a client, as far as the client has such a limit."""
FROM_NOW = -1
"""In place of an offset: the end."""


class MustAbort(Exception):
    """The client says that the transaction can only be aborted."""


class CannotGoOn(Exception):
    """The client says that the producer cannot go on, or does not say what has become of the transaction."""


class Received(NamedTuple):
    """A record that a reader has got."""

    place: Place
    offset: int
    value: bytes


class LedgerReader(Protocol):
    """A consumer at read_committed that is in no group, and chooses no other position by itself."""

    def poll(self, wait_s: float) -> list[Received]:
        """The next records, some hundreds at most, after no longer wait than this."""
        ...

    def close(self) -> None: ...


class LedgerClient(Protocol):
    """A producer with a transactional id, and consumers. Calls of transactions raise MustAbort or CannotGoOn."""

    def reader(self, starts: Mapping[Place, int]) -> LedgerReader:
        """A reader of these partitions, from these offsets on, or FROM_NOW."""
        ...

    def initialize(self) -> None:
        """Have the producer fence its predecessor."""
        ...

    def committed(self, place: Place) -> int:
        """The group's committed offset; 0 if there is none."""
        ...

    def begin(self) -> None: ...

    def send(self, place: Place, value: bytes) -> None: ...

    def flush(self) -> None:
        """Wait until all that was sent is written."""
        ...

    def commit_offset(self, place: Place, offset: int) -> None:
        """Have the transaction commit this offset of the group."""
        ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def pause(self, seconds: float) -> None:
        """Sleep."""
        ...

    def close(self) -> None: ...
