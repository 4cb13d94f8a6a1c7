"""What is done to every partition of a table now and then: retention, flushes by age, forgetting idle producers.

There may be 100,000 partitions: a round takes a few milliseconds of each turn until it is through.
"""

import logging
from collections.abc import Iterator
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.replication.partition import Partition
from tailrace.server.partitions.deletion_log import DeletionLog
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock
from tailrace.server.slices import run_in_slices

_NEVER: Final = 2**63 - 1

_logger = logging.getLogger("tailrace.server")


class Rounds:
    """The rounds through one table. Who calls them decides when; several may be under way."""

    def __init__(self, table: PartitionTable, *, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._deletions = DeletionLog(clock)
        self._unflushed_since_ms: dict[Partition, int] = {}

    def apply_retention(self) -> None:
        """Let old segments go. Partitions that sleep are woken for it, if they have any."""
        run_in_slices(self._retention(), self._clock)

    def expire_producers(self, expiration_ms: int) -> None:
        """Forget idempotent producers that have been silent this long, and those that began a transaction and left."""
        run_in_slices(self._expiration(expiration_ms), self._clock)

    def flush_by_age(self) -> None:
        """Flush the logs that have waited for flush.ms. For page-cache durability: otherwise nothing waits."""
        now_ms = self._clock.monotonic_ms()
        waiting: dict[Partition, int] = {}
        for partition in self._table:
            log, flush_ms = partition.log, partition.config.flush_ms
            if log.flushed_offset == log.log_end_offset or flush_ms == _NEVER or log.is_offline:
                continue
            since_ms = self._unflushed_since_ms.get(partition, now_ms)
            if now_ms - since_ms >= flush_ms:
                partition.sync(lambda: None)
            else:
                waiting[partition] = since_ms
        self._unflushed_since_ms = waiting

    def _retention(self) -> Iterator[None]:
        for partition in self._table:
            self._retire(partition)
            yield
        for topic_partition, dormant in self._table.dormant:
            if dormant.has_old_segments:
                woken = self._table.find(*topic_partition)
                if woken is not None:
                    self._retire(woken)
            yield

    def _retire(self, partition: Partition) -> None:
        try:
            if not partition.is_closed:
                log_start_offset = partition.log.log_start_offset
                retired = partition.apply_retention(self._clock.now_ms())
                self._deletions.retired(partition, log_start_offset, retired)
        except KafkaError as fault:
            _logger.warning("event=retention-failed partition=%s fault=%s", partition.topic_partition, fault)

    def _expiration(self, expiration_ms: int) -> Iterator[None]:
        for partition in self._table:
            if not partition.is_closed:
                partition.log.producers.expire(self._clock.now_ms(), expiration_ms=expiration_ms)
                partition.verifications.forget_idle()
            yield
