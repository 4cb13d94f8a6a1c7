"""Fetches that wait, as a `server.waiters.LongPoll`. They keep counts of readable bytes, and read again later."""

from collections.abc import Callable, Sequence

from tailrace.fetch_session.session import FetchSession
from tailrace.replication.outcomes import READ_COMMITTED
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Watcher
from tailrace.server.fetch.params import FetchParams
from tailrace.server.fetch.reading import FullReading, Reading, SessionReading
from tailrace.server.fetch.sessions import FetchSessions


class _Gain:
    """The bytes that have become readable since a reading: counted without access to the disk."""

    __slots__ = ("_available_bytes", "_has_key_ranges", "_params", "_readable_bytes", "_stable_ends")

    def __init__(self, reading: Reading) -> None:
        self._params = reading.params
        self._has_key_ranges = reading.has_key_ranges
        self._available_bytes = reading.available_bytes
        """The bytes of the reading within the limits, and those that have become readable since."""
        counted = () if reading.params.reader.is_replica else [partition for partition, _ in reading.given]
        self._readable_bytes = {partition: partition.readable_bytes for partition in counted}
        self._stable_ends: dict[Partition, int] = {}
        """The last stable offsets that were below the high watermark at the reading."""
        if self._params.isolation == READ_COMMITTED:
            for partition in counted:
                if partition.last_stable_offset < partition.high_watermark:
                    self._stable_ends[partition] = partition.last_stable_offset

    def may_be_enough(self, moved: Sequence[Partition]) -> bool:
        """Whether another reading can have enough bytes, now that these have changed."""
        if self._has_key_ranges:
            return bool(moved)
        is_of_replica = self._params.reader.is_replica
        for partition in moved:
            if is_of_replica or not partition.is_leader:
                return True
            if partition in self._stable_ends:
                if partition.last_stable_offset != self._stable_ends[partition]:
                    return True  # the bytes between the two are not counted
                continue
            readable_bytes = partition.readable_bytes
            gained = readable_bytes - self._readable_bytes.get(partition, readable_bytes)
            if not gained:
                return True  # within one write, or before the start of this node: not counted
            self._available_bytes += gained
            self._readable_bytes[partition] = readable_bytes
        return self._available_bytes >= self._params.wanted_bytes


class WaitingFetch:
    """A full fetch that waits: for changes of all partitions that it could read."""

    __slots__ = ("_answer", "_gain", "_params", "_partitions", "_watched_by", "is_of_replica", "watched")

    def __init__(self, first: FullReading, answer: Callable[[FullReading], None]) -> None:
        """`first` has too few bytes. `answer` sends the response of the reading that ends the wait."""
        self._params: FetchParams = first.params
        self._answer = answer
        self.is_of_replica = first.params.reader.is_replica
        self._watched_by: Watcher | None = None
        self._partitions: list[Partition] = []
        self._record(first)
        self.watched = len(self._partitions)

    def _record(self, reading: FullReading) -> None:
        partitions = [partition for partition, _ in reading.given]
        watcher = self._watched_by
        if partitions != self._partitions and watcher is not None:  # a topic was deleted, and made again
            self.unwatch(watcher)
            self._partitions = partitions
            self.watch(watcher)
        self._partitions = partitions
        self._gain = _Gain(reading)

    def watch(self, watcher: Watcher) -> None:
        if self._watched_by is not watcher:
            self._watched_by, kinds = watcher, self._params.watched_kinds
            for partition in self._partitions:
                partition.watch(watcher, kinds)

    def unwatch(self, watcher: Watcher) -> None:
        if self._watched_by is watcher:
            self._watched_by = None
            for partition in self._partitions:
                partition.unwatch(watcher)

    def retry(self, moved: Sequence[Partition], *, is_last: bool) -> bool:
        """Answer if enough has become readable since the last reading, the answer is urgent, or the time is over."""
        if not (is_last or self._gain.may_be_enough(moved)):
            return False
        reading = FullReading(self._params, is_last=is_last)
        if reading.ends_wait or is_last:
            self._answer(reading)
            return True
        self._record(reading)
        return False


class WaitingSession:
    """An incremental fetch that waits: for changes of its session, whose partitions stay watched.

    So it costs what has changed, however many partitions the session has.
    """

    __slots__ = ("_end_wait", "_gain", "_params", "_session", "_sessions", "is_of_replica", "watched")

    def __init__(
        self,
        first: SessionReading,
        session: FetchSession,
        *,
        sessions: FetchSessions,
        end_wait: Callable[[SessionReading], None],
    ) -> None:
        """`first` is not to be answered now. `end_wait` sends the response of the reading that ends the wait."""
        self._params: FetchParams = first.params
        self._session = session
        self._sessions = sessions
        self._end_wait = end_wait
        self.is_of_replica = first.params.reader.is_replica
        self.watched = 0  # the cache of sessions bounds their number
        self._gain = _Gain(first)

    def watch(self, watcher: Watcher) -> None:
        self._session.listener = watcher

    def unwatch(self, watcher: Watcher) -> None:
        if self._session.listener is watcher:
            self._session.listener = None

    def retry(self, moved: Sequence[Partition], *, is_last: bool) -> bool:
        """As `WaitingFetch.retry`; and end the wait if the session is closed, or another request of it has come."""
        refusal = self._sessions.refusal(self._session, self._params.request)
        if refusal is not None:
            self._params.context.respond(refusal)
            return True
        if not (is_last or self._gain.may_be_enough(moved)):
            return False
        reading = self._sessions.read(self._params, self._session, is_last=is_last)
        if is_last or self._sessions.may_answer(self._session, reading):
            self._end_wait(reading)
            return True
        self._gain = _Gain(reading)
        return False
