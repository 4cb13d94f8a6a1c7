"""The open transactions of one log, which hold back the last stable offset, and its index of aborted transactions
(KIP-98).

A reader of committed data gets the aborted transactions of the range it reads, and leaves their records out.
Entries are in the order of their markers, so `last_offset` rises; `last_stable_offset` never falls. The bytes of an
entry are Kafka's: version, producer id, first offset, marker's offset, last stable offset, big-endian. Unlike the other
indexes a missing `.txnindex` file is no sign of anything: most segments have no aborted transaction.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords


class CompletedTransaction(NamedTuple):
    """A transaction in this log that its producer's marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The marker's offset."""
    is_aborted: bool
    last_stable_offset: int
    """The start of the oldest transaction that was still open; the offset behind the marker if no transaction was
    open."""


class OngoingTransactions:
    """Open transactions by first offset; first offsets rise as transactions begin.

    An ended transaction goes on holding back the oldest until its marker is below the high watermark: only then can no
    change of leaders open the transaction again. Each move of the high watermark calls `forget_replicated`.
    """

    __slots__ = ("_open", "ended", "first_open_offset")

    def __init__(self, begun: Iterable[tuple[int, int]] = ()) -> None:
        """`begun`: the starts of the open transactions, and their producers."""
        self._open: dict[int, int] = dict(sorted(begun))  # first offset -> producer id
        self.ended: dict[int, int] = {}
        """First offset -> marker's offset, rising, of ended transactions that still hold back the stable offset."""
        self.first_open_offset: int | None = next(iter(self._open), None)
        """The start of the oldest open transaction."""

    def __bool__(self) -> bool:
        return bool(self._open or self.ended)

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    @property
    def oldest_producer_id(self) -> int | None:
        """The producer of the oldest open transaction."""
        return None if self.first_open_offset is None else self._open[self.first_open_offset]

    def begin(self, first_offset: int, producer_id: int) -> None:
        """Begin a producer's transaction here, after every known transaction."""
        self._open[first_offset] = producer_id
        if self.first_open_offset is None:
            self.first_open_offset = first_offset

    def end(self, first_offset: int, marker_offset: int) -> None:
        """Note that the transaction that began at `first_offset` has its marker."""
        del self._open[first_offset]
        self.ended[first_offset] = marker_offset
        if first_offset == self.first_open_offset:
            self.first_open_offset = next(iter(self._open), None)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The start of the oldest transaction that is open or whose marker is not below the high watermark."""
        self.forget_replicated(high_watermark)
        first = self.first_open_offset
        if self.ended:
            first_ended = min(self.ended)
            return first_ended if first is None or first_ended < first else first
        return first

    def forget_replicated(self, high_watermark: int) -> None:
        """Forget the ended transactions whose markers are below the high watermark: no cut can remove these markers."""
        if not self.ended:
            return
        replicated = []
        for first_offset, marker_offset in self.ended.items():
            if marker_offset >= high_watermark:
                break
            replicated.append(first_offset)
        for first_offset in replicated:
            del self.ended[first_offset]

    def restart(self, begun: Iterable[tuple[int, int]], *, end_offset: int) -> None:
        """Take these open transactions after a cut of the log at `end_offset`. Ended transactions stay if their markers
        lie below."""
        self._open = dict(sorted(begun))
        self.ended = {first: marker for first, marker in self.ended.items() if marker < end_offset}
        for first_offset in self._open:
            self.ended.pop(first_offset, None)
        self.first_open_offset = next(iter(self._open), None)


ENTRY_SIZE: Final = 34

_ENTRY: Final = Struct(">hqqqq")
_OFFSET: Final = Struct(">q")
_LAST_OFFSET_AT: Final = 18
_VERSION: Final = 0
_BLOCK_ENTRIES: Final = 256
"""The number of entries that are passed over together if no transaction of them begins early enough."""


class AbortedTxn(NamedTuple):
    """An aborted transaction of a producer."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The abort marker's offset."""
    last_stable_offset: int
    """The stable offset of the log right after the marker: no transaction that ends later begins below this offset."""


