"""The flushes of the metadata log: one at a time, and none while a snapshot is put in the place of the log."""

from collections.abc import Callable

from tailrace.server.hosts.quorum_log import QuorumFlush, QuorumLog

Task = Callable[[], None]


class QuorumFlushes:
    """What the machine wants flushed is; several wishes meanwhile become one flush."""

    def __init__(
        self,
        log: QuorumLog,
        *,
        carry_out: Callable[[Task, Task], None],
        has_failed: Callable[[], bool],
        on_flushed: Callable[[int], None],
    ) -> None:
        """`carry_out` has the disk do something, and something done then. `on_flushed` is told the number of the wish
        that has come true, and of all before it."""
        self._log = log
        self._carry_out = carry_out
        self._has_failed = has_failed
        self._on_flushed = on_flushed
        self._wanted = self._begun = 0
        self._under_way: QuorumFlush | None = None
        self._is_on_hold = False

    def want(self, number: int) -> None:
        """Flush all that is appended now, at once or next."""
        self._wanted = number
        self._begin()

    def hold(self) -> None:
        """Begin none from now on."""
        self._is_on_hold = True

    def resume(self) -> None:
        """Go on with what is wanted."""
        self._is_on_hold = False
        self._begin()

    def close(self) -> None:
        """Finish what is under way: the disk has been stopped before, and will not. Raises StorageError."""
        if self._under_way is not None:
            self._under_way.sync()
            self._log.finish_flush(self._under_way)

    def _begin(self) -> None:
        is_wanted = self._begun < self._wanted and not self._has_failed()
        if not is_wanted or self._under_way is not None or self._is_on_hold:
            return
        number = self._begun = self._wanted
        flush = self._under_way = self._log.begin_flush()
        self._carry_out(flush.sync, lambda: self._done(number, flush))

    def _done(self, number: int, flush: QuorumFlush) -> None:
        self._under_way = None
        if self._has_failed():
            return
        self._log.finish_flush(flush)
        self._begin()
        self._on_flushed(number)
