"""Throttled log lines: one per key and period, so that neither a fault nor a hostile client fills the log."""

from collections.abc import Hashable
from typing import Final

_MOST_KEYS: Final = 1_000


class Throttle:
    """Admits the first line of a key, then one per period. Pure: the caller has the clock."""

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._admitted_ms: dict[Hashable, int] = {}

    def admits(self, key: Hashable, now_ms: int) -> bool:
        """Whether a line about this key may be written now."""
        last_ms = self._admitted_ms.get(key)
        if last_ms is not None and now_ms - last_ms < self._period_ms:
            return False
        self._admitted_ms.pop(key, None)  # the order is that of the last lines
        if len(self._admitted_ms) >= _MOST_KEYS:
            del self._admitted_ms[next(iter(self._admitted_ms))]
        self._admitted_ms[key] = now_ms
        return True
