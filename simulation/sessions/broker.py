"""The broker's end of fetch sessions in a small world: the product's FetchHandler around partitions without disks.

`FetchHandler`, `FetchSessions` and everything below are the product's, and so are a partition's `InSyncReplicas` and
`Watchers`. A log is a start and an end. The whole broker can be pickled between two events, when no code runs. The
product keeps waiting fetches in closures, which cannot be pickled: they are made again from their requests.
"""

from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from simulation.sessions.partition import EventClock, Registration, SessionIds, SmallPartition, Truth
from tailrace.fetch_session.session import FetchSession, SessionOwner
from tailrace.model.identity import ClientIdentity
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from tailrace.replication.watchers import Watchers
from tailrace.server.fetch.broker_proofs import BrokerProofs
from tailrace.server.fetch.fetch import FetchHandler
from tailrace.server.fetch.follower_readers import FollowerReaders
from tailrace.server.fetch.params import FetchingConsumer, FetchParams, SentBytes, sender_of
from tailrace.server.fetch.sessions import FetchSessions
from tailrace.server.fetch.waiting import WaitingSession

_FETCH_MAX_BYTES: Final = 1 << 20


class Sender(NamedTuple):
    """The sender of a request, and the number that the sender gives this request."""

    reader: int
    number: int


class Answer(NamedTuple):
    """An answer on its way, with the facts of its partitions at the time when it left."""

    sender: Sender
    response: FetchResponse
    truths: tuple[Truth, ...]


class Waiting(NamedTuple):
    """A waiting fetch, in the form that is kept between two events."""

    sender: Sender
    request: FetchRequest
    version: int
    session: FetchSession


class _Context:
    """A `RequestContext` whose answers stay objects, of a node without an authorizer and without quotas."""

    has_authorizer = False
    is_metered = False

    def __init__(self, broker: "SessionBroker", sender: Sender, version: int) -> None:
        self.connection = SimpleNamespace(identity=ClientIdentity("PLAINTEXT", "10.0.0.1", f"User:{sender.reader}"))
        self.identity = self.connection.identity
        self.api_version = version
        self.client_id = "reader"
        self.sender = sender
        self._broker = broker

    def exempt(self) -> None:
        pass

    def respond(self, response: FetchResponse) -> None:
        self._broker.respond(self.sender, response)


class _Parked:
    """A fetch that waits, within one event."""

    def __init__(self, waiting: Waiting, poll: WaitingSession) -> None:
        self.waiting = waiting
        self.poll = poll
        self.moved: dict[Any, int] = {}
        self.is_woken = False

    def changed(self, subject: Any, kinds: int) -> None:
        self.is_woken = True
        if subject is not None:
            self.moved[subject] = self.moved.get(subject, 0) | kinds


