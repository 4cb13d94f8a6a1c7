"""Keeps some of the disk free, so that a full one can be got out of (DESIGN 2.11).

When less is free than the reserve, producers are refused with KAFKA_STORAGE_ERROR; topics can still be deleted, old
segments go, offsets are committed and metadata changes: all of that writes little, or frees space. It ends by itself
once there is room again, and a tenth of the reserve more: so that it does not begin and end with every segment.
"""

import logging
from collections.abc import Callable

from tailrace.model.errors import KafkaError
from tailrace.server.data.partitions import PartitionTable

_logger = logging.getLogger("tailrace.server")


class DiskReserve:
    """Watches the disk of one table. `check` is called often; it costs one system call."""

    def __init__(self, table: PartitionTable, *, reserve_bytes: int, apply_retention: Callable[[], None]) -> None:
        """0 bytes: no reserve. `apply_retention` is to make room at once."""
        self._table = table
        self._apply_retention = apply_retention
        self._reserve_bytes = reserve_bytes
        self.is_reached = False
        """Whether producers are refused."""

    def check(self) -> None:
        """See how much is free, and begin or end to refuse producers."""
        if not self._reserve_bytes:
            return
        try:
            free_bytes = self._table.directory.free_bytes
        except KafkaError as fault:
            _logger.warning("event=disk-space-unknown fault=%s", fault)
            return
        if not self.is_reached and free_bytes < self._reserve_bytes:
            self._begin(free_bytes)
        elif self.is_reached and free_bytes >= self._reserve_bytes + self._reserve_bytes // 10:
            self.is_reached = False
            self._table.refuse_produce(None)
            _logger.warning("event=disk-reserve-left free_bytes=%d action=produce-accepted", free_bytes)

    def _begin(self, free_bytes: int) -> None:
        self.is_reached = True
        _logger.error(
            "event=disk-reserve-reached path=%s free_bytes=%d reserve_bytes=%d action=produce-refused",
            self._table.directory.path,
            free_bytes,
            self._reserve_bytes,
        )
        self._table.refuse_produce(
            f"the broker's disk has less than {self._reserve_bytes} bytes left (log.dir.reserve.bytes); produce is"
            " refused until there is room: delete topics, lower retention.ms, or enlarge the disk"
        )
        self._apply_retention()
