"""Keeps some of the disk free, so that a full one can be got out of (decision 0045).

When less is free than the reserve, producers are refused with KAFKA_STORAGE_ERROR; topics can still be deleted, old
segments go, offsets are committed and metadata changes: all of that writes little, or frees space. It ends by itself
once there is room again, and a tenth of the reserve more: so that it does not begin and end with every segment.

A disk that was filled to the last byte, which takes no time if another program writes to it, is noticed by the append
that fails (`note_full`). That ends when there is room and a file can be written: a quota may be full on a
disk that is not. Either way `on_change` reports that this node is short of room: others should lead.
"""

import logging
from collections.abc import Callable
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.server.partitions.table import PartitionTable

_ROOM_BYTES: Final = 1 << 20
"""So much must be free after a full disk where no reserve is kept."""

_logger = logging.getLogger("tailrace.server")


class DiskReserve:
    """Watches the disk of one table. `check` is called often; it costs one system call."""

    def __init__(
        self,
        table: PartitionTable,
        *,
        reserve_bytes: int,
        apply_retention: Callable[[], None],
        on_change: Callable[[bool], None] = lambda is_short: None,
    ) -> None:
        """0 bytes: no reserve. `apply_retention` is to make room at once; `on_change` gets whether room is short."""
        self._on_change = on_change
        self._was_short = False
        self._table = table
        self._apply_retention = apply_retention
        self._reserve_bytes = reserve_bytes
        self.is_reached = False
        """Whether producers are refused."""
        self.is_full = False
        """Whether something could not be appended, and there has been no room since."""

    def note_full(self) -> None:
        """There was no room for something."""
        if not self.is_full:
            self.is_full = True
            _logger.error("event=disk-full path=%s", self._table.directory.path)
            self._tell()  # `check` comes soon by itself, and would find the room that another program has just freed

    def check(self) -> None:
        """See how much is free, and begin or end to refuse producers."""
        if not self._reserve_bytes and not self.is_full:
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
        if self.is_full and free_bytes >= max(_ROOM_BYTES, self._reserve_bytes + self._reserve_bytes // 10):
            self.is_full = not self._table.directory.takes(_ROOM_BYTES)
        self._tell()

    def _tell(self) -> None:
        is_short = self.is_reached or self.is_full
        if is_short is not self._was_short:
            self._was_short = is_short
            self._on_change(is_short)

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
