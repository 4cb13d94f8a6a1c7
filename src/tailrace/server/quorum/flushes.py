"""The flushes of the metadata log: one flush at a time, and no flush while a snapshot replaces the log.

A flush that cannot be begun is a failure of the log. In a step the failure is raised, as for all other effects. Between
two steps no caller could catch the failure, so `on_failed` is called.
"""

from collections.abc import Callable

from tailrace.model.errors import StorageError
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import QuorumFlush

Task = Callable[[], None]


class QuorumFlushes:
    """The flushes that the machine requests; requests during a flush become one further flush."""

    def __init__(
        self,
        log: QuorumLog,
        *,
        carry_out: Callable[[Task, Task], None],
        has_failed: Callable[[], bool],
        on_flushed: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
    ) -> None:
        """`carry_out` runs work on the disk, and then a callback. `on_flushed` gets the number of a completed request;
        every earlier request is complete, too. `on_failed` gets the error of a flush that cannot be begun outside of
        `request`."""
        self._log = log
        self._carry_out = carry_out
        self._has_failed = has_failed
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._requested = self._begun = 0
        self._under_way: QuorumFlush | None = None
        self._is_on_hold = False

    def request(self, number: int) -> None:
        """Flush the present log, at once or after the flush under way. Only in a step. Raises StorageError."""
        self._requested = number
        self._begin()

    def hold(self) -> None:
        """Begin no flush before `resume`."""
        self._is_on_hold = True

    def resume(self) -> None:
        """Begin the requested flush, if there is a request. Only between two steps."""
        self._is_on_hold = False
        self._go_on()

    def close(self) -> None:
        """Finish the flush that is under way: the disk has been stopped. Raises StorageError."""
        if self._under_way is not None:
            self._under_way.sync()
            self._log.finish_flush(self._under_way)

    def _begin(self) -> None:
        is_wanted = self._begun < self._requested and not self._has_failed()
        if not is_wanted or self._under_way is not None or self._is_on_hold:
            return
        number = self._begun = self._requested
        flush = self._under_way = self._log.begin_flush()
        self._carry_out(flush.sync, lambda: self._done(number, flush))

    def _done(self, number: int, flush: QuorumFlush) -> None:
        self._under_way = None
        if self._has_failed():
            return
        self._log.finish_flush(flush)
        self._on_flushed(number)  # reported before the next flush begins, which may fail
        self._go_on()

    def _go_on(self) -> None:
        try:
            self._begin()
        except StorageError as fault:
            self._on_failed(fault)
