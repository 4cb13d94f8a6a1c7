"""Stretches without records of a view partition: where its readers may go on (decision 0057). Pure.

A reader that knows nothing of key ranges names the offset behind its last record again and again, while nothing is
found. Few readers share a view partition, so a few stretches of each are enough. A forgotten one is scanned again.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

MOST_STRETCHES: Final = 4
"""Of one view partition."""
MOST_VIEW_PARTITIONS: Final = 50_000
"""View partitions with stretches."""


class ScannedOffsets:
    """The stretches of all view partitions. These are known by a key that a log which is cut does not keep."""

    def __init__(self) -> None:
        self._stretches: OrderedDict[Hashable, OrderedDict[int, int]] = OrderedDict()
        """The ends of stretches by their starts; both levels in the order of their use."""

    def __len__(self) -> int:
        """The number of view partitions."""
        return len(self._stretches)

    def after(self, where: Hashable, offset: int) -> int:
        """The offset up to which there are no records from this one on, as far as is known."""
        stretches = self._stretches.get(where)
        if stretches is None or offset not in stretches:
            return offset
        stretches.move_to_end(offset)
        self._stretches.move_to_end(where)
        return stretches[offset]

    def keep(self, where: Hashable, start: int, end: int) -> None:
        """There are no records from `start` up to, not including, `end`."""
        if end <= start:
            return
        stretches = self._stretches.setdefault(where, OrderedDict())
        stretches[start] = max(end, stretches.get(start, end))
        stretches.move_to_end(start)
        self._stretches.move_to_end(where)
        if len(stretches) > MOST_STRETCHES:
            stretches.popitem(last=False)
        if len(self._stretches) > MOST_VIEW_PARTITIONS:
            self._stretches.popitem(last=False)
