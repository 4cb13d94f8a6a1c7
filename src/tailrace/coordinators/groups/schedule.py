"""When which group must be looked at again."""

import heapq


class Schedule:
    """The groups by their next deadlines. A deadline that was replaced stays in the heap until it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._deadlines: dict[str, int] = {}

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

    def take_due(self, now_ms: int) -> list[str]:
        """The groups whose deadline has passed; they have none afterwards."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, group_id = heapq.heappop(self._heap)
            if self._deadlines.get(group_id) == deadline_ms:
                del self._deadlines[group_id]
                due.append(group_id)
        return due
