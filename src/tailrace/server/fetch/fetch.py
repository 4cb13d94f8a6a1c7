"""Fetch (1): a long poll for whole batches, by consumers and by followers.

The answer is sent at once if there are `min_bytes`, an error or nothing to wait for; otherwise when enough bytes have
become readable, or after `max_wait_ms`. Records are readable up to the high watermark, for read_committed up to the
last stable offset. A fetch between the readable end and the log end waits like one at the readable end; if its offset
is still above the high watermark after `max_wait_ms`, v11 and later get OFFSET_NOT_AVAILABLE (78).

A follower serves consumers too, up to its own high watermark (KIP-392). An offset above its log end waits there, and is
78 after `max_wait_ms` if it is below the leader's high watermark, else OFFSET_OUT_OF_RANGE (1). The leader may name
another replica for a consumer (`server.fetch.replica_choice`); that answer is sent at once, without records.

A full fetch names its partitions. An incremental one (KIP-227) names its differences from the one before, and is
answered with differences (`server.fetch.sessions`).

By version: v6 KAFKA_STORAGE_ERROR, before it NOT_LEADER_OR_FOLLOWER, after which a client looks for the leader too;
v7 sessions; v9 leader epochs; v10 zstd; v11 the rack of a consumer, which may read from followers from then on, as
any with replica id -2 may; v12 the point where a reader's log diverges, and the new leader; v13 topic ids; v15 the
epoch of a follower's registration; v16 the address of the leader (KIP-951); v18 the high watermark of a follower: one
that is behind is answered at once (before v18 it is what the follower has acknowledged).

A consumer may name a view of a topic, by name or by id (decision 0057): it gets the records of one key range, and knows
nothing of key ranges.

A follower reads to the log end, and its fetch offset is an acknowledgement (`server.fetch.follower_readers`).
"""

from collections.abc import Iterable
from typing import Final

from tailrace.fetch_session.epochs import NO_SESSION, is_full
from tailrace.fetch_session.session import FetchSession
from tailrace.model.errors import KafkaError
from tailrace.model.ids import NO_LEADER
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse, NodeEndpoint, PartitionData
from tailrace.server.context import RequestContext
from tailrace.server.fetch.budget import wait_ms
from tailrace.server.fetch.follower_readers import FollowerReaders
from tailrace.server.fetch.params import CONSUMER, FetchingConsumer, FetchParams, FetchSender, sender_of
from tailrace.server.fetch.reading import FullReading, Reading, SessionReading
from tailrace.server.fetch.replica_choice import ReplicaChoices
from tailrace.server.fetch.sent_bytes import SentBytes
from tailrace.server.fetch.sessions import FetchSessions
from tailrace.server.fetch.views import ReadableViews
from tailrace.server.fetch.waiting import WaitingFetch, WaitingSession
from tailrace.server.metadata.cluster import LeaderEndpoints
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.waiters import LongPolls

FIRST_WITH_ENDPOINTS: Final = 16


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
    ) -> None:
        """`sent` counts the bytes of the answers to consumers."""
        self._partitions = partitions
        self._polls = polls
        self._fetch_max_bytes = fetch_max_bytes
        self._followers = followers
        self._sessions = sessions
        self._choices = choices
        self._sent = sent
        self._endpoints = endpoints
        self._views = views
        self._consumers: dict[int, FetchingConsumer] = {}

    def handle(self, request: FetchRequest, context: RequestContext) -> FetchResponse | None:
        version, table = context.api_version, self._partitions
        sender = sender_of(request, version)
        is_consumer = sender.replica_id < 0
        if not is_consumer:
            self._polls.end_of_replica(context.connection)
        reader = self._consumer(sender, request, context) if is_consumer else self._followers.reader(sender)
        params = FetchParams(request, context, sender, reader, table, self._fetch_max_bytes, self._views)
        if is_full(request.session_epoch):
            return self._answer_full(params)
        try:
            session = self._sessions.begin(params)
        except KafkaError as refusal:
            return FetchResponse(error_code=refusal.code, responses=())
        return self._answer_incremental(params, session)

    def _consumer(self, sender: FetchSender, request: FetchRequest, context: RequestContext) -> FetchingConsumer:
        """The reader of a consumer's fetch. One that is never sent elsewhere has no state: there is one per version."""
        version, choice = context.api_version, self._choices.of_consumer(request, context)
        if choice is not None or sender.replica_id != CONSUMER:
            return FetchingConsumer(version, self._sent, replica_id=sender.replica_id, choice=choice)
        consumer = self._consumers.get(version)
        if consumer is None:
            consumer = self._consumers[version] = FetchingConsumer(version, self._sent)
        return consumer

    # Full fetches

    def _answer_full(self, params: FetchParams) -> FetchResponse | None:
        request, context = params.request, params.context
        self._sessions.close_named(params)
        timeout_ms = wait_ms(request)
        may_wait = timeout_ms > 0 and params.wanted_bytes > 0
        if params.reader.is_replica and self._sessions.will_open(params):
            may_wait = False  # a follower's first fetch of a session does not wait: it learns the high watermarks
        reading = FullReading(params, is_last=not may_wait)
        params.reader.mark_recorded()
        if may_wait and not reading.ends_wait:
            waiting = WaitingFetch(reading, lambda last: context.respond(self._full_response(last)))
            if self._polls.park(waiting, context.connection, timeout_ms):
                return None
        return self._full_response(reading)

    def _full_response(self, reading: FullReading) -> FetchResponse:
        """The response of a reading, whose bytes count as sent."""
        session_id = self._sessions.open(reading)
        reading.params.reader.mark_sent(reading.given, has_session=session_id != NO_SESSION)
        endpoints = self._leader_endpoints(reading, (answer for topic in reading.topics for answer in topic.partitions))
        return FetchResponse(session_id=session_id, responses=reading.topics, node_endpoints=endpoints)

    # Incremental fetches

    def _answer_incremental(self, params: FetchParams, session: FetchSession) -> FetchResponse | None:
        sessions, request, context = self._sessions, params.request, params.context
        timeout_ms = wait_ms(request)
        may_wait = timeout_ms > 0 and params.wanted_bytes > 0 and session.is_open
        reading = sessions.read(params, session, is_last=not may_wait)
        if params.reader.is_replica:
            params.reader.mark_recorded()
            sessions.fetched(session)
        if may_wait and not sessions.may_answer(session, reading):

            def end_wait(last: SessionReading) -> None:
                sessions.used(session)
                context.respond(self._incremental_response(session, last))

            waiting = WaitingSession(reading, session, sessions=sessions, end_wait=end_wait)
            if self._polls.park(waiting, context.connection, timeout_ms):
                return None
        return self._incremental_response(session, reading)

    def _incremental_response(self, session: FetchSession, reading: SessionReading) -> FetchResponse:
        """The response of a reading, which is on its way."""
        endpoints = self._leader_endpoints(reading, reading.answers) if reading.is_urgent else ()
        return self._sessions.answer(session, reading, endpoints)

    def _leader_endpoints(self, reading: Reading, answers: Iterable[PartitionData]) -> tuple[NodeEndpoint, ...]:
        """The addresses of the leaders that are named in errors."""
        context = reading.params.context
        if not reading.is_urgent or context.api_version < FIRST_WITH_ENDPOINTS:
            return ()
        named = (answer.current_leader.leader_id for answer in answers)
        leaders = [leader for leader in named if leader != NO_LEADER]
        return self._endpoints.of(leaders, context.connection.listener_name, NodeEndpoint) if leaders else ()
