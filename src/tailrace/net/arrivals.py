"""Rates of new connections: of all clients together, and of one address.

Both rates are token buckets that hold two seconds' worth. A connection that comes to an empty bucket takes a token of
the future and waits for it. One whose wait would be too long takes none, so that a flood of attempts does not make the
others wait for it.
"""

TOO_LONG_MS = 10_000
"""A connection that would have to wait this long is closed instead."""

_BURST_SECONDS = 2


class Arrivals:
    """The rates of new connections. Times are of a monotonic clock, in ms."""

    def __init__(self, *, per_second: int, per_ip_per_second: int) -> None:
        self._all = _Bucket(per_second)
        self._per_ip_per_second = per_ip_per_second
        self._by_address: dict[str, _Bucket] = {}

    def wait_ms(self, address: str, now_ms: int) -> int:
        """The wait of a connection that comes now from this address: 0 mostly, `TOO_LONG_MS` is for ever."""
        bucket = self._by_address.get(address)
        if bucket is None:
            bucket = self._by_address[address] = _Bucket(self._per_ip_per_second)
        wait_ms = max(bucket.wait_ms(now_ms), self._all.wait_ms(now_ms))
        if wait_ms >= TOO_LONG_MS:
            return TOO_LONG_MS
        bucket.take()
        self._all.take()
        return wait_ms

    def forget_idle(self, now_ms: int) -> None:
        """Forget addresses without new connections for a while: there are many addresses."""
        self._by_address = {
            address: bucket for address, bucket in self._by_address.items() if not bucket.is_full(now_ms)
        }

    def __len__(self) -> int:
        """The number of addresses that are remembered."""
        return len(self._by_address)


class _Bucket:
    """Tokens, as the time at which the bucket would be full: one number instead of two."""

    __slots__ = ("_full_at_ms", "_size_ms", "_token_ms")

    def __init__(self, per_second: int) -> None:
        self._token_ms = 1000 / per_second
        self._size_ms = _BURST_SECONDS * 1000
        self._full_at_ms = 0.0

    def wait_ms(self, now_ms: int) -> int:
        """The time until there is a token."""
        self._full_at_ms = max(self._full_at_ms, now_ms)
        return max(0, round(self._full_at_ms + self._token_ms - now_ms - self._size_ms))

    def take(self) -> None:
        """Take a token, even one that is not there yet."""
        self._full_at_ms += self._token_ms

    def is_full(self, now_ms: int) -> bool:
        """Whether the bucket is full, as after its creation."""
        return self._full_at_ms <= now_ms
