"""The health of a log directory: its free space, and the replicas here while the directory cannot store.

While the disk is short of space, deleted topics, moved replicas and old segments are removed at once and not after
file.delete.delay.ms, and each check begins a pass of retention: so producers wait only for seconds after an
administrator has made room.

While less than the reserve is free (decision 0045), producers are refused with KAFKA_STORAGE_ERROR. Topics can still be
deleted, old segments go, offsets are committed and metadata changes: such work writes little, or frees space. The
refusal ends when the reserve and a tenth more are free, so that the refusal does not begin and end with every segment.

An append that fails for lack of space reports a full disk, which another program may have filled (`report_full`). This
state ends when there is space and a file can be written: a quota may be full while the disk has space.

While the directory cannot store, for lack of space or because a flush hangs, the replicas here leave
(`server.replicas.failures`), as far as enough other replicas are in sync, and replicas that have left are not fetched:
otherwise a leader would add an idle replica, which happens to be complete, to the in-sync replicas. When the last cause
is over, the replicas are fetched again, catch up, and rejoin.
"""

import logging
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from tailrace.model.errors import KafkaError
from tailrace.server.partitions.table import PartitionTable

_logger = logging.getLogger("tailrace.server")


class StallCause(Enum):
    """The reason why a log directory cannot store."""

    FULL = "disk-full"
    """There is less free space than the reserve, or no free space."""
    HUNG = "flush-hangs"
    """A round of flushes has been stalled for too long."""


class Replicas(Protocol):
    """The failures of this node's replicas: `server.replicas.failures.ReplicaFailures`."""

    def directory_stalled(self) -> None: ...

    def directory_recovered(self) -> None: ...


class Fetching(Protocol):
    """The fetches from leaders: `server.replicas.fetchers.ReplicaFetchers`."""

    def fetch_only_in_sync(self, only: bool, /) -> None: ...


class LogDirectoryHealth:
    """The health of one log directory; every change is one log line."""

    def __init__(self, path: str, *, replicas: Replicas, fetching: Fetching) -> None:
        self._path = path
        self._replicas = replicas
        self._fetching = fetching
        self._causes: dict[StallCause, None] = {}

    @property
    def is_stalled(self) -> bool:
        """Whether the directory cannot store now."""
        return bool(self._causes)

    def set_stalled(self, cause: StallCause, is_stalled: bool) -> None:
        """Set or clear a cause. Does nothing without a change."""
        if (cause in self._causes) is is_stalled:
            return
        was_stalled = self.is_stalled
        if is_stalled:
            self._causes[cause] = None
            _logger.error("event=log-directory-stalled path=%s cause=%s action=replicas-leave", self._path, cause.value)
        else:
            del self._causes[cause]
            _logger.warning(
                "event=log-directory-recovered path=%s cause=%s stalled=%s", self._path, cause.value, self.is_stalled
            )
        if self.is_stalled is not was_stalled:
            self._fetching.fetch_only_in_sync(self.is_stalled)
            if self.is_stalled:
                self._replicas.directory_stalled()
            else:
                self._replicas.directory_recovered()


_FREE_AGAIN_BYTES: Final = 1 << 20
"""The free space that ends a full disk where no reserve is kept."""


class DiskReserve:
    """The watch on the free space of one table's disk. `check` is called often; it costs one system call."""

    def __init__(
        self,
        table: PartitionTable,
        *,
        reserve_bytes: int,
        apply_retention: Callable[[], None],
        on_change: Callable[[bool], None],
    ) -> None:
        """A size of 0 bytes means no reserve. `apply_retention` begins a pass over all partitions, unless a pass is
        under way already; `on_change` gets whether space is short."""
        self._on_change = on_change
        self._was_short = False
        self._table = table
        self._apply_retention = apply_retention
        self._reserve_bytes = reserve_bytes
        self.is_reached = False
        """Whether producers are refused."""
        self.is_full = False
        """Whether an append has failed for lack of space, and no later check has found space."""

    def report_full(self) -> None:
        """Report an append that failed for lack of space."""
        if not self.is_full:
            self.is_full = True
            _logger.error("event=disk-full path=%s", self._table.directory.path)
            self._report()  # report now: the next `check` may already find space that another program has freed

    def check(self) -> None:
        """Compare the free space with the reserve, and begin or end the refusal of producers."""
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
        if self.is_full and free_bytes >= max(_FREE_AGAIN_BYTES, self._reserve_bytes + self._reserve_bytes // 10):
            self.is_full = not self._table.directory.can_write(_FREE_AGAIN_BYTES)
        self._report()
        if self._was_short:
            self._apply_retention()  # settings may have been lowered, and log starts raised, to make room

    def _report(self) -> None:
        is_short = self.is_reached or self.is_full
        if is_short is not self._was_short:
            self._was_short = is_short
            self._table.set_short_of_space(is_short)
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
            " refused until there is space: delete topics, lower retention.ms, or enlarge the disk"
        )
