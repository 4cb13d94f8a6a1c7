"""One fetch session at the broker: its partitions, and what answers have said of them (KIP-227). Pure.

1. A partition of the session is *due* when an answer may have to name it: it is new or named by the request, something
   about it has changed, its last answer is not acknowledged, its reader lags, or it is an error. All others are
   *clean*: an incremental fetch costs what is due, however many are clean.
2. An answer is acknowledged by the request with the next epoch, and not before: if it is lost, no such request comes.
   So a partition that an answer names stays due until then.
3. Partitions are in the order of their ranks. One whose records an answer gives gets a new rank, behind all others: so
   each has its turn, however small the answers are.
"""

from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from tailrace.fetch_session.epochs import INITIAL_EPOCH, next_epoch
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic, PartitionData

UNKNOWN: Final = -1

FIRST_WITH_TOPIC_IDS: Final = 13

SessionTopic = str | bytes
"""The name of a topic, or its id from Fetch v13 on."""


class SessionOwner(NamedTuple):
    """The reader that a session belongs to. For all others there is no such session."""

    principal: str
    listener_name: str
    replica_id: int
    """-1 for a consumer."""


class ChangeListener(Protocol):
    """The part that waits for changes of a session."""

    def changed(self, subject: Any, kinds: int, /) -> None: ...


class SessionPartition:
    """One partition of a session. It watches its subject: a change makes it due."""

    __slots__ = ("high_watermark", "log_start_offset", "rank", "session", "subject", "topic", "wanted")

    def __init__(self, session: "FetchSession", topic: SessionTopic, wanted: FetchPartition, rank: int) -> None:
        self.session: FetchSession = session
        self.topic = topic
        self.wanted = wanted
        """As the reader last named it: offset, limit, leader epoch, its log start."""
        self.rank = rank
        self.high_watermark = UNKNOWN
        """As the last answer had it; -1: the next one has to have it in any case."""
        self.log_start_offset = UNKNOWN
        self.subject: Any = None
        """The partition that the host has found for it; None before that."""

    def changed(self, subject: Any, kinds: int, /) -> None:
        """Take note of a change of the subject."""
        session = self.session
        session.due[self] = None
        if session.listener is not None:
            session.listener.changed(subject, kinds)

    def note_sent(self, data: PartitionData) -> None:
        """Note an answer on its way. After an error the next one has to say everything again."""
        is_known = data.error_code == ErrorCode.NONE
        self.high_watermark = data.high_watermark if is_known else UNKNOWN
        self.log_start_offset = data.log_start_offset if is_known else UNKNOWN

    @property
    def is_known(self) -> bool:
        """Whether the last answer had the offsets of a partition that exists here, and no error."""
        return self.subject is not None and self.high_watermark != UNKNOWN

    def is_news(self, data: PartitionData) -> bool:
        """Whether the last answer had another high watermark or log start."""
        return data.high_watermark != self.high_watermark or data.log_start_offset != self.log_start_offset


_rank_of: Final = attrgetter("rank")


class FetchSession:
    """The state of one fetcher at the broker."""

    __slots__ = (
        "_next_rank",
        "client_host",
        "client_id",
        "conditions",
        "created_ms",
        "due",
        "epoch",
        "idle_answer_ms",
        "incremental_fetches",
        "is_open",
        "is_privileged",
        "last_used_ms",
        "listener",
        "owner",
        "partitions",
        "saved_bytes",
        "session_id",
        "unacknowledged",
        "uses_topic_ids",
        "visits",
        "watches_candidates",
    )

    def __init__(
        self,
        session_id: int,
        owner: SessionOwner,
        *,
        is_privileged: bool,
        uses_topic_ids: bool,
        client_id: str,
        client_host: str,
        now_ms: int,
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        self.is_privileged = is_privileged
        """Whether a follower has created it: it is the last to be evicted."""
        self.uses_topic_ids = uses_topic_ids
        self.client_id = client_id
        self.client_host = client_host
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch of the next request."""
        self.partitions: dict[tuple[SessionTopic, int], SessionPartition] = {}
        self.due: dict[SessionPartition, None] = {}
        self.unacknowledged: Sequence[SessionPartition] = ()
        """Those that the last answer names."""
        self.conditions: Hashable = None
        """The facts that hold for all partitions, beside the state of each; see `put_under`."""
        self.listener: ChangeListener | None = None
        """The request that waits for changes of the session."""
        self.is_open = True
        self.visits: Any = None
        """The host's clock of the fetches of a follower's session."""
        self.watches_candidates = False
        """Whether the reader may be sent to other replicas (KIP-392)."""
        self.idle_answer_ms = 0
        """The earliest time of the next answer that has nothing but high watermarks."""
        self._next_rank = 0
        self.incremental_fetches = 0
        self.saved_bytes = 0
        """An estimate of the bytes that full fetches would have taken more, requests and answers together."""

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    # Requests

    def name(self, topics: Iterable[FetchTopic]) -> list[SessionPartition]:
        """Take the partitions that a request names, in order: new ones come last, known ones keep their rank."""
        named: list[SessionPartition] = []
        partitions, uses_topic_ids = self.partitions, self.uses_topic_ids
        for one in topics:
            topic: SessionTopic = bytes(one.topic_id) if uses_topic_ids else one.topic
            for wanted in one.partitions:
                key = (topic, wanted.partition)
                partition = partitions.get(key)
                if partition is None:
                    partition = partitions[key] = SessionPartition(self, topic, wanted, self._new_rank())
                else:
                    partition.wanted = wanted
                named.append(partition)
        self.due.update(dict.fromkeys(named))
        return named

    def forget(self, topics: Iterable[ForgottenTopic]) -> list[SessionPartition]:
        """Remove the partitions that a request forgets; those that were there. The host stops their watches."""
        gone: list[SessionPartition] = []
        for one in topics:
            topic: SessionTopic = bytes(one.topic_id) if self.uses_topic_ids else one.topic
            for index in one.partitions:
                partition = self.partitions.pop((topic, index), None)
                if partition is not None:
                    self.due.pop(partition, None)
                    gone.append(partition)
        return gone

    def begin(self) -> Sequence[SessionPartition]:
        """Begin an incremental fetch: the epoch rises before anything is read.

        Returns the partitions that the last answer named: the reader has that answer.
        """
        self.epoch = next_epoch(self.epoch)
        self.incremental_fetches += 1
        acknowledged, self.unacknowledged = self.unacknowledged, ()
        return acknowledged

    def put_under(self, conditions: Hashable) -> bool:
        """Have all partitions due if these conditions are not those of the last fetch; returns whether they are not."""
        if conditions == self.conditions:
            return False
        self.conditions = conditions
        self.due.update(dict.fromkeys(self.partitions.values()))
        return True

    def _new_rank(self) -> int:
        self._next_rank += 1
        return self._next_rank

    # Answers

    def due_in_order(self) -> list[SessionPartition]:
        """The partitions that are due, by rank."""
        return sorted(self.due, key=_rank_of)

    def settle(self, partition: SessionPartition) -> None:
        """The partition is clean: its reader has all of it, and knows its offsets."""
        del self.due[partition]

    def sent(self, named: Sequence[SessionPartition]) -> None:
        """The answer names these; they stay due until the next request acknowledges it."""
        self.unacknowledged = named

    def move_to_end(self, partition: SessionPartition) -> None:
        """The answer has records of this partition: it comes behind all others from now on."""
        partition.rank = self._new_rank()
