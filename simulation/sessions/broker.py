"""The broker's end of fetch sessions in a small world: the product's FetchHandler around partitions without disks.

`FetchHandler`, `FetchSessions` and all below them are the product's, and so are a partition's `InSyncReplicas` and
`Watchers`. A log is a start and an end. All of it can be pickled between two events, when no code runs: what the
product keeps in closures, which is the fetches that wait, is made again from their requests.
"""

from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from tailrace.fetch_session.session import FetchSession, SessionOwner
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.identity import ClientIdentity
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.proofs import id_of_secret
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from tailrace.replication.in_sync import InSyncReplicas
from tailrace.replication.outcomes import PartitionRead
from tailrace.replication.watchers import Change, Watchers
from tailrace.server.fetch.broker_proofs import BrokerProofs
from tailrace.server.fetch.fetch import FetchHandler
from tailrace.server.fetch.follower_readers import FollowerReaders
from tailrace.server.fetch.params import FetchingConsumer, FetchParams, SentBytes, sender_of
from tailrace.server.fetch.sessions import FetchSessions
from tailrace.server.fetch.waiting import WaitingSession
from tailrace.storage import ReadLimits

LEADER: Final = BrokerId(1)
TOPIC_ID: Final = TopicId(b"t" * 16)
RECORD_BYTES: Final = 10
INACTIVE_MS: Final = 1 << 20
"""A session that was last used so long before the begin may be evicted by any other one."""
_LAG_MS: Final = 1 << 30
_FETCH_MAX_BYTES: Final = 1 << 20


class Truth(NamedTuple):
    """The facts about a partition when an answer left."""

    is_readable: bool
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    is_held_back: bool


SECRET: Final = b"of the follower."


class Registration(NamedTuple):
    """A follower's, as the leader knows it."""

    broker_epoch: int
    is_alive: bool = True
    incarnation_id: bytes = id_of_secret(SECRET)


class Clock:
    """Time passes with each event, long enough for another answer."""

    def __init__(self) -> None:
        self.now_ms = INACTIVE_MS

    def monotonic_ms(self) -> int:
        return self.now_ms

    def call_at(self, when_ms: int, callback: Any) -> None:
        raise AssertionError("the last answer of high watermarks alone is long ago")


