"""The errors of clients while faults are injected: every error needs an explanation.

| Error | Explained by |
|---|---|
| any except a hang | a transaction that was open for its time-out before the error: its coordinator has ended it |
| fenced: another producer has the transactional id, or its epoch or its id is over | nothing else |
| any other | a fault that began before the error, and ended at most the grace before the begin (below) |

All requests of a transaction, or of a client's life, and their waits lie between its begin and the error. If
transactions fail in a row, the begin of the first transaction counts: a client that has given up a transaction does not
know that the coordinator has ended it too, and is fenced in the next. The grace of a hang is longer: a client notices
that the coordinator it knows has lost that role only when the client needs a coordinator.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

HANGS: Final = "it hangs"
"""The reason of an error for a client that was ended because it did nothing any more."""
_FENCING: Final = re.compile(
    r"fenced|invalid_?\s?producer_?\s?epoch|producer.{0,20}(old|stale) epoch|invalid_?\s?producer_?\s?id_?\s?mapping",
    re.IGNORECASE,
)
_SLACK_NS: Final = 500_000_000
"""A coordinator counts a transaction's time from its first request, a client from its call."""


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """A fault that was injected, from its begin to its end, in ns."""

    kind: str
    began_ns: int
    ended_ns: int
    client: str | None = None
    """The client whose process had the fault; None: a fault of nodes or of their network, which all clients meet."""


@dataclass(frozen=True, slots=True)
class ClientError:
    """An error that a client raised."""

    client: str
    is_fatal: bool
    """Whether the error ended the producer or the process."""
    began_ns: int
    """The begin of the transaction or of the life in which the error was raised; after failures in a row the begin of
    the first failed transaction."""
    at_ns: int
    reason: str

    @property
    def is_fencing(self) -> bool:
        return _FENCING.search(self.reason) is not None


@dataclass(frozen=True, slots=True)
class Excuses:
    """The limits of explanations, in ns."""

    timeout_ns: int
    """The time-out of transactions."""
    grace_ns: int = 5_000_000_000
    """The time after the end of a fault in which the fault still explains errors: nodes elect leaders and load
    coordinators."""
    hang_grace_ns: int = 60_000_000_000


def explanation(error: ClientError, faults: Iterable[FaultWindow], excuses: Excuses) -> str | None:
    """The fault that explains this error; None if no fault explains it."""
    grace_ns = excuses.hang_grace_ns if error.reason == HANGS else excuses.grace_ns
    if error.reason != HANGS and error.at_ns - error.began_ns >= excuses.timeout_ns - _SLACK_NS:
        return "the time of its transaction was over"
    if error.is_fencing:
        return None
    for fault in faults:
        is_met = fault.client in (None, error.client)
        if is_met and fault.began_ns <= error.at_ns and error.began_ns <= fault.ended_ns + grace_ns:
            return fault.kind
    return None


def unexplained(errors: Iterable[ClientError], faults: Sequence[FaultWindow], excuses: Excuses) -> Iterator[str]:
    """The errors that no fault explains, as sentences."""
    for error in errors:
        if explanation(error, faults, excuses) is None:
            kind = "fatal error" if error.is_fatal else "error"
            after_s = (error.at_ns - error.began_ns) / 1e9
            yield f"{kind} without a fault: {error.client}, {after_s:.1f} s after its begin: {error.reason}"
