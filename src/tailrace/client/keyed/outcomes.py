"""A handler's record, and the outcomes that the handler may return. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, Final, NamedTuple

from tailrace.protocol.records.record import Header

FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 60_000
"""The pauses of a key after failures in a row: from the first pause to the longest, each twice as long as the last."""
LONGEST_WAIT_S: Final = 86_400
"""The longest time for which a handler lets a record wait: a day."""


Decode = Callable[[bytes], Any]


class KeyedRecord(NamedTuple):
    """A record and where it stood. Timestamp in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: Any
    """The decoded value if there is a decoder and the record has a value; else the bytes, or None."""
    headers: tuple[Header, ...]
    fault: Exception | None = None
    """The exception of the decoder: the value is as it was stored."""
    attempt: int = 1
    """The number of times that the handler of this process has got the record, this time included."""
    slot: int | None = None
    """The slot of the partition that the member owns, if the group shares partitions by key."""
    member_epoch: int = -1
    """The epoch of the member in its group when the record was read. With the slot, or with the partition, the epoch is
    a fencing token: a later owner has a higher epoch. -1: the member has no group."""


make_keyed_record: Final[Callable[[tuple[Any, ...]], KeyedRecord]] = partial(tuple.__new__, KeyedRecord)
"""The record of a tuple of all its fields, at less cost than by its constructor."""


def prepared(record: KeyedRecord, attempt: int, decode: Decode | None) -> KeyedRecord:
    """The record for a handler. If `decode` fails, the value stays bytes, and `fault` is the exception."""
    if attempt != record.attempt:
        record = record._replace(attempt=attempt)
    if decode is None or record.value is None:
        return record
    try:
        return make_keyed_record((*record[:5], decode(record.value), *record[6:]))
    except Exception as fault:  # noqa: BLE001 - of the user's code; the handler gets it
        return record._replace(fault=fault)


@dataclass(frozen=True, slots=True)
class Done:
    """The record is processed; a handler may return None instead."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The handler gets the record again after `after` seconds; None: after the pause of a failure, 1 s to 1 min.

    Later records of the key wait, records of other keys do not. A time of more than a day counts as a day. Raises
    ValueError for a time that is negative, infinite or not a number.
    """

    after: float | None = None

    def __post_init__(self) -> None:
        if self.after is not None and not (isfinite(self.after) and self.after >= 0):
            raise ValueError(f"Retry(after={self.after}): seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class Skip:
    """The record is not processed and does not come again: it counts as done, and as skipped."""

    reason: str = ""


Outcome = Done | Retry | Skip


DONE: Final = Done()


def outcome_of(result: object) -> Outcome:
    """The outcome that a handler has returned. Raises TypeError for anything else, such as `Retry` without brackets."""
    if result is None:
        return DONE
    if isinstance(result, Done | Retry | Skip):
        return result
    raise TypeError(f"a handler returns None, Done(), Retry() or Skip(), not {result!r:.100}")


def pause_ms(failures: int) -> int:
    """The pause of a key after so many failures in a row, 1 at least."""
    return min(FIRST_PAUSE_MS << min(failures - 1, 10), LONGEST_PAUSE_MS)