class SessionBroker:
    """The leader of the partitions."""

    def __init__(self, *, partitions: int, slots: int, follower: BrokerId | None) -> None:
        """`follower`: the replica of all partitions beside the leader."""
        self.clock = EventClock()
        self.led_ms = self.clock.now_ms
        """The time at which the leader began: at that time each replica in sync counts as caught up."""
        self.partitions = [SmallPartition(number, self.clock, follower=follower) for number in range(partitions)]
        self.sessions = FetchSessions(clock=_as_any(self.clock), slots=slots, random_bytes=SessionIds())
        self.learned_ms = 0
        """The time at which the leader learned the registration of the follower."""
        self.image = SimpleNamespace(brokers={} if follower is None else {follower: Registration(0)})
        self.waiting: list[Waiting] = []
        self.answers: list[Answer] = []
        self._begin()

    def _begin(self) -> None:
        self._parked: list[_Parked] = []
        self._handling: tuple[Sender, FetchRequest] | None = None
        self._sent = sent = SentBytes()
        self._views = _as_any(SimpleNamespace(key_reads=None, named=lambda topic: None, with_id=lambda topic_id: None))
        self._followers = FollowerReaders(
            proofs=BrokerProofs(_as_any(self)), keeper=_as_any(self), throttles=_as_any(self), sent=sent
        )
        self._handler = FetchHandler(
            partitions=_as_any(self),
            polls=_as_any(self),
            fetch_max_bytes=_FETCH_MAX_BYTES,
            followers=self._followers,
            sessions=self.sessions,
            choices=_as_any(SimpleNamespace(may_redirect=False)),
            sent=sent,
            endpoints=_as_any(SimpleNamespace(of=lambda *args: ())),
            views=self._views,
            slices=_as_any(None),
        )

    def __getstate__(self) -> dict[str, Any]:
        assert not self._parked, "sleep comes first"
        left_out = ("_parked", "_handling", "_followers", "_handler", "_sent", "_views")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def wake(self) -> None:
        """Begin an event."""
        self._begin()
        self.clock.now_ms += 10
        waiting, self.waiting = self.waiting, []
        for fetch in waiting:
            self._wait_again(fetch)

    def _wait_again(self, waiting: Waiting) -> None:
        sender, request, version, session = waiting
        context = _as_any(_Context(self, sender, version))
        named = sender_of(request, version)
        reader: Any = (
            FetchingConsumer(version, self._sent, replica_id=named.replica_id)
            if named.replica_id < 0
            else self._followers.reader(named)
        )
        reader.mark_recorded()
        if reader.is_replica:
            reader._must_note_sent = bool(request.topics) and version < 18
        params = FetchParams(
            request,
            context,
            sender=named,
            reader=reader,
            table=_as_any(self),
            fetch_max_bytes=_FETCH_MAX_BYTES,
            views=self._views,
        )
        # With min_bytes 1 a fetch waits on only while nothing has become readable: so its counts are the counts of now.
        first: Any = SimpleNamespace(
            params=params,
            available_bytes=0,
            has_key_ranges=False,
            given=[(partition, 0) for partition in self.partitions],
        )
        poll = self._handler._waiting_session(params, first, session)
        self._park(_Parked(waiting, poll))

    def _park(self, parked: _Parked) -> None:
        parked.poll.watch(parked)
        self._parked.append(parked)

    def sleep(self) -> None:
        """End an event: woken fetches try to answer, as in the product's next turn."""
        self._try(is_last=False)
        for parked in self._parked:
            parked.poll.unwatch(parked)
        self.waiting = [parked.waiting for parked in self._parked]
        self._parked = []
        for session in self.sessions.cache.sessions():
            session.idle_answer_ms = 0

    def _try(self, *, is_last: bool) -> None:
        while woken := [parked for parked in self._parked if parked.is_woken or is_last]:
            for parked in woken:
                parked.is_woken = False
                moved, parked.moved = parked.moved, {}
                if parked.poll.retry(moved, is_last=is_last):
                    parked.poll.unwatch(parked)
                    self._parked.remove(parked)

    # Ports of the handler

    def get_by_id(self, topic_id: bytes, index: int) -> SmallPartition:
        return self.partitions[index]

    def end_of_replica(self, connection: object, replica_id: int) -> None:
        """End no wait: requests arrive in any order here, as from connections of their own."""

    def park(self, poll: Any, connection: object, timeout_ms: int) -> bool:
        assert isinstance(poll, WaitingSession), "full fetches have no time to wait here"
        assert self._handling is not None
        sender, request, version, session = (*self._handling, poll._params.version, poll._session)
        self._park(_Parked(Waiting(sender, request, version, session), poll))
        return True

    def consider(self, partition: object) -> None:
        """An `InSyncKeeper`: the in-sync replicas stay."""

    def holds_back(self, partition: SmallPartition, replica_id: int) -> bool:
        return partition.is_held_back

    def count_sent(self, partition: object, size_bytes: int) -> None:
        pass

    # Events

    def respond(self, sender: Sender, response: FetchResponse) -> None:
        """Note an answer that leaves."""
        truths = tuple(partition.truth for partition in self.partitions)
        self.answers.append(Answer(sender, response, truths))

    def handle(self, sender: Sender, request: FetchRequest, version: int) -> FetchResponse | None:
        """Handle a request; returns its answer if the answer has left at once."""
        self._handling = (sender, request)
        response = self._handler.handle(request, _as_any(_Context(self, sender, version)))
        if response is not None:
            self.respond(sender, response)
        return response

    def expire(self) -> None:
        """End the time of every waiting fetch."""
        self._try(is_last=True)

    def restart(self) -> None:
        """Restart the broker: everything that is only in memory is lost."""
        for parked in self._parked:
            parked.poll.unwatch(_as_any(parked))
        self._parked = []
        for session in tuple(self.sessions.cache.sessions()):
            session.listener = None
            self.sessions.cache.remove(session)
        self.led_ms = self.clock.now_ms
        for partition in self.partitions:
            partition.watchers = Watchers(partition)
            state = partition.state
            assert state is not None
            if partition.in_sync.leadership is not None:
                partition.in_sync.leadership = None
                partition.in_sync.take_state(state)

    def grow_old(self) -> None:
        """Let the sessions without a waiting request have been inactive for long."""
        for session in self.sessions.cache.sessions():
            if session.listener is None:
                session.last_used_ms = 0

    def session_of(self, session_id: int, owner: SessionOwner) -> FetchSession | None:
        return self.sessions.cache.find(session_id, owner)


def _as_any(thing: object) -> Any:
    return thing
