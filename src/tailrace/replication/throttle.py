"""The throttle of replication (KIP-73, pure): replicas out of sync share a rate, replicas in sync never wait.

A broker has two throttles, for the bytes that it sends as a leader and for the bytes that it fetches as a follower.
Each counts the bytes of its throttled replicas in a sliding window and compares their rate with the quota, as Kafka's
`ReplicationQuotaManager` does. An answer is sent whole when the rate is within the quota, so the rate may exceed the
quota for a moment; then no more records are sent until the rate has come down.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from tailrace.model.ids import TopicId

NO_LIMIT: Final = 2**63 - 1
ALL_PARTITIONS: Final = None
"""The value in place of a set of partition numbers: every partition of the topic."""
LONGEST_HOLD_MS: Final = 1_000
"""The time after which a replica that is held back tries again, so that a raised limit takes effect, as in Kafka."""

Key = TypeVar("Key", bound=tuple[TopicId, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleConfig:
    """The window of both throttles, with Kafka's names and defaults."""

    replication_quota_window_num: int = 11
    """The number of samples in the window: all samples but the last are complete."""
    replication_quota_window_size_seconds: int = 1
    """The length of one sample in seconds."""


class ReplicationQuota:
    """The rate of some bytes in a sliding window, and its limit. Times are monotonic ms."""

    def __init__(self, config: ThrottleConfig) -> None:
        self._sample_ms = config.replication_quota_window_size_seconds * 1000
        self._window_ms = config.replication_quota_window_num * self._sample_ms
        self._samples: deque[list[int]] = deque()  # begin and bytes, the oldest first
        self._bytes = 0
        self.bytes_per_second = NO_LIMIT
        """The limit: the rate may be as high as this."""

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count these bytes."""
        self._drop_old(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= self._sample_ms:
            self._samples.append([now_ms, 0])
        self._samples[-1][1] += size_bytes
        self._bytes += size_bytes

    def rate(self, now_ms: int) -> float:
        """The bytes per second since the oldest sample began; the divisor is at least the time of one sample."""
        self._drop_old(now_ms)
        if not self._samples:
            return 0.0
        return self._bytes * 1000 / max(now_ms - self._samples[0][0], self._sample_ms)

    def exceeded_until_ms(self, now_ms: int) -> int | None:
        """The time at which the rate may be within the limit again; None if the rate is within the limit now.

        The calculation assumes that no bytes are counted meanwhile: then the rate falls until the oldest sample leaves
        the window.
        """
        if self.rate(now_ms) <= self.bytes_per_second:
            return None
        begin_ms = self._samples[0][0]
        leaves_ms = begin_ms + self._window_ms
        if not self.bytes_per_second:
            return leaves_ms
        return min(leaves_ms, begin_ms - (-self._bytes * 1000 // self.bytes_per_second))

    def _drop_old(self, now_ms: int) -> None:
        samples = self._samples
        while samples and now_ms - samples[0][0] >= self._window_ms:
            self._bytes -= samples.popleft()[1]


class ReplicationThrottle:
    """The replicas that a throttle holds back when their bytes exceed its quota."""

    def __init__(self, config: ThrottleConfig) -> None:
        self.quota: Final = ReplicationQuota(config)
        self._partitions: dict[TopicId, frozenset[int] | None] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no replica is throttled."""
        return not self._partitions

    def set_partitions(self, topic_id: TopicId, partitions: frozenset[int] | None) -> None:
        """Throttle these partitions of the topic, or `ALL_PARTITIONS`, and no other partition of the topic."""
        if partitions is not ALL_PARTITIONS and not partitions:
            self._partitions.pop(topic_id, None)
        else:
            self._partitions[topic_id] = partitions

    def is_throttled(self, topic_id: TopicId, partition: int) -> bool:
        """Whether the replica is throttled: its bytes count, and the replica can be held back while it is out of
        sync."""
        numbers = self._partitions.get(topic_id, frozenset())
        return numbers is ALL_PARTITIONS or partition in numbers

    def count(self, topic_id: TopicId, partition: int, size_bytes: int, now_ms: int) -> None:
        """Count the bytes of a throttled replica, also of a replica in sync."""
        if size_bytes and self._partitions and self.is_throttled(topic_id, partition):
            self.quota.record(size_bytes, now_ms)

    def throttled_among(self, partitions: Iterable[Key]) -> list[Key]:
        """The throttled partitions among `partitions`."""
        return [partition for partition in partitions if self.is_throttled(*partition)]

    def holds_until_ms(self, now_ms: int) -> int | None:
        """The time until which throttled replicas out of sync are held back, `LONGEST_HOLD_MS` ahead at most; None if
        nothing is held back."""
        until_ms = self.quota.exceeded_until_ms(now_ms) if self._partitions else None
        return None if until_ms is None else min(until_ms, now_ms + LONGEST_HOLD_MS)
