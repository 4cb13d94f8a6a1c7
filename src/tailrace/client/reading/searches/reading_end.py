"""The end of the reading of a consumer without a group: an offset for each partition, from the setting `until`.

`end` and a time become offsets at the first poll, so that records written later have no part in the reading.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from tailrace.client.offsets import LATEST, OffsetAt, milliseconds_of, request_offsets
from tailrace.client.reader_settings import Until
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.searches.retried_search import RetriedSearch
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition


class ReadingEnd:
    """Gives each assigned partition its end. On its event loop only."""

    def __init__(self, router: Router, fetcher: Fetcher, until: Until, *, isolation_level: int) -> None:
        self._router = router
        self._fetcher = fetcher
        self._fetcher.assigned.has_end = True
        self._until = until
        self._isolation_level = isolation_level
        self._search = RetriedSearch(router, on_end=fetcher.wake)

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps the ends from being found, while the search is repeated."""
        return self._search.trouble

    @property
    def is_known(self) -> bool:
        """Whether each assigned partition has its end."""
        return not self._fetcher.assigned.endless

    @property
    def is_reached(self) -> bool:
        """Whether every record before the ends is returned."""
        return self._fetcher.assigned.are_at_end

    def advance(self) -> None:
        """Start a search for ends that are missing.

        Raises KafkaError for a fault of the last search that a retry does not cure; INVALID_REQUEST for a partition
        that `until` does not name.
        """
        fault = self._search.take_fault()
        if fault is not None:
            raise fault
        endless = self._fetcher.assigned.endless
        if endless:
            self._search.start_if_due(partial(self._find, endless))

    def next_due_ms(self, deadline_ms: int) -> int:
        """The time of the next search, at most the deadline."""
        return deadline_ms if self.is_known else self._search.next_due_ms(deadline_ms)

    def cancel(self) -> None:
        """Cancel the search."""
        self._search.cancel()

    async def _find(self, names: tuple[TopicPartition, ...]) -> None:
        until = self._until
        if isinstance(until, int):
            self._end_at(dict.fromkeys(names, until))
        elif isinstance(until, Mapping):
            missing = [name for name in names if name not in until]
            if missing:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"until has no offset for {missing[0]}, which is read")
            self._end_at({name: until[name] for name in names})
        elif isinstance(until, datetime):
            await self._find_time(names, milliseconds_of(until))
        else:
            await self._ask(dict.fromkeys(names, LATEST))

    async def _find_time(self, names: tuple[TopicPartition, ...], time_ms: int) -> None:
        """End at the first record of this time or later, and without such a record at the end of the log."""
        later: dict[TopicPartition, int] = {}

        def take(found: Mapping[TopicPartition, OffsetAt]) -> None:
            self._end_at({name: listed.offset for name, listed in found.items() if listed.offset >= 0})
            later.update({name: LATEST for name, listed in found.items() if listed.offset < 0})

        faults = await request_offsets(
            self._router, dict.fromkeys(names, time_ms), take, isolation_level=self._isolation_level
        )
        await self._ask(later)
        _raise_worst(faults)

    async def _ask(self, specs: Mapping[TopicPartition, int]) -> None:
        def take(found: Mapping[TopicPartition, OffsetAt]) -> None:
            self._end_at({name: listed.offset for name, listed in found.items()})

        if specs:
            _raise_worst(await request_offsets(self._router, specs, take, isolation_level=self._isolation_level))

    def _end_at(self, ends: Mapping[TopicPartition, int]) -> None:
        for name, end in ends.items():
            self._fetcher.assigned.end_at(name, end)


def _raise_worst(faults: Mapping[TopicPartition, KafkaError]) -> None:
    """Raise a fault, if there is any: first a fault that a retry does not cure."""
    if faults:
        raise min(faults.values(), key=lambda fault: fault.retriable)
