"""The outcomes of the handler of one consumer, counted; the first failure of each record is logged."""

import logging
from traceback import TracebackException

from tailrace.client.sharing.lanes import LaneWork
from tailrace.client.sharing.outcomes import Outcome, Retry, Skip

_SHOWN_CHARS = 200

_log = logging.getLogger(__name__)


class OutcomeCounts:
    """Totals since the consumer was made."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.done = self.skipped = self.retried = self.failed = 0

    def add(self, work: LaneWork, outcome: Outcome, fault: BaseException | None) -> None:
        """Count the outcome of this record. `fault`: the exception of the handler, of which it is the outcome."""
        if isinstance(outcome, Retry):
            self.retried += 1
        elif isinstance(outcome, Skip):
            self.skipped += 1
            _log.info("group %r skips offset %d of %s: %s", self._group, work.record.offset, work.name, outcome.reason)
        else:
            self.done += 1
        if fault is None:
            return
        self.failed += 1
        if work.attempt == 1:
            _log.warning(
                "group %r: the handler has failed at offset %d of %s; its key is held and tried again: %s",
                self._group,
                work.record.offset,
                work.name,
                fault_text(fault),
                exc_info=fault,
            )


def fault_text(fault: BaseException) -> str:
    """The exception in a few words. It may be one that has no text: its `__str__` is code of users too."""
    text = TracebackException(type(fault), fault, None, lookup_lines=False, compact=True)
    return f"{type(fault).__name__}: {text}"[:_SHOWN_CHARS]
