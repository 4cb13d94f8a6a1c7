"""The flushes of the metadata log: never two at a time, and none while a snapshot replaces the log.

A flush that cannot be begun is a failure of the log. In a step the failure is raised, as for all other effects;
between two steps there is no caller to raise to, so `on_failed` is called.
"""

from collections.abc import Callable

from tailrace.model.errors import StorageError
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import QuorumFlush

Task = Callable[[], None]


class QuorumFlushes:
    """Flushes that the machine asks for; several requests meanwhile become one flush."""

    def __init__(
        self,
        log: QuorumLog,
        *,
        carry_out: Callable[[Task, Task], None],
        has_failed: Callable[[], bool],
        on_flushed: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
    ) -> None:
        """`carry_out` runs work on the disk, and a callback then. `on_flushed` gets the number of the request that is
        complete, as is every earlier request; `on_failed` the error of the next flush, unless `request` raises it."""
        self._log = log
        self._carry_out = carry_out
        self._has_failed = has_failed
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._requested = self._begun = 0
        self._under_way: QuorumFlush | None = None
        self._is_on_hold = False

    def request(self, number: int) -> None:
        """Flush the present log, at once or next. In a step. Raises StorageError."""
        self._requested = number
        self._begin()

    def hold(self) -> None:
        """Begin no flush before `resume`."""
        self._is_on_hold = True

    def resume(self) -> None:
        """Begin the flush that is requested, if any. Between two steps."""
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
        self._on_flushed(number)  # first: the next flush may fail
        self._go_on()

    def _go_on(self) -> None:
        try:
            self._begin()
        except StorageError as fault:
            self._on_failed(fault)
