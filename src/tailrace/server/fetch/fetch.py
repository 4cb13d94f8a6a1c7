"""Fetch (1): a long poll for whole batches, by consumers and by followers.

The answer is sent at once if there are `min_bytes`, an error or nothing to wait for; otherwise when enough bytes have
become readable, or after `max_wait_ms`. Records are readable up to the high watermark, for read_committed up to the
last stable offset. A fetch between the readable end and the log end waits like a fetch at the readable end; if the
offset is still above the high watermark after `max_wait_ms`, v11 and later get OFFSET_NOT_AVAILABLE (78).

A follower serves consumers too, up to its own high watermark (KIP-392). A fetch above the follower's log end waits,
too. After `max_wait_ms` its answer is 78 if the offset is below the leader's high watermark, else OFFSET_OUT_OF_RANGE
(1). The leader may name another replica for a consumer (`server.fetch.replica_choice`); that answer is sent at once,
without records.

A full fetch names its partitions. An incremental fetch (KIP-227) names its differences from the fetch before, and is
answered with differences (`server.fetch.sessions`).

By version: v6 KAFKA_STORAGE_ERROR; earlier versions get NOT_LEADER_OR_FOLLOWER, after which a client looks for the
leader, too; v7 sessions; v9 leader epochs; v10 zstd; v11 the rack of a consumer: from v11 on consumers may read from
followers, in any version with replica id -2; v12 the point where a reader's log diverges, and the new leader; v13 topic
ids; v15 the epoch of a follower's registration; v16 the address of the leader (KIP-951); v18 the high watermark of a
follower: a follower whose high watermark is behind is answered at once (before v18 the high watermark that the follower
has acknowledged counts).

A consumer may name a view of a topic, by name or by id (decision 0057): it gets the records of one key range, and knows
nothing of key ranges.

A follower reads to the log end, and its fetch offset is an acknowledgement (`server.fetch.follower_readers`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from tailrace.fetch_session.epochs import FULL_EPOCHS, INITIAL_EPOCH, NO_SESSION
from tailrace.fetch_session.session import FetchSession
from tailrace.model.access import CLUSTER, Operation
from tailrace.model.errors import KafkaError
from tailrace.model.ids import NO_LEADER
from tailrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
)
from tailrace.protocol.schema import positional
from tailrace.server.callbacks import WAITS
from tailrace.server.context import RequestContext
from tailrace.server.fetch.follower_readers import FollowerReaders
from tailrace.server.fetch.long_answers import respond_in_steps
from tailrace.server.fetch.params import (
    CONSUMER,
    FetchingConsumer,
    FetchParams,
    FetchSender,
    SentBytes,
    sender_of,
)
from tailrace.server.fetch.reading import FullReading, Reading, SessionReading
from tailrace.server.fetch.replica_choice import ReplicaChoices
from tailrace.server.fetch.sessions import FEW, FetchSessions
from tailrace.server.fetch.views import ReadableViews
from tailrace.server.fetch.waiting import WaitingFetch, WaitingSession, answer_fault
from tailrace.server.metadata.cluster import LeaderEndpoints
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.slices import Slices
from tailrace.server.waiters import LongPolls

FIRST_WITH_ENDPOINTS: Final = 16

_full: Final[Callable[[int, Sequence[FetchableTopicResponse], tuple[NodeEndpoint, ...]], FetchResponse]] = positional(
    FetchResponse, "session_id", "responses", "node_endpoints"
)


class FetchHandler:
    """Answers Fetch."""

    def __init__(
        self,
        *,
        partitions: PartitionTable,
        polls: LongPolls,
        fetch_max_bytes: int,
        followers: FollowerReaders,
        sessions: FetchSessions,
        choices: ReplicaChoices,
        sent: SentBytes,
        endpoints: LeaderEndpoints,
        views: ReadableViews,
        slices: Slices,
    ) -> None:
        """`sent` counts the bytes of the answers to consumers. `slices` carries out long requests."""
        self._partitions = partitions
        self._polls = polls
        self._fetch_max_bytes = fetch_max_bytes
        self._followers = followers
        self._sessions = sessions
        self._choices = choices
        self._sent = sent
        self._endpoints = endpoints
        self._views = views
        self._slices = slices
        self._consumers: dict[int, FetchingConsumer] = {}

    def handle(self, request: FetchRequest, context: RequestContext) -> FetchResponse | None:
        version, table = context.api_version, self._partitions
        sender = sender_of(request, version)
        is_consumer = sender.replica_id < 0
        if not is_consumer:
            if context.has_authorizer:
                context.check(Operation.CLUSTER_ACTION, CLUSTER)
            context.exempt()
            self._polls.end_of_replica(context.connection, sender.replica_id)
        reader = self._consumer(sender, request, context) if is_consumer else self._followers.reader(sender)
        max_bytes, allowance = self._fetch_max_bytes, None
        if is_consumer and context.is_metered and (allowance := context.fetch_allowance) is not None:
            max_bytes = min(max_bytes, allowance)
        params = FetchParams(request, context, sender, reader, table, max_bytes, self._views)
        params.is_throttled = allowance == 0
        if request.session_epoch in FULL_EPOCHS:
            return self._answer_full(params)
        try:
            session = self._sessions.find(params)
        except KafkaError as refusal:
            return FetchResponse(error_code=refusal.code, responses=())
        if self._sessions.is_long(session, params):
            self._slices.begin(self._incremental_steps(params))
            return None
        for _ in self._sessions.begin(session, params):
            pass
        if params.is_throttled:
            return self._throttled_response(session)
        return self._answer_incremental(params, session)

    def _consumer(self, sender: FetchSender, request: FetchRequest, context: RequestContext) -> FetchingConsumer:
        """The reader of a consumer's fetch. While no consumer is sent to another replica, a reader has no state, and
        serves every fetch of its version."""
        version = context.api_version
        choice = self._choices.of_consumer(request, context) if self._choices.may_redirect else None
        if choice is not None or sender.replica_id != CONSUMER:
            return FetchingConsumer(version, self._sent, replica_id=sender.replica_id, choice=choice)
        consumer = self._consumers.get(version)
        if consumer is None:
            consumer = self._consumers[version] = FetchingConsumer(version, self._sent)
        return consumer

    def _throttled_response(self, session: FetchSession) -> FetchResponse:
        """The answer without partitions to a consumer whose quota is used up: the session keeps its state, and its due
        partitions stay due."""
        self._sessions.used(session)
        return FetchResponse(session_id=session.session_id if session.is_open else NO_SESSION, responses=())

    # Full fetches

    def _answer_full(self, params: FetchParams) -> FetchResponse | None:
        if params.is_throttled:
            self._sessions.close_named(params)
            return FetchResponse(responses=())
        count, may_wait, is_replica = params.name_each_once(), params.limits.may_wait, params.reader.is_replica
        if params.request.session_id != NO_SESSION:
            self._sessions.close_named(params)
        if is_replica and self._sessions.will_open(params):
            may_wait = False  # a follower's first fetch of a session does not wait: it learns the high watermarks
        if count > FEW:
            waiting = self._waiting_fetch(params, None)
            is_parked = may_wait and self._park(waiting, params)
            waiting.read_in_slices(is_last=not is_parked)
            return None
        reading = FullReading(params, is_last=not may_wait).read()
        if is_replica:
            params.reader.mark_recorded()
        if may_wait and not reading.ends_wait and self._park(self._waiting_fetch(params, reading), params):
            return None
        return self._full_response(reading)

    def _park(self, waiting: WaitingFetch | WaitingSession, params: FetchParams) -> bool:
        return self._polls.park(waiting, params.context.connection, params.limits.wait_ms)

    def _waiting_fetch(self, params: FetchParams, first: FullReading | None) -> WaitingFetch:
        return WaitingFetch(
            params,
            first,
            answer=lambda last: params.context.respond(self._full_response(last)),
            answer_in_steps=self._full_answer_in_steps,
            slices=self._slices,
        )

    def _full_answer_in_steps(self, reading: FullReading) -> Iterator[None]:
        opened = NO_SESSION
        for session_id in self._sessions.open_in_steps(reading):
            opened = session_id
            yield
        yield from respond_in_steps(reading.params.context, self._full_response(reading, opened))

    def _full_response(self, reading: FullReading, session_id: int | None = None) -> FetchResponse:
        """The response of a reading, whose bytes count as sent. `session_id`: the session that the response begins;
        None: a session is begun now, if the request asks for a session."""
        params = reading.params
        if session_id is None:
            asks = params.request.session_epoch == INITIAL_EPOCH
            session_id = self._sessions.open(reading) if asks else NO_SESSION
        params.reader.mark_sent(reading.given, has_session=session_id != NO_SESSION)
        reading.count_filtered()
        endpoints: tuple[NodeEndpoint, ...] = ()
        if reading.is_urgent:
            endpoints = self._leader_endpoints(
                reading, chain.from_iterable(topic.partitions for topic in reading.topics)
            )
        return _full(session_id, reading.topics, endpoints)

    # Incremental fetches

    def _answer_incremental(self, params: FetchParams, session: FetchSession) -> FetchResponse | None:
        sessions = self._sessions
        may_wait = params.limits.may_wait and session.is_open
        reading = sessions.read(params, session, is_last=not may_wait)
        if params.reader.is_replica:
            params.reader.mark_recorded()
            sessions.fetched(session, sessions.now_ms())
        must_wait = may_wait and not sessions.may_answer(session, reading)
        if must_wait and self._park(self._waiting_session(params, reading, session), params):
            return None
        return self._incremental_response(session, reading)

    def _incremental_steps(self, params: FetchParams) -> Iterator[object]:
        """Carry out an incremental fetch that concerns many partitions, or the fetch behind such a fetch."""
        sessions, connection = self._sessions, params.context.connection
        connection.suspend()
        try:
            while (session := sessions.find(params)).is_busy:
                yield WAITS
                if not connection.is_open:
                    return
            session.set_busy(is_busy=True)
            try:
                yield from sessions.begin(session, params)
            except Exception:
                sessions.cache.remove(session)
                answer_fault(params)
                raise
            finally:
                session.set_busy(is_busy=False)
        except KafkaError as refusal:
            params.context.respond(FetchResponse(error_code=refusal.code, responses=()))
            return
        finally:
            connection.go_on()
        if not connection.is_open:
            return
        if params.is_throttled:
            params.context.respond(self._throttled_response(session))
            return
        waiting = self._waiting_session(params, None, session)
        is_parked = params.limits.may_wait and session.is_open and self._park(waiting, params)
        yield from waiting.read_in_steps(is_last=not is_parked)

    def _waiting_session(
        self, params: FetchParams, first: SessionReading | None, session: FetchSession
    ) -> WaitingSession:
        def answer(last: SessionReading) -> None:
            self._sessions.used(session)
            params.context.respond(self._incremental_response(session, last))

        def answer_in_steps(last: SessionReading) -> Iterator[None]:
            self._sessions.used(session)
            yield from last.commit_in_steps()
            response = self._incremental_response(session, last)
            if len(last.named) > FEW:
                yield from respond_in_steps(params.context, response)
            else:
                params.context.respond(response)

        return WaitingSession(
            params,
            first,
            session,
            sessions=self._sessions,
            answer=answer,
            answer_in_steps=answer_in_steps,
            slices=self._slices,
        )

    def _incremental_response(self, session: FetchSession, reading: SessionReading) -> FetchResponse:
        """The response of a reading, which is on its way."""
        endpoints = self._leader_endpoints(reading, reading.answers) if reading.is_urgent else ()
        return self._sessions.answer(session, reading, endpoints)

    def _leader_endpoints(self, reading: Reading, answers: Iterable[PartitionData]) -> tuple[NodeEndpoint, ...]:
        """The addresses of the leaders that are named in errors."""
        context = reading.params.context
        if context.api_version < FIRST_WITH_ENDPOINTS:
            return ()
        named = (answer.current_leader.leader_id for answer in answers)
        leaders = [leader for leader in named if leader != NO_LEADER]
        return self._endpoints.of(leaders, context.identity.listener_name, NodeEndpoint) if leaders else ()
