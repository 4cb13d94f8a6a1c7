"""The fetch sessions of this node's readers: opened, continued and closed as requests ask (KIP-227).

A request states its kind by its session id and epoch:

id 0, epoch -1     a full fetch without a session
id 0, epoch 0      a full fetch; its answer begins a session, if a slot can be had
an id, epoch 0     the same, and the session with this id ends
an id, epoch -1    a full fetch without a session, and the session with this id ends
an id, an epoch    an incremental fetch, if both are right: else an error, and nothing changes
"""

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final

from tailrace.fetch_session.epochs import INITIAL_EPOCH, NO_SESSION, next_epoch
from tailrace.fetch_session.session import (
    DOES_NOT_EXIST,
    UNKNOWN,
    UNPROVEN,
    FetchSession,
    SessionOwner,
    SessionPartition,
    SessionTopic,
)
from tailrace.fetch_session.session_cache import FetchSessionCache
from tailrace.fetch_session.session_places import Newcomer
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
)
from tailrace.protocol.rows import portions
from tailrace.protocol.schema import positional, replace
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from tailrace.server.callbacks import run_in_slices
from tailrace.server.fetch.params import FetchParams
from tailrace.server.fetch.reading import FullReading, SessionReading
from tailrace.server.ports import Clock

_logger = logging.getLogger("tailrace.server")

IDLE_ANSWER_MS: Final = 5
"""The time between two answers to a follower that have nothing but high watermarks.

A changed high watermark is sent at once (KIP-392), unless another answer without records has just been sent. While
records keep coming, the high watermark is sent together with records, so that a leader is not slowed by an exchange for
each rise of the high watermark.
"""

TOLD_AGAIN_MS: Final = 5_000
"""The time after which an answer names the missing partitions of a session again.

Otherwise a reader that has got old metadata from a lagging broker in between would wait for ever.
"""

FEW: Final = 64
"""A fetch of more partitions is carried out in steps of 64 partitions; a long fetch takes slices of several turns."""

_answered: Final[Callable[[int, tuple[FetchableTopicResponse, ...], tuple[NodeEndpoint, ...]], FetchResponse]] = (
    positional(FetchResponse, "session_id", "responses", "node_endpoints")
)

_REQUEST_BYTES: Final = 33
_ANSWER_BYTES: Final = 37
"""The bytes of a partition without tagged fields and records, which an incremental fetch saves."""


