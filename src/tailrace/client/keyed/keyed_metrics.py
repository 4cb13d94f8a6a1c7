"""The metrics of a keyed consumer."""

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.client.group.range_progress import RangeBudget
from tailrace.client.keyed.breaker import BreakerState
from tailrace.client.keyed.lanes import Failure, LaneWork
from tailrace.model.partitions import TopicPartition


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key of which the first record has failed or is to be retried, and was not done since."""

    topic_partition: TopicPartition
    offset: int
    key: bytes | None
    age_ms: int
    """The time since the key's first failure."""
    attempts: int
    fault: str
    """The last exception of the handler; empty if the handler returned Retry."""


def held_key(failure: Failure | None, now_ms: int) -> HeldKey | None:
    """The key with this failure; None without a failure."""
    if failure is None:
        return None
    age_ms = now_ms - failure.since_ms
    record = failure.record
    return HeldKey(failure.name, record.offset, record.key, age_ms, failure.attempts, failure.fault)


@dataclass(frozen=True, slots=True)
class RunningKey:
    """A key of which a record is with the handler."""

    topic_partition: TopicPartition
    offset: int
    key: bytes | None
    running_ms: int
    """The time since the begin of this attempt."""
    attempt: int


def running_key(work: LaneWork, now_ms: int) -> RunningKey:
    """The key of a record that the handler has now."""
    return RunningKey(work.name, work.record.offset, work.record.key, now_ms - work.began_ms, work.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedMetrics:
    """The present numbers of a keyed consumer; totals are counts since the consumer was made."""

    in_hand: int
    """Records that were read and are not done."""
    in_hand_bytes: int
    """The memory that the records in hand take, approximately."""
    running: int
    """Records that the handler has now."""
    held: int
    """Keys that wait for the time of a retry."""
    oldest_held: HeldKey | None
    """The key that has failed for the longest time without success since, whether it is held or runs again."""
    longest_running: RunningKey | None = None
    """The key whose record has been with the handler for the longest time; None: the handler has no record."""
    done_total: int
    """Done records, without skipped records."""
    skipped_total: int
    retried_total: int
    """Outcomes after which a record ran again: retries that the handler asked for, and its failures."""
    failed_total: int
    """Exceptions of the handler."""
    corrupt_batches_skipped_total: int = 0
    """Batches that could not be decoded, with on_corrupt="skip"."""
    breaker: BreakerState
    ranges: Mapping[TopicPartition, RangeBudget]
    """The rectangles of the group's progress, and the limit of the server; empty if the server keeps no rectangles."""
