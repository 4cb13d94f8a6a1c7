"""The pace at which a stream looks for new records: often while they come, seldom after a long quiet time.

A look costs the driver and each broker some CPU time, and a batch begins one look after its records have come. Pauses
that grow with the quiet time bound both: a batch is late by an eighth of the time in which nothing came, at most.
"""

from typing import Final

SHORTEST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.25
_QUIET_PARTS: Final = 8
"""A pause is so small a part of the quiet time: two seconds without records lead to the longest one."""


class LookPace:
    """The time of the next look. Times are those of one monotonic clock, in seconds."""

    def __init__(self, now: float) -> None:
        self._quiet_since = now
        self.next_look = now

    def looked(self, now: float, *, has_news: bool) -> None:
        """Note a look, and whether it has found enough records for a batch: the look behind that batch is at once."""
        if has_news:
            self._quiet_since = self.next_look = now
            return
        quiet_part = (now - self._quiet_since) / _QUIET_PARTS
        self.next_look = now + min(max(quiet_part, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)
