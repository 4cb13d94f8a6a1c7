"""Offsets that may be missing from a log: the bound that separates gaps from damage."""

from collections.abc import Callable
from typing import Final

from tailrace.storage.checkpoints import write_gap_bound
from tailrace.storage.epoch_cache import LAST_OFFSET
from tailrace.storage.file_system import FileSystem

UNKNOWN_GAPS: Final = -1
"""No gap bound is noted: the log was never compacted here, or another program has filled the directory."""
_MARGIN: Final = 1 << 20
"""Offsets by which a follower notes ahead that gaps are legal: a note for every batch would cost a sync per batch."""


class Gaps:
    """The gap bound of one log.

    A compaction removes records, and with them offsets. Elsewhere a missing offset is damage. One bound, in
    a file of the log's directory, separates the two: below it there may be gaps, whatever the topic's settings are now.
    """

    __slots__ = ("_directory", "_files", "bound")

    def __init__(self, directory: str, bound: int, *, files: FileSystem) -> None:
        self._directory = directory
        self._files = files
        self.bound = bound
        """UNKNOWN_GAPS if nothing is noted: then a compacted log may have gaps anywhere."""

    @property
    def is_known(self) -> bool:
        return self.bound != UNKNOWN_GAPS

    def allow(self, bound: int) -> None:
        """Note, durably, that gaps below this offset are legal, also for a recovery under other settings."""
        if bound > self.bound:
            write_gap_bound(self._files, self._directory, bound)
            self.bound = bound

    def accept(self, base_offset: int, end_offset: int, *, is_expected: bool, make_durable: Callable[[], None]) -> None:
        """Note durably that offsets are missing before a follower's batch that does not continue the log.

        `is_expected`: this log is compacted, or its leader's may have been. `make_durable` is called before gaps are
        legal further up, for the present batches: if a part of the batches is lost, the loss must not pass for a gap.
        """
        is_legal = base_offset > end_offset and (is_expected or base_offset <= self.bound)
        assert is_legal, f"{self._directory}: batch at offset {base_offset} appended at {end_offset}"
        if base_offset > self.bound:
            make_durable()
            self.allow(base_offset + _MARGIN)

    def limit(self, *, is_compacted: bool) -> int:
        """Offsets below this offset may be missing."""
        return LAST_OFFSET if is_compacted and not self.is_known else self.bound

    def is_legal_before(self, next_offset: int, *, is_compacted: bool) -> bool:
        """Whether offsets before `next_offset` may be missing."""
        return next_offset <= self.limit(is_compacted=is_compacted)
