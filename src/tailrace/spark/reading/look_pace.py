"""The pace at which a stream looks for new records: often while they come, seldom after a long quiet time.

A look costs the driver and each broker some CPU time, and a batch begins one look after its records have come. Pauses
that grow with the quiet time bound both: a batch is late by an eighth of the time in which nothing came, at most.
"""

from typing import Final

SHORTEST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.25
_QUIET_PARTS: Final = 8
"""A pause is this fraction of the quiet time: two seconds without records lead to the longest pause."""


class LookPace:
    """The time of the next look, by a monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._quiet_since = now
        self.next_look = now

    def looked(self, now: float, *, has_news: bool) -> None:
        """Note a look. `has_news`: the look has found enough records for a batch, and the next look is at once."""
        if has_news:
            self._quiet_since = self.next_look = now
            return
        quiet_part = (now - self._quiet_since) / _QUIET_PARTS
        self.next_look = now + min(max(quiet_part, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


ROUND_S: Final = 0.25
"""The time that all sources of a query without records wait together for each answer. Spark calls `latestOffset`
without pause, and cannot end the query during a call."""
MOST_SOURCES: Final = 16
"""The count of sources above which the wait of a source gets no shorter."""


class IdleWait:
    """The time that a stream's source waits for records in one `latestOffset`, so that sources do not wait in turn.

    Spark calls `latestOffset` of all sources of a query in turn, in a process per source, and begins a batch when the
    last source has answered. A source that waits while another source has records holds that batch up. Only Spark's
    calls show if other sources are at work: Spark calls `commit` on every source when it plans a batch, and the pause
    between two calls of `latestOffset` shows the waits of the other sources.

    Times are times of one monotonic clock, in seconds.
    """

    def __init__(self) -> None:
        self._wait = ROUND_S
        self._answered_at: float | None = None
        """The time of the last answer, if the call had waited for its whole time; else None."""
        self._is_busy = False

    def batch_was_planned(self) -> None:
        """Note that Spark has planned a batch: the next call of `latestOffset` does not wait."""
        self._is_busy = True

    def begin(self, now: float) -> float:
        """Begin a call of `latestOffset`. Returns its longest wait. Must come before anything else in the call."""
        is_busy, self._is_busy = self._is_busy, False
        answered_at, self._answered_at = self._answered_at, None
        if is_busy:
            return 0.0
        if answered_at is not None:
            others = max(0.0, now - answered_at)
            share = self._wait / (self._wait + others)
            self._wait = max(ROUND_S * share, ROUND_S / MOST_SOURCES)
        return self._wait

    def ended(self, now: float) -> None:
        """Note that a call of `latestOffset` has waited for its whole time, and returns now without records."""
        self._answered_at = now
