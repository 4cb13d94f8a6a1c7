"""Fetches that wait, as a `server.waiters.LongPoll`. A waiting fetch counts readable bytes, and reads again later.

A long pass is made in steps, in slices of several turns (`server.slices`). A change between two slices is remembered:
if the pass does not end the wait, the fetch reads again. If the wait ends between two slices, the pass is finished, and
the last pass follows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from tailrace.fetch_session.session import FetchSession
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.fetch import FetchResponse
from tailrace.replication.outcomes import READ_COMMITTED
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change, Watcher
from tailrace.server.fetch.params import FetchParams
from tailrace.server.fetch.reading import FullReading, Reading, SessionReading
from tailrace.server.fetch.sessions import FEW, FetchSessions
from tailrace.server.slices import Slices

_COUNTED: Final = Change.LOG_END | Change.HIGH_WATERMARK | Change.LAST_STABLE_OFFSET
"""The kinds of changes that only add readable bytes. Any other kind may mean an error, or another replica to read
from."""

Moved = Mapping[Partition | None, int]
"""The partitions that have changed, with the kinds of their changes. The key None stands for any other reason to read
again."""


class _Gain:
    """The bytes that have become readable since a reading: counted without access to the disk."""

    __slots__ = ("_available_bytes", "_has_key_ranges", "_params", "_readable_bytes", "_stable_ends")

    def __init__(self, reading: Reading) -> None:
        self._params = reading.params
        self._has_key_ranges = reading.has_key_ranges
        self._available_bytes = reading.available_bytes
        """The bytes of the reading within the limits, and the bytes that have become readable since."""
        counted = () if reading.params.reader.is_replica else [partition for partition, _ in reading.given]
        self._readable_bytes = {partition: partition.readable_bytes for partition in counted}
        self._stable_ends: dict[Partition, int] = {}
        """The last stable offsets that were below the high watermark at the reading."""
        if self._params.isolation == READ_COMMITTED:
            for partition in counted:
                if partition.last_stable_offset < partition.high_watermark:
                    self._stable_ends[partition] = partition.last_stable_offset

    def may_be_enough(self, moved: Moved) -> bool:
        """Whether a new reading may have enough bytes, or may be urgent, after these partitions have changed."""
        if self._has_key_ranges:
            return bool(moved)
        is_from_replica = self._params.reader.is_replica
        for partition, kinds in moved.items():
            if partition is None or is_from_replica or not partition.is_leader or kinds & ~_COUNTED:
                return True
            if partition in self._stable_ends:
                if partition.last_stable_offset != self._stable_ends[partition]:
                    return True  # the bytes between the two offsets are not counted
                continue
            readable_bytes = partition.readable_bytes
            gained = readable_bytes - self._readable_bytes.get(partition, readable_bytes)
            if not gained:
                return True  # within a write, or from before the start of this node
            self._available_bytes += gained
            self._readable_bytes[partition] = readable_bytes
        return self._available_bytes >= self._params.limits.wanted_bytes


R = TypeVar("R", FullReading, SessionReading)
Answer = Callable[[R], None]
AnswerInSteps = Callable[[R], Iterator[None]]


class _WaitingRequest(ABC, Generic[R]):
    """A fetch that waits, or that is parked before a long first pass."""

    __slots__ = (
        "_answer",
        "_answer_in_steps",
        "_gain",
        "_has_answered",
        "_is_over",
        "_is_reading",
        "_moved",
        "_params",
        "_slices",
        "_watched_by",
        "is_from_replica",
        "replica_id",
        "watched",
    )

    def __init__(
        self, params: FetchParams, first: R | None, answer: Answer[R], answer_in_steps: AnswerInSteps[R], slices: Slices
    ) -> None:
        """`first`: the first pass, which does not end the wait; None before that pass. `answer` sends the response of
        the pass that ends the wait, `answer_in_steps` the response of a long pass."""
        self._params = params
        self._answer: Answer[R] = answer
        self._answer_in_steps: AnswerInSteps[R] = answer_in_steps
        self._slices = slices
        self._gain = None if first is None else _Gain(first)
        self._watched_by: Watcher | None = None
        self._is_reading = False
        """Whether a long pass is under way, or waits for its first slice."""
        self._is_over = False
        """Whether the wait has ended during the long pass."""
        self._moved: dict[Partition | None, int] = {}
        """The changes during the long pass."""
        self._has_answered = False
        self.is_from_replica = params.reader.is_replica
        self.replica_id = params.sender.replica_id
        self.watched = 0

    def retry(self, moved: Moved, *, is_last: bool) -> bool:
        """Answer if enough has become readable since the last pass, the answer is urgent, or the time is over.

        A long pass answers later. Returns True if the fetch needs no further notices of changes.
        """
        if self._has_answered:
            return True
        if self._is_reading:
            self._is_over |= is_last
            for partition, kinds in moved.items():
                self._moved[partition] = self._moved.get(partition, 0) | kinds
            return is_last
        if self._is_refused():
            return True
        if not (is_last or self._gain is None or self._gain.may_be_enough(moved)):
            return False
        if self._is_long():
            self.read_in_slices(is_last=is_last)
            return is_last or self._has_answered
        reading = self._read_now(is_last=is_last)
        if is_last or self._ends_wait(reading):
            self._answer(reading)
            return True
        self._record(reading)
        return False

    def read_in_slices(self, *, is_last: bool) -> None:
        """Make a long pass by `read_in_steps`; the first slice may have to wait."""
        self._is_reading, self._is_over = True, is_last
        self._slices.begin(self._read_late())

    def _read_late(self) -> Iterator[None]:
        if not self._is_refused():
            yield from self.read_in_steps(is_last=self._is_over)
            return
        self._is_reading, self._has_answered = False, True
        if self._watched_by is not None:
            self._watched_by.changed(None, 0)  # the poll is over

    def read_in_steps(self, *, is_last: bool) -> Iterator[None]:
        """Make a long pass, and answer if it ends the wait. Meanwhile the connection takes no other request."""
        connection, self._is_reading = self._params.context.connection, True
        connection.suspend()
        self._begin_pass()
        try:
            while True:
                reading = self._new_reading(is_last=is_last)
                for _ in self._steps(reading):
                    if not connection.is_open:
                        return
                    yield
                self._was_read()
                if is_last or self._ends_wait(reading):
                    yield from self._answer_in_steps(reading)
                    self._has_answered = True
                    return
                self._record(reading)
                is_last, moved, self._moved = self._is_over, self._moved, {}
                if not (is_last or (moved and self._gain is not None and self._gain.may_be_enough(moved))):
                    return
        except Exception:
            self._has_answered = True
            self._broke_off()
            raise
        finally:
            self._is_reading = False
            self._end_pass()
            connection.go_on()
            if self._has_answered and self._watched_by is not None:
                self._watched_by.changed(None, 0)  # the poll is over

    # The parts in which full and incremental fetches differ

    @abstractmethod
    def _read_now(self, *, is_last: bool) -> R:
        """A pass in this turn."""

    @abstractmethod
    def _new_reading(self, *, is_last: bool) -> R:
        """A long pass that has read nothing yet."""

    @abstractmethod
    def _steps(self, reading: R) -> Iterator[None]:
        """The steps of a long pass."""

    @abstractmethod
    def _is_long(self) -> bool:
        """Whether a pass is too long for a turn."""

    @abstractmethod
    def _ends_wait(self, reading: R) -> bool:
        """Whether the pass ends the wait before its time."""

    def _is_refused(self) -> bool:
        return False

    def _record(self, reading: R) -> None:
        self._gain = _Gain(reading)

    def _begin_pass(self) -> None:
        pass

    def _was_read(self) -> None:
        self._params.reader.mark_recorded()

    def _end_pass(self) -> None:
        pass

    def _broke_off(self) -> None:
        """Answer, after a fault of this program."""
        answer_fault(self._params)


class WaitingFetch(_WaitingRequest[FullReading]):
    """A full fetch that waits: for changes of all partitions that it could read."""

    __slots__ = ("_partitions", "_reading", "_registered")

    def __init__(
        self,
        params: FetchParams,
        first: FullReading | None,
        *,
        answer: Answer[FullReading],
        answer_in_steps: AnswerInSteps[FullReading],
        slices: Slices,
    ) -> None:
        super().__init__(params, first, answer, answer_in_steps, slices)
        self._partitions = [] if first is None else [partition for partition, _ in first.given]
        self._reading: FullReading | None = None
        self._registered: Watcher | None = None
        """The watcher that the pass under way has registered."""
        self.watched = len(self._partitions) if first is not None else _count(params)

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

    def _read_now(self, *, is_last: bool) -> FullReading:
        return FullReading(self._params, is_last=is_last).read()

    def _new_reading(self, *, is_last: bool) -> FullReading:
        self._end_pass()  # the pass before
        self._registered = None if is_last else self._watched_by
        self._reading = FullReading(self._params, is_last=is_last)
        return self._reading

    def _steps(self, reading: FullReading) -> Iterator[None]:
        return reading.steps(self._registered)

    def _is_long(self) -> bool:
        return _count(self._params) > FEW

    def _ends_wait(self, reading: FullReading) -> bool:
        return reading.ends_wait

    def _record(self, reading: FullReading) -> None:
        super()._record(reading)
        partitions, watcher = [partition for partition, _ in reading.given], self._watched_by
        if partitions != self._partitions and watcher is not None:  # the first pass, or a topic was created again
            gone, kinds = set(self._partitions).difference(partitions), self._params.watched_kinds
            for partition in gone:
                partition.unwatch(watcher)
            if self._registered is None:
                for partition in partitions:
                    partition.watch(watcher, kinds)
        self._partitions = partitions

    def _end_pass(self) -> None:
        """Remove the watcher of the pass: the poll may have ended during the pass, which has registered the watcher
        since."""
        reading, registered = self._reading, self._registered
        self._reading = self._registered = None
        if reading is not None and registered is not None:
            if self._watched_by is registered:
                self._partitions = list({*self._partitions, *(partition for partition, _ in reading.given)})
                return
            for partition, _ in reading.given:
                partition.unwatch(registered)


class WaitingSession(_WaitingRequest[SessionReading]):
    """An incremental fetch that waits: for changes of its session, whose partitions stay watched.

    So the cost of the wait grows with the changes, not with the partitions of the session.
    """

    __slots__ = ("_began_ms", "_session", "_sessions")

    def __init__(
        self,
        params: FetchParams,
        first: SessionReading | None,
        session: FetchSession,
        *,
        sessions: FetchSessions,
        answer: Answer[SessionReading],
        answer_in_steps: AnswerInSteps[SessionReading],
        slices: Slices,
    ) -> None:
        super().__init__(params, first, answer, answer_in_steps, slices)
        self._session = session
        self._sessions = sessions  # the cache of sessions bounds the number of watches
        self._began_ms = 0

    def watch(self, watcher: Watcher) -> None:
        self._watched_by = watcher
        self._session.listen(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watched_by = None
        if self._session.listener is watcher:
            self._session.listen(None)

    def _read_now(self, *, is_last: bool) -> SessionReading:
        return self._sessions.read(self._params, self._session, is_last=is_last)

    def _new_reading(self, *, is_last: bool) -> SessionReading:
        return SessionReading(self._params, self._session, is_last=is_last)

    def _steps(self, reading: SessionReading) -> Iterator[None]:
        return reading.steps()

    def _is_long(self) -> bool:
        return len(self._session.due) > FEW

    def _ends_wait(self, reading: SessionReading) -> bool:
        return self._sessions.may_answer(self._session, reading)

    def _is_refused(self) -> bool:
        """Whether the session is closed, or another request of the session has come; then answers with that error."""
        refusal = self._sessions.refusal(self._session, self._params.request)
        access = self._params.access
        if refusal is None and access is not None and access.is_outdated:
            # The partitions were checked by the rules of the begin: the next request checks them anew.
            self._sessions.used(self._session)
            refusal = FetchResponse(session_id=self._session.session_id, responses=())
        if refusal is not None:
            self._params.context.respond(refusal)
        return refusal is not None

    def _begin_pass(self) -> None:
        self._session.set_busy(is_busy=True)
        self._began_ms = self._sessions.now_ms()

    def _was_read(self) -> None:
        if self._gain is None:  # the first pass counts from its begin on: every due partition was read after the begin
            super()._was_read()
            self._sessions.fetched(self._session, self._began_ms)
        self._sessions.check_size(self._session)

    def _end_pass(self) -> None:
        self._session.set_busy(is_busy=False)

    def _broke_off(self) -> None:
        super()._broke_off()
        self._sessions.cache.remove(self._session)


def answer_fault(params: FetchParams) -> None:
    """Answer a request that a fault of this program has interrupted, unless an answer was sent."""
    context = params.context
    if context.connection.awaits_answer(context.slot):
        error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        context.refuse(params.request, error)


def _count(params: FetchParams) -> int:
    return sum(len(topic.partitions) for topic in params.topics)
