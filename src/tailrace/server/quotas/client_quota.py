"""A quota of clients: its limits by entity, and the rates of the clients that have a limit (pure)."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tailrace.model.security.quotas import QuotaRules
from tailrace.server.quotas.counts import ClientKey, QuotaCounts
from tailrace.server.quotas.rates import LONGEST_THROTTLE_MS, RateWindow


class ClientRate:
    """The rate of the clients that share a count, and their throttle times."""

    __slots__ = ("throttled", "throttled_ms", "window")

    def __init__(self, window: RateWindow) -> None:
        self.window = window
        self.throttled = 0
        """The number of answers with a throttle time."""
        self.throttled_ms = 0
        """The sum of these throttle times."""


class ClientRateMeasure(NamedTuple):
    """The numbers of the clients that share a count, as metrics show them."""

    user: str
    client_id: str
    rate: float
    throttle_time_ms: float
    """The average of the throttle times above 0; 0 without throttle times."""


class ClientQuota:
    """The quota of one key, such as `producer_byte_rate`."""

    def __init__(self, *, samples: int, sample_ms: int, longest_ms: int = LONGEST_THROTTLE_MS) -> None:
        """`longest_ms` limits a throttle time."""
        self._samples = samples
        self._sample_ms = sample_ms
        self._longest_ms = longest_ms
        self.rules = QuotaRules(())
        """The limits."""
        self.counts: Final = QuotaCounts(lambda: ClientRate(RateWindow(samples=samples, sample_ms=sample_ms)))

    def charge(self, client: ClientKey, value: float, now_ms: int) -> int:
        """Count a value for a client; returns the throttle time in ms: 0 for a client within its limit, or without a
        limit."""
        match = self.rules.find(*client)
        if match is None:
            return 0
        count = self.counts.of((match.user, match.client_id), now_ms)
        count.window.record(value, now_ms)
        throttle_ms = min(count.window.throttle_ms(match.limit, now_ms), self._longest_ms)
        if throttle_ms:
            count.throttled += 1
            count.throttled_ms += throttle_ms
        return throttle_ms

    def allowance(self, client: ClientKey, now_ms: int) -> int | None:
        """The value that a client may have at once: 0 above its limit, otherwise the value of a whole window; None for
        a client without a limit."""
        match = self.rules.find(*client)
        if match is None:
            return None
        if self.counts.of((match.user, match.client_id), now_ms).window.throttle_ms(match.limit, now_ms):
            return 0
        return max(1, int(match.limit * (self._samples - 1) * self._sample_ms / 1000))

    def measures(self, now_ms: int) -> Iterator[ClientRateMeasure]:
        """The numbers of all counts."""
        self.counts.drop_idle(now_ms)
        for (user, client_id), count in self.counts.items():
            average_ms = count.throttled_ms / count.throttled if count.throttled else 0.0
            yield ClientRateMeasure(user, client_id, count.window.rate(now_ms), average_ms)
