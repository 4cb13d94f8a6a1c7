"""The shares of a fetch's partitions in its bytes (KIP-74). Pure.

1. Partitions are read in the order of the request, each up to the smaller of its own limit and the rest of the
   request's limit.
2. The first partition with records gives its first batch even if that is larger than both limits: otherwise a
   consumer could never get past a large batch. No other batch exceeds a limit.
3. Batches are whole. A batch that does not fit is left for the next fetch.
4. The first batch that does not fit into the rest of the request's limit makes the answer full, as in Kafka, which
   sends a part of that batch. A search for smaller batches in later partitions would cost more than it gains.
"""

from typing import Final

from tailrace.protocol.messages.fetch import FetchRequest

DEFAULT_FETCH_MAX_BYTES: Final = 4_194_304
"""fetch.max.bytes of a broker: the largest answer to any request, except by rule 2."""
MAX_WAIT_MS: Final = 300_000
"""The longest wait of a fetch: a limit of ours, ten times the longest wait of any client."""


class FetchLimits:
    """The limits of one request, each within the broker's. The code uses comparisons, since `min` and `max` take three
    times as long."""

    __slots__ = ("max_bytes", "may_wait", "wait_ms", "wanted_bytes")

    def __init__(self, request: FetchRequest, fetch_max_bytes: int) -> None:
        """A negative limit counts as 0: one batch is still read."""
        max_bytes, min_bytes, wait_ms = request.max_bytes, request.min_bytes, request.max_wait_ms
        if max_bytes > fetch_max_bytes:
            max_bytes = fetch_max_bytes
        self.max_bytes = max_bytes if max_bytes > 0 else 0
        self.wanted_bytes = min_bytes if min_bytes < self.max_bytes else self.max_bytes
        """The bytes that the request waits for, never more than an answer can have."""
        self.wait_ms = 0 if wait_ms <= 0 else wait_ms if wait_ms < MAX_WAIT_MS else MAX_WAIT_MS
        """The longest wait for `wanted_bytes`."""
        self.may_wait = wait_ms > 0 and self.wanted_bytes > 0


class FetchBudget:
    """The bytes that one answer may still take."""

    __slots__ = ("left_bytes", "min_one_message", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.left_bytes = max_bytes
        self.size_bytes = 0
        """The bytes read so far."""
        self.min_one_message = True
        """Whether the next partition may give a first batch of any size."""

    @property
    def is_full(self) -> bool:
        """Whether the answer can have no more records."""
        return self.left_bytes == 0 and self.size_bytes > 0

    def limit_for(self, partition_max_bytes: int) -> int:
        """The bytes that the next partition may give."""
        if partition_max_bytes <= 0:
            return 0
        return partition_max_bytes if partition_max_bytes < self.left_bytes else self.left_bytes

    def spend(self, size_bytes: int) -> None:
        """Subtract the bytes that a partition has given."""
        self.size_bytes += size_bytes
        self.min_one_message = not self.size_bytes
        self.left_bytes = self.left_bytes - size_bytes if self.left_bytes > size_bytes else 0

    def leave_out(self, limit_bytes: int) -> None:
        """Note that a partition's first batch did not fit into its limit (rule 4)."""
        if limit_bytes >= self.left_bytes:
            self.left_bytes = 0