class SessionIds:
    """Random bytes that never come twice."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self, size: int) -> bytes:
        self._last += 1
        return self._last.to_bytes(size, "big")


class SmallPartition:
    """A partition of the leader, as `server.fetch` and `InSyncReplicas` see it: both a Partition and a Replica."""

    is_leader = True
    is_closed = False
    leader_epoch = 0
    leader_epoch_start_offset = 0
    written_bytes = 0
    sent_bytes = 0
    topic_id = TOPIC_ID
    config = TopicConfig()

    def __init__(self, number: int, clock: Clock, *, follower: BrokerId | None) -> None:
        self.topic_partition = TopicPartition("orders", number)
        self.log = SimpleNamespace(
            log_start_offset=0, log_end_offset=0, checked_from=0, is_offline=False, is_damaged=False
        )
        self.context = SimpleNamespace(
            broker_id=LEADER, monotonic_ms=clock.monotonic_ms, lag_ms=_LAG_MS, is_flushed=True
        )
        self.mark = SimpleNamespace(offset=0)
        self.watchers: Watchers[Any] = Watchers(self)
        self.state: PartitionState | None = None
        self.is_readable = True
        self.is_held_back = False
        """Whether a throttle keeps its records from the follower (KIP-73)."""
        self.appended_ms: list[int] = []
        """Of each record, when it came."""
        replicas = (LEADER,) if follower is None else (LEADER, follower)
        self.in_sync = InSyncReplicas(_as_replica(self))
        self.in_sync.take_state(
            PartitionState(
                topic_id=TOPIC_ID,
                replicas=replicas,
                in_sync_replicas=replicas,
                leader=LEADER,
                leader_epoch=LeaderEpoch(0),
                partition_epoch=0,
            )
        )

    # For the product

    def leads_in(self, leader_epoch: int) -> bool:
        return True

    def check_leader(self, leader_epoch: int = -1) -> None:
        pass

    def notify(self, kinds: int) -> None:
        self.watchers.notify(kinds)

    def watch(self, watcher: Any, kinds: int) -> None:
        self.watchers.add(watcher, kinds)

    def unwatch(self, watcher: Any) -> None:
        self.watchers.remove(watcher)

    def rise(self, offset: int, written_bytes: int | None) -> None:
        self.mark.offset = offset
        self.notify(Change.HIGH_WATERMARK)

    @property
    def own_end_offset(self) -> int:
        return int(self.log.log_end_offset)

    @property
    def readable_bytes(self) -> int:
        return RECORD_BYTES * int(self.high_watermark)

    @property
    def last_stable_offset(self) -> int:
        return int(self.high_watermark)

    def unavailable(self, offset: int) -> KafkaError:
        return KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{offset} is not committed")

    def read(self, limits: ReadLimits) -> PartitionRead:
        return self._read(limits, self.high_watermark)

    def is_read_up_to(self, offset: int, isolation: int, leader_epoch: int) -> bool:
        return self.is_readable and offset == int(self.high_watermark)

    def read_for_replica(self, limits: ReadLimits) -> PartitionRead:
        return self._read(limits, self.log.log_end_offset)

    def _read(self, limits: ReadLimits, end_offset: int) -> PartitionRead:
        log, offset = self.log, limits.offset
        if not self.is_readable:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log is offline")
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is not there")
        fits = max(limits.max_bytes // RECORD_BYTES, 1 if limits.min_one_message else 0)
        size = max(0, min(end_offset - offset, fits))
        return PartitionRead(
            b"r" * RECORD_BYTES * size,
            RECORD_BYTES * size,
            next_offset=offset + size,
            reaches_end=offset + size >= end_offset,
            high_watermark=self.high_watermark,
            last_stable_offset=self.high_watermark,
            log_start_offset=log.log_start_offset,
        )

    # For both

    @property
    def high_watermark(self) -> Any:
        """Of a Replica an object, of a Partition its offset."""
        return self.mark.offset

    # Events

    def append(self, now_ms: int) -> None:
        """One record, which is on the disk at once."""
        self.log.log_end_offset += 1
        self.appended_ms.append(now_ms)
        self.notify(Change.LOG_END)

    def flush(self) -> None:
        self.in_sync.advance_high_watermark(self.own_end_offset)

    def raise_log_start(self) -> None:
        self.log.log_start_offset += 1
        self.notify(Change.LOG_START)

    def set_readable(self, *, is_readable: bool) -> None:
        self.is_readable = is_readable
        self.notify(Change.ERROR if not is_readable else Change.ROLE)

    @property
    def truth(self) -> Truth:
        log = self.log
        return Truth(self.is_readable, self.high_watermark, log.log_start_offset, log.log_end_offset, self.is_held_back)


class _ReplicaView:
    """The same partition for `InSyncReplicas`, whose high watermark is an object with an offset."""

    def __init__(self, partition: SmallPartition) -> None:
        object.__setattr__(self, "_partition", partition)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_partition":
            raise AttributeError(name)
        return self._partition.mark if name == "high_watermark" else getattr(self._partition, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._partition, name, value)

    def __getstate__(self) -> object:
        return self._partition

    def __setstate__(self, state: object) -> None:
        object.__setattr__(self, "_partition", state)


def _as_replica(partition: SmallPartition) -> Any:
    return _ReplicaView(partition)


class Sender(NamedTuple):
    """The sender of a request, and the number it gives it."""

    reader: int
    number: int


class Answer(NamedTuple):
    """An answer on its way, with the facts when it left."""

    sender: Sender
    response: FetchResponse
    truths: tuple[Truth, ...]


class Waiting(NamedTuple):
    """A fetch that waits, as it is kept between two events."""

    sender: Sender
    request: FetchRequest
    version: int
    session: FetchSession


class _Context:
    """A `RequestContext` whose answers stay objects."""

    def __init__(self, broker: "SessionBroker", sender: Sender, version: int) -> None:
        self.connection = SimpleNamespace(identity=ClientIdentity("PLAINTEXT", "10.0.0.1", f"User:{sender.reader}"))
        self.identity = self.connection.identity
        self.api_version = version
        self.client_id = "reader"
        self.sender = sender
        self._broker = broker

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
    """One leader."""

    def __init__(self, *, partitions: int, slots: int, follower: BrokerId | None) -> None:
        """`follower`: the replica of all partitions beside the leader."""
        self.clock = Clock()
        self.led_ms = self.clock.now_ms
        """When the leader began: then each replica in sync counts as caught up."""
        self.partitions = [SmallPartition(number, self.clock, follower=follower) for number in range(partitions)]
        self.sessions = FetchSessions(clock=_as_any(self.clock), slots=slots, random_bytes=SessionIds())
        self.learned_ms = 0
        """When it learned the registration of the follower."""
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
        for one in waiting:
            self._wait_again(one)

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
        # With min_bytes 1 a fetch waits on only while nothing has become readable: so its counts are those of now.
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
        """End an event: woken fetches are tried, as in the product's next turn."""
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
        """An answer leaves."""
        truths = tuple(partition.truth for partition in self.partitions)
        self.answers.append(Answer(sender, response, truths))

    def handle(self, sender: Sender, request: FetchRequest, version: int) -> FetchResponse | None:
        """A request has come; its answer, if that has left at once."""
        self._handling = (sender, request)
        response = self._handler.handle(request, _as_any(_Context(self, sender, version)))
        if response is not None:
            self.respond(sender, response)
        return response

    def expire(self) -> None:
        """The time of all that wait is over."""
        self._try(is_last=True)

    def restart(self) -> None:
        """All that is only in memory is lost."""
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
        """All sessions that no request waits for have been inactive for long."""
        for session in self.sessions.cache.sessions():
            if session.listener is None:
                session.last_used_ms = 0

    def session_of(self, session_id: int, owner: SessionOwner) -> FetchSession | None:
        return self.sessions.cache.find(session_id, owner)


def _as_any(thing: object) -> Any:
    return thing
