"""The records that a producer could not write and has not reported yet: `flush` and `close` raise them.

A failure counts until its future is asked (`result`, `exception`, a callback, `await`) or an exception has told of it.
Only a count and a few of the first failures are kept, however many there are. The log has a warning per topic, at once
and every 30 s.
"""

import logging
import os
import threading
import time
from typing import Final, NamedTuple

from tailrace.client.outgoing import RecordNotWritten
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.throttle import Throttle

_WARNING_PERIOD_MS: Final = 30_000
_MOST_KEPT: Final = 16
"""So that there is a failure to quote when the first ones have been asked for."""

_MOST_TOPICS: Final = 1_000

_logger = logging.getLogger("tailrace.client")

_lock = threading.Lock()
"""Held for a few assignments only. Futures fail on the loop's thread and are asked on any."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_renew_lock)


class Ticket(NamedTuple):
    """The token of a failed future, given back when that is asked."""

    round: int
    number: int
    records: int


class WriteFailures:
    """Those of one producer. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._round = 0
        """Rises when all failures so far have been reported."""
        self._next_number = 0
        self._records = 0
        self._kept: dict[int, tuple[str, ErrorCode, str]] = {}
        self._warnings = Throttle(_WARNING_PERIOD_MS)
        self._unlogged: dict[str, int] = {}

    def add(self, fault: BaseException) -> Ticket:
        """Count a record whose future has not been asked yet. Call `log` too, while no lock is held."""
        place, records = (fault.place, fault.records) if isinstance(fault, RecordNotWritten) else ("", 1)
        code = fault.code if isinstance(fault, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        with _lock:
            ticket = Ticket(self._round, self._next_number, records)
            self._next_number += 1
            self._records += records
            if len(self._kept) < _MOST_KEPT:
                self._kept[ticket.number] = place, code, str(fault)
        return ticket

    def log(self, fault: BaseException) -> None:
        """Warn of a failure that has been counted, unless its topic had a warning a moment ago."""
        if not isinstance(fault, RecordNotWritten):
            return
        count = self._unlogged.pop(fault.topic, 0) + fault.records
        if self._warnings.admits(fault.topic, time.monotonic_ns() // 1_000_000):
            what = (
                f"1 record for topic {fault.topic} was"
                if count == 1
                else f"{count} records for topic {fault.topic} were"
            )
            _logger.warning("%s not written: %s", what, fault)
        elif len(self._unlogged) < _MOST_TOPICS:
            self._unlogged[fault.topic] = count

    def heard(self, ticket: Ticket) -> None:
        """The future of this failure has been asked."""
        with _lock:
            if ticket.round == self._round:
                self._records -= ticket.records
                self._kept.pop(ticket.number, None)

    def take(self) -> KafkaError | None:
        """All unreported failures, as one; they are forgotten."""
        with _lock:
            records, kept = self._records, list(self._kept.values())
            self._round += 1
            self._records = 0
            self._kept.clear()
        if not records:
            return None
        if not kept:
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{_were(records)} not written; the log says why")
        place, code, text = kept[0]
        first = "" if records == 1 else ", the first"
        return KafkaError(code, f"{_were(records)} not written{first}: {f'{place}: ' if place else ''}{text}")

    def raise_unheard(self) -> None:
        """Raise KafkaError for the unreported failures, if there are any."""
        fault = self.take()
        if fault is not None:
            raise fault


def _were(records: int) -> str:
    return "1 record was" if records == 1 else f"{records} records were"
