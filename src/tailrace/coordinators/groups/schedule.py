"""When which group must be looked at again."""

import heapq
from typing import Final

_SPARE_ENTRIES: Final = 64


class Schedule:
    """The groups by their next deadlines.

    A deadline that was replaced stays in the heap until it comes up, or there are too many of them.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._deadlines: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of entries it keeps: at most twice as many as there are deadlines, and some."""
        return len(self._heap)

    @property
    def next_deadline_ms(self) -> int | None:
        """Not later than the earliest deadline."""
        return self._heap[0][0] if self._heap else None

    def set(self, group_id: str, deadline_ms: int | None) -> None:
        """This is its deadline now; None: it has none."""
        if deadline_ms is None:
            self._deadlines.pop(group_id, None)
        elif self._deadlines.get(group_id) != deadline_ms:
            self._deadlines[group_id] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, group_id))
            if len(self._heap) > 2 * len(self._deadlines) + _SPARE_ENTRIES:
                self._drop_old_entries()

    def _drop_old_entries(self) -> None:
        """Groups that come and go do not pile up: what is dropped has paid for it."""
        self._heap = [(deadline_ms, group_id) for group_id, deadline_ms in self._deadlines.items()]
        heapq.heapify(self._heap)

    def take_due(self, now_ms: int) -> list[str]:
        """The groups whose deadline has passed; they have none afterwards."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, group_id = heapq.heappop(self._heap)
            if self._deadlines.get(group_id) == deadline_ms:
                del self._deadlines[group_id]
                due.append(group_id)
        return due
