"""The health of a log directory: its free space, and the replicas here while the directory cannot store.

While the disk is short of space, deleted topics, moved replicas and old segments are removed at once and not after
file.delete.delay.ms, and retention looks for more at each check: producers
wait for seconds when an administrator makes room.

While less than the reserve is free (decision 0045), producers are refused with KAFKA_STORAGE_ERROR. Topics can still be
deleted, old segments go, offsets are committed and metadata changes: such work writes little, or frees space. The
refusal ends when the reserve and a tenth more are free, so that it does not begin and end with every segment.

An append that fails for lack of space reports a disk that another program has filled (`report_full`). That state ends
when there is space and a file can be written: a quota may be full on a disk that is not.

While the directory cannot store, for lack of space or because a flush hangs, the replicas here leave
(`server.replicas.failures`), as far as enough other replicas are in sync, and replicas that have left are not fetched:
a leader would add an idle replica to the in-sync replicas that is complete by chance. When the last cause is over the
replicas are fetched again, catch up, and rejoin.
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
    """Less free space than the reserve, or none."""
    HUNG = "flush-hangs"
    """A round of flushes takes too long."""


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
        """Set or clear a cause. Does nothing if the cause is in this state already."""
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
        """0 bytes: no reserve. `apply_retention` begins a pass over all partitions, unless a pass is under way already;
        `on_change` gets whether space is short."""
        self._on_change = on_change
        self._was_short = False
        self._table = table
        self._apply_retention = apply_retention
        self._reserve_bytes = reserve_bytes
        self.is_reached = False
        """Whether producers are refused."""
        self.is_full = False
        """Whether an append has failed for lack of space, and there has been no space since."""

    def report_full(self) -> None:
        """Report an append that failed for lack of space."""
        if not self.is_full:
            self.is_full = True
            _logger.error("event=disk-full path=%s", self._table.directory.path)
            self._report()  # the next `check` may find space that another program has freed meanwhile

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
