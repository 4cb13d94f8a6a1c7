"""The transactions of one log that hold back its last stable offset: those that are open, and those just ended.

One that has ended goes on holding it back until its marker is below the high watermark: only then no change of leaders
can open it again. Whoever moves the high watermark says so (`forget_replicated`).
"""

from collections.abc import Iterable
from typing import NamedTuple


class CompletedTransaction(NamedTuple):
    """A producer's transaction in this log, as its marker has ended it."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the marker."""
    is_aborted: bool
    last_stable_offset: int
    """Where the oldest transaction that was open then begins; behind the marker if there was none."""


class Transactions:
    """By their first offsets, which rise as transactions begin."""

    __slots__ = ("_ended", "_open", "first_open_offset")

    def __init__(self, begun: Iterable[tuple[int, int]] = ()) -> None:
        """`begun`: where those that are open now begin, and who their producers are."""
        self._open: dict[int, int] = dict(sorted(begun))  # first offset -> producer id
        self._ended: dict[int, int] = {}  # first offset -> the marker's, which rise
        self.first_open_offset: int | None = next(iter(self._open), None)
        """Where the oldest open transaction begins."""

    def __bool__(self) -> bool:
        return bool(self._open or self._ended)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def oldest_producer_id(self) -> int | None:
        """Whose the oldest open transaction is."""
        return None if self.first_open_offset is None else self._open[self.first_open_offset]

    def begin(self, first_offset: int, producer_id: int) -> None:
        """A producer's transaction begins here, after all others."""
        self._open[first_offset] = producer_id
        if self.first_open_offset is None:
            self.first_open_offset = first_offset

    def end(self, first_offset: int, marker_offset: int) -> None:
        """The transaction that began at `first_offset` has its marker."""
        del self._open[first_offset]
        self._ended[first_offset] = marker_offset
        if first_offset == self.first_open_offset:
            self.first_open_offset = next(iter(self._open), None)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the oldest transaction begins that is open or whose marker is not below the high watermark."""
        self.forget_replicated(high_watermark)
        first = self.first_open_offset
        if self._ended:
            first_ended = min(self._ended)
            return first_ended if first is None or first_ended < first else first
        return first

    def forget_replicated(self, high_watermark: int) -> None:
        """The markers below the high watermark are there for good."""
        if not self._ended:
            return
        replicated = []
        for first_offset, marker_offset in self._ended.items():
            if marker_offset >= high_watermark:
                break
            replicated.append(first_offset)
        for first_offset in replicated:
            del self._ended[first_offset]

    def restart(self, begun: Iterable[tuple[int, int]], *, end_offset: int) -> None:
        """The log ends here now, and these transactions are open."""
        self._open = dict(sorted(begun))
        self._ended = {first: marker for first, marker in self._ended.items() if marker < end_offset}
        for first_offset in self._open:
            self._ended.pop(first_offset, None)
        self.first_open_offset = next(iter(self._open), None)
