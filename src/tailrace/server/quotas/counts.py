"""The counts of clients that quotas are about, in bounded memory (pure)."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

C = TypeVar("C")

ClientKey = tuple[str, str]
"""A user and a client id; an empty part: all users, or all client ids of the user, share the count."""
MOST_COUNTS: Final = 5_000
"""The most counts of a quota."""
IDLE_MS: Final = 3_600_000
"""The time after which an unused count is dropped, as in Kafka."""


class QuotaCounts(Generic[C]):
    """A count for each client, made when it is first used. Beyond `MOST_COUNTS` the count that was unused for the
    longest time is dropped."""

    def __init__(self, new: Callable[[], C]) -> None:
        self._new = new
        self._counts: OrderedDict[ClientKey, tuple[C, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, key: ClientKey, now_ms: int, new: Callable[[], C] | None = None) -> C:
        """The count of a client; `new` makes the count in place of the constructor's function."""
        found = self._counts.get(key)
        if found is None:
            self.drop_idle(now_ms)
            if len(self._counts) >= MOST_COUNTS:
                self._counts.popitem(last=False)
            count = (new or self._new)()
        else:
            count = found[0]
        self._counts[key] = (count, now_ms)
        self._counts.move_to_end(key)
        return count

    def drop_idle(self, now_ms: int) -> None:
        """Drop the counts that were not used for `IDLE_MS`."""
        while self._counts:
            key, (_, used_ms) = next(iter(self._counts.items()))
            if now_ms - used_ms < IDLE_MS:
                return
            del self._counts[key]

    def items(self) -> Iterator[tuple[ClientKey, C]]:
        """The clients and their counts, for metrics."""
        return ((key, count) for key, (count, _) in self._counts.items())