class TransactionIndex:
    """The aborted transactions of one segment."""

    __slots__ = ("_data", "_earliest", "is_dirty")

    def __init__(self) -> None:
        self._data = bytearray()
        self._earliest: list[int] = []
        """The smallest first offset of each block of entries."""
        self.is_dirty = False
        """Whether the file differs from memory."""

    def __len__(self) -> int:
        return len(self._data) // ENTRY_SIZE

    def __iter__(self) -> Iterator[AbortedTxn]:
        for _, *fields in _ENTRY.iter_unpack(self._data):
            yield AbortedTxn(*fields)

    def append(self, aborted: AbortedTxn) -> None:
        """Note a transaction. Does nothing unless its marker lies behind all noted markers."""
        at = len(self)
        if at and self._entry(at - 1).last_offset >= aborted.last_offset:
            return
        self._data += _ENTRY.pack(_VERSION, *aborted)
        if at % _BLOCK_ENTRIES:
            self._earliest[-1] = min(self._earliest[-1], aborted.first_offset)
        else:
            self._earliest.append(aborted.first_offset)
        self.is_dirty = True

    def note(self, completed: CompletedTransaction) -> None:
        """Append a transaction that is aborted by the marker just read."""
        self.append(
            AbortedTxn(
                completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
            )
        )

    def truncate(self, end_offset: int) -> None:
        """Forget the transactions whose markers are at this offset or above."""
        count = self._first_ending_at(end_offset)
        if count < len(self):
            kept = list(self)[:count]
            self._data.clear()
            self._earliest.clear()
            for aborted in kept:
                self.append(aborted)
            self.is_dirty = True

    def collect(self, offset: int, *, end_offset: int) -> tuple[list[AbortedTxn], bool]:
        """The transactions with records from `offset` on and below `end_offset`, and whether no later segment has such
        transactions.

        Costs the entries that are given, and a step per block of transactions that begin too late.
        """
        found: list[AbortedTxn] = []
        at, count = self._first_ending_at(offset), len(self)
        while at < count:
            block_end = min((at // _BLOCK_ENTRIES + 1) * _BLOCK_ENTRIES, count)
            if self._earliest[at // _BLOCK_ENTRIES] < end_offset:
                for entry in range(at, block_end):
                    aborted = self._entry(entry)
                    if aborted.first_offset < end_offset:
                        found.append(aborted)
                    if aborted.last_stable_offset >= end_offset:
                        return found, True
            elif self._entry(block_end - 1).last_stable_offset >= end_offset:
                return found, True
            at = block_end
        return found, False

    def _entry(self, at: int) -> AbortedTxn:
        return AbortedTxn(*_ENTRY.unpack_from(self._data, at * ENTRY_SIZE)[1:])

    def _first_ending_at(self, offset: int) -> int:
        """The number of the first entry whose marker is at this offset or above."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if _OFFSET.unpack_from(self._data, middle * ENTRY_SIZE + _LAST_OFFSET_AT)[0] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def to_bytes(self) -> bytes:
        """The `.txnindex` file."""
        return bytes(self._data)

    @classmethod
    def from_bytes(cls, data: bytes, *, base_offset: int) -> "TransactionIndex":
        """The index that `to_bytes` wrote, of the segment that starts at `base_offset`.

        Raises CorruptRecords for bytes that are no such index.
        """
        if len(data) % ENTRY_SIZE:
            raise CorruptRecords(f"{len(data)} bytes are no whole number of entries of {ENTRY_SIZE}")
        index = cls()
        earliest, previous, stable = index._earliest, base_offset - 1, -1
        for at, (version, producer_id, first, last, last_stable) in enumerate(_ENTRY.iter_unpack(data)):
            is_possible = version == _VERSION and producer_id >= 0 and 0 <= first < last and previous < last
            if not (is_possible and stable <= last_stable <= last + 1):
                raise CorruptRecords(f"entry {at} cannot be: a marker at {last}, after the marker at {previous}")
            previous, stable = last, last_stable
            if not at % _BLOCK_ENTRIES:
                earliest.append(first)
            elif first < earliest[-1]:
                earliest[-1] = first
        index._data += data
        return index


def aborted_transactions(data: bytes) -> Iterator[AbortedTxn]:
    """The entries of a `.txnindex` file, unchanged. Raises CorruptRecords."""
    if len(data) % ENTRY_SIZE:
        raise CorruptRecords(f"{len(data)} bytes are no whole number of entries of {ENTRY_SIZE}")
    for version, *fields in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise CorruptRecords(f"an entry of version {version}; only {_VERSION} is read")
        yield AbortedTxn(*fields)