class FetchSessions:
    """Sessions, and the requests that use sessions."""

    def __init__(self, *, clock: Clock, slots: int, random_bytes: Callable[[int], bytes]) -> None:
        """`slots` is max.incremental.fetch.session.cache.slots."""
        self._clock = clock
        self._removed: deque[FetchSession] = deque()
        """Closed sessions that still watch partitions."""
        self.cache: Final = FetchSessionCache(slots=slots, random_bytes=random_bytes, on_removed=self._on_removed)

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Make a session's missing partition due when the partition is created. Make a partition due whose reader may
        be sent to another replica, when a broker with a replica of the partition changes."""
        waiting = [session for session in self.cache.sessions() if session.missing]
        if waiting and (delta.created_topics or delta.changed_partitions):
            run_in_slices(_partitions_came(waiting, delta), self._clock)
        changed = frozenset(delta.changed_brokers)
        if changed:
            concerned = [session for session in self.cache.sessions() if session.may_redirect]
            run_in_slices(_brokers_changed(concerned, changed), self._clock)

    def _on_removed(self, session: FetchSession) -> None:
        if session.listener is not None:
            session.listener.changed(None, 0)  # the waiting request ends with an error
        self._removed.append(session)
        if len(self._removed) == 1:
            run_in_slices(self._unwatch_removed(), self._clock)  # 200,000 partitions take half a second

    def _unwatch_removed(self) -> Iterator[None]:
        while self._removed:
            for partition in tuple(self._removed[0]):  # a request under way may still add partitions
                partition.lose()
                yield
            self._removed.popleft()

    # Full fetches

    def close_named(self, params: FetchParams) -> None:
        """Close the session that a full fetch names, if it belongs to its sender."""
        session_id = params.request.session_id
        if session_id != NO_SESSION:
            session = self.cache.find(session_id, _owner(params))
            if session is not None:
                _logger.debug("event=fetch-session-closed session=%d epoch=%d", session.session_id, session.epoch)
                self.cache.remove(session)

    def will_open(self, params: FetchParams) -> bool:
        """Whether the answer to this full fetch can begin a session now."""
        if params.request.session_epoch != INITIAL_EPOCH:
            return False
        count = sum(len(topic.partitions) for topic in params.topics)
        newcomer = Newcomer(_client(params), count, 0, _is_privileged(params))
        return self.cache.has_room(newcomer, self._clock.monotonic_ms())

    def open(self, reading: FullReading) -> int:
        """Begin a session with this answer to a full fetch, if the fetch asks for a session and there is room; returns
        the session id, or 0."""
        return [NO_SESSION, *self.open_in_steps(reading)][-1]

    def open_in_steps(self, reading: FullReading) -> Iterator[int]:
        """Do the work of `open` in steps; the last element is the session id."""
        params = reading.params
        request, context = params.request, params.context
        if request.session_epoch != INITIAL_EPOCH:
            return
        codes = [data.error_code for topic in reading.topics for data in topic.partitions]
        missing = sum(code in DOES_NOT_EXIST for code in codes)
        session = self.cache.open(
            SessionOwner(*_owner(params)),
            Newcomer(_client(params), len(codes) - missing, missing, _is_privileged(params)),
            uses_topic_ids=params.uses_topic_ids,
            client_id=context.client_id or "",
            client_host=context.identity.address,
            now_ms=self._clock.monotonic_ms(),
        )
        if session is None:
            return
        for topic, answered in zip(params.topics, reading.topics, strict=True):
            wanted, found = portions(topic.partitions, FEW), portions(answered.partitions, FEW)
            for portion, answers in zip(wanted, found, strict=True):
                named = session.name((replace(topic, partitions=portion),), request.key_ranges)
                session.answered(named, answers, rotates=False)
                yield NO_SESSION
        reader = params.reader
        session.begin_under(params.conditions, reader.new_visits(), may_redirect=reader.choice is not None)
        if not self.cache.resized(session) or session.is_excessive:
            self.cache.remove(session)
        if session.is_open:  # another session may have taken its slot meanwhile
            _logger.debug(
                "event=fetch-session-opened session=%d partitions=%d", session.session_id, session.partition_count
            )
            yield session.session_id
        else:
            yield NO_SESSION

    # Incremental fetches

    def find(self, params: FetchParams) -> FetchSession:
        """The session of an incremental fetch. Raises the errors of `FetchSessionCache.check`."""
        request = params.request
        return self.cache.check(
            request.session_id,
            request.session_epoch,
            _owner(params),
            uses_topic_ids=params.uses_topic_ids,
        )

    def is_long(self, session: FetchSession, params: FetchParams) -> bool:
        """Whether the request is carried out in steps: it concerns many partitions, or waits for a request that is
        carried out in steps."""
        request = params.request
        if session.is_busy or len(session.due) > FEW:
            return True
        if session.partition_count <= FEW and not (request.topics or request.forgotten_topics_data):
            return False
        if request.topics and sum(len(topic.partitions) for topic in request.topics) > FEW:
            return True
        if request.forgotten_topics_data and sum(len(gone.partitions) for gone in request.forgotten_topics_data) > FEW:
            return True
        return session.partition_count > FEW and (
            session.conditions != params.conditions or (len(session.missing) > FEW and self._must_tell_again(session))
        )

    def begin(self, session: FetchSession, params: FetchParams) -> Iterator[None]:
        """Take the changes of an incremental fetch, in steps.

        A session that has become empty, or too large, is closed: then the answer has session id 0.
        """
        request, reader = params.request, params.reader
        acknowledged = session.begin()
        if session.conditions != params.conditions:
            session.begin_under(params.conditions, reader.new_visits(), may_redirect=reader.choice is not None)
            for place, partition in enumerate(session):
                partition.lose()
                if not place % FEW:
                    yield
        if session.missing and self._must_tell_again(session):
            session.tell_missing_again(self._clock.monotonic_ms())
        named: list[SessionPartition] = []
        for topic in request.topics:
            for portion in portions(topic.partitions, FEW):
                part = topic if len(portion) == len(topic.partitions) else replace(topic, partitions=portion)
                session.name((part,), request.key_ranges, named)
                yield
        if request.forgotten_topics_data:
            yield from _forget(session, params)
        if acknowledged and reader.is_replica:
            for some in portions(acknowledged, FEW):
                reader.acknowledge((known.subject, known.known_high_watermark) for known in some if known.is_known)
                yield
        if session.is_open:
            self.cache.used(session, self._clock.monotonic_ms())
        session.count_saved(len(named), _REQUEST_BYTES)
        if _logger.isEnabledFor(logging.DEBUG):
            epoch = request.session_epoch
            _logger.debug("event=fetch-session-used session=%d epoch=%d", session.session_id, epoch)
        if named or request.forgotten_topics_data:
            self.check_size(session)
            if not session.partition_count or session.is_excessive:
                self.cache.remove(session)

    def _must_tell_again(self, session: FetchSession) -> bool:
        return bool(session.missing) and self._clock.monotonic_ms() - session.missing_told_ms >= TOLD_AGAIN_MS

    def check_size(self, session: FetchSession) -> None:
        """Close the session if there is no room for its present partitions."""
        is_counted = session.counted == (session.existing_count, len(session.missing))
        if session.is_open and not is_counted and not self.cache.resized(session):
            self.cache.remove(session)

    def now_ms(self) -> int:
        """The time of the sessions."""
        return self._clock.monotonic_ms()

    def read(self, params: FetchParams, session: FetchSession, *, is_last: bool) -> SessionReading:
        """Make a pass over the session. A pass that fails closes the session: otherwise the reader would miss the
        changes that the pass has already committed."""
        try:
            reading = SessionReading(params, session, is_last=is_last).read()
        except Exception:
            self.cache.remove(session)
            raise
        if len(session.missing) != session.counted[1]:
            self.check_size(session)  # partitions may have been created or deleted
        return reading

    def used(self, session: FetchSession) -> None:
        """Note that a request of the session is answered after a wait."""
        if session.is_open:
            self.cache.used(session, self._clock.monotonic_ms())

    def fetched(self, session: FetchSession, began_ms: int) -> None:
        """Note that all due partitions were read since `began_ms`: the fetch counts for the clean partitions too."""
        if session.visits is not None:
            session.visits.fetched(began_ms)

    def may_answer(self, session: FetchSession, reading: SessionReading) -> bool:
        """Whether the answer is sent now. If not, the session's listener is notified in time."""
        if reading.ends_wait:
            return True
        if not (reading.has_stale_high_watermark and reading.params.reader.is_replica):
            return False
        if session.may_answer_idle(self._clock.monotonic_ms(), IDLE_ANSWER_MS):
            return True
        first = reading.named[0]
        self._clock.call_at(session.idle_answer_ms, lambda: _changed_again(first))
        return False

    def answer(
        self, session: FetchSession, reading: SessionReading, endpoints: tuple[NodeEndpoint, ...]
    ) -> FetchResponse:
        """The answer to an incremental fetch, which is on its way."""
        session.count_saved(len(reading.named), _ANSWER_BYTES)
        return _answered(session.session_id if session.is_open else NO_SESSION, reading.commit(), endpoints)

    @staticmethod
    def refusal(session: FetchSession, request: FetchRequest) -> FetchResponse | None:
        """The error for a request that has waited in vain: its session is closed, or has got another request since."""
        if not session.is_open:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=())
        if session.epoch != next_epoch(request.session_epoch):
            return FetchResponse(
                error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id, responses=()
            )
        return None


