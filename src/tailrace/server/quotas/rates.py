"""Rates and their limits, as Kafka's quotas measure them (pure). Times are monotonic ms.

A `RateWindow` has samples of a fixed length; a rate counts all samples, and at least the time of all samples but the
last (KIP-13).
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

LONGEST_THROTTLE_MS: Final = 2**31 - 1
"""The longest throttle time that an answer can state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig:
    """The window of the quotas of clients, with Kafka's names and defaults."""

    quota_window_num: int = 11
    """The number of samples in the window: all samples but the last are complete."""
    quota_window_size_seconds: int = 1
    """The length of one sample in seconds."""


class RateWindow:
    """The rate of some value in a sliding window."""

    __slots__ = ("_most_samples", "_sample_ms", "_samples", "_total")

    def __init__(self, *, samples: int, sample_ms: int) -> None:
        self._most_samples = samples
        self._sample_ms = sample_ms
        self._samples: deque[list[float]] = deque()  # begin and value, the oldest first
        self._total = 0.0

    def record(self, value: float, now_ms: int) -> None:
        """Add to the value of the present sample."""
        self._drop_old(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= self._sample_ms:
            self._samples.append([now_ms, 0.0])
        self._samples[-1][1] += value
        self._total += value

    def rate(self, now_ms: int) -> float:
        """The value per second."""
        self._drop_old(now_ms)
        return self._total * 1000 / self._span_ms(now_ms) if self._samples else 0.0

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """The time until the rate is within the limit, if nothing is recorded meanwhile; 0: the rate is within the
        limit now."""
        rate = self.rate(now_ms)
        if rate <= limit:
            return 0
        return round(min((rate - limit) / limit * self._span_ms(now_ms), LONGEST_THROTTLE_MS))

    def _span_ms(self, now_ms: int) -> float:
        """The time that the rate counts: until the window is full, the time of all its samples but the last, and the
        part of the last sample that is over."""
        span_ms = now_ms - self._samples[0][0]
        missing = self._most_samples - 1 - span_ms // self._sample_ms
        return max(1, span_ms + max(0, missing) * self._sample_ms)

    def _drop_old(self, now_ms: int) -> None:
        samples, window_ms = self._samples, self._most_samples * self._sample_ms
        while samples and now_ms - samples[0][0] >= window_ms:
            self._total -= samples.popleft()[1]
        if not samples:
            self._total = 0.0
