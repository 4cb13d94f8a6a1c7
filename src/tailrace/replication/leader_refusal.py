"""A leader's answers with one and the same error for a partition, one after the other. Pure; times are monotonic ms."""

from typing import Final

from tailrace.model.errors import ErrorCode

REFUSED_AFTER_MS: Final = 10_000
"""After so long of one and the same refusal a partition is reported. Elections and restarts are over by then."""
REPORTED_EVERY_MS: Final = 60_000


class LeaderRefusal:
    """The refusals since the first one with this error."""

    __slots__ = ("_reported_ms", "_since_ms", "error")

    def __init__(self, error: ErrorCode, now_ms: int) -> None:
        self.error = error
        self._since_ms = now_ms
        self._reported_ms: int | None = None

    @property
    def is_reported(self) -> bool:
        """Whether it has lasted so long that it was reported."""
        return self._reported_ms is not None

    def report(self, now_ms: int) -> int | None:
        """The time that it has lasted, when the first report or the next one is due."""
        for_ms, reported_ms = now_ms - self._since_ms, self._reported_ms
        if for_ms < REFUSED_AFTER_MS or (reported_ms is not None and now_ms - reported_ms < REPORTED_EVERY_MS):
            return None
        self._reported_ms = now_ms
        return for_ms