def _forget(session: FetchSession, params: FetchParams) -> Iterator[None]:
    for gone in params.request.forgotten_topics_data:
        for numbers in portions(gone.partitions, FEW):
            for partition in session.forget((replace(gone, partitions=tuple(numbers)),)):
                if partition.subject is not None:
                    params.reader.end_rest(partition.subject, session.visits)
                partition.lose()
            yield


def _owner(params: FetchParams) -> tuple[str, str, int]:
    """The fields of the `SessionOwner`, which would take longer to make than to compare."""
    identity, replica_id = params.context.identity, params.sender.replica_id
    if replica_id < 0:
        replica_id = UNKNOWN
    elif not params.reader.is_proven:
        replica_id = UNPROVEN  # a client that imitates a follower must not use, nor close, the follower's sessions
    return identity.principal, identity.listener_name, replica_id


def _client(params: FetchParams) -> Hashable:
    """The client that a session counts for: its principal and address.

    For a client on this machine: the connection, since all clients of this machine, and of a proxy here, have the same
    address.
    """
    identity = params.context.identity
    is_local = identity.address.startswith("127.") or identity.address == "::1"
    return identity.principal, id(params.context.connection) if is_local else identity.address


def _is_privileged(params: FetchParams) -> bool:
    """Whether the sender is a follower in its present registration: a client that imitates a follower gets no
    priority."""
    return params.reader.is_registered


def _changed_again(partition: SessionPartition) -> None:
    if partition.subject is not None and partition in partition.session.due:
        partition.changed(partition.subject, Change.HIGH_WATERMARK)


def _partitions_came(sessions: Iterable[FetchSession], delta: ImageDelta) -> Iterator[None]:
    for session in sessions:
        by_id = session.uses_topic_ids
        for topic in delta.created_topics:
            for number in topic.partitions:
                _came(session, topic.topic_id if by_id else topic.name, number)
        yield
        for (name, number), state in delta.changed_partitions:
            _came(session, state.topic_id if by_id else name, number)
        yield


def _came(session: FetchSession, topic: SessionTopic, number: int) -> None:
    partition = session.find(topic, number)
    if partition is not None and partition in session.missing:
        partition.changed(None, Change.ROLE)


def _brokers_changed(sessions: Iterable[FetchSession], changed: frozenset[BrokerId]) -> Iterator[None]:
    for session in sessions:
        for partition in tuple(session):
            subject: Partition | None = partition.subject
            state = None if subject is None else subject.state
            if state is not None and not changed.isdisjoint(state.replicas):
                partition.changed(subject, Change.CANDIDATES)
            yield
