"""One fetch session at the broker: its partitions, and what answers have said of them (KIP-227). Pure.

1. A partition of the session is *due* when an answer may have to name it: it is new or named by the request, something
   about it has changed, its last answer is not acknowledged, its reader lags, or it is an error. All others are
   *clean*: an incremental fetch costs what is due, however many are clean. A partition that does not exist is clean
   once its reader knows that: metadata brings it.
2. An answer is acknowledged by the request with the next epoch, and not before: if it is lost, no such request comes.
   So a partition that an answer names stays due until then.
3. Partitions are in the order of their ranks. One whose records an answer gives gets a new rank, behind all others: so
   each has its turn, however small the answers are.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from tailrace.fetch_session.epochs import INITIAL_EPOCH, next_epoch
from tailrace.model.errors import ErrorCode
from tailrace.model.key_ranges import KeyRange
from tailrace.model.partitions import MAX_TOPIC_NAME
from tailrace.protocol.messages.fetch import FetchTopic, ForgottenTopic, PartitionData, WireKeyRange
from tailrace.protocol.rows import pick

UNKNOWN: Final = -1
UNPROVEN: Final = -2

FIRST_WITH_TOPIC_IDS: Final = 13

DOES_NOT_EXIST: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""The errors of a partition that metadata does not have."""

SessionTopic = str | bytes
"""The name of a topic, or its id from Fetch v13 on."""


class SessionOwner(NamedTuple):
    """The reader that a session belongs to. For all others there is no such session."""

    principal: str
    listener_name: str
    replica_id: int
    """-1 for a consumer, -2 for a sender that asks as a replica and has not proved that it is this replica."""


class ChangeListener(Protocol):
    """The part that waits for changes of a session."""

    def changed(self, subject: Any, kinds: int, /) -> None: ...


class SessionPartition:
    """One partition of a session. It watches its subject: a change makes it due.

    It has the fields of `FetchPartition` as its reader last named them, and keeps no part of the request.
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "high_watermark",
        "key_ranges",
        "known_high_watermark",
        "known_log_start_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "partition",
        "partition_max_bytes",
        "rank",
        "session",
        "subject",
        "topic",
        "view",
    )

    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    """The reader's own, of a follower."""
    high_watermark: int
    """The reader's own, of a follower from v18 on."""
    key_ranges: Sequence[WireKeyRange]

    def __init__(self, session: "FetchSession", topic: SessionTopic, partition: int, rank: int) -> None:
        self.session: FetchSession = session
        self.topic = topic
        self.partition = partition
        """The number of the partition."""
        self.rank = rank
        self.known_high_watermark = UNKNOWN
        """As the last answer had it; -1: the next one has to have it in any case."""
        self.known_log_start_offset = UNKNOWN
        self.key_ranges = ()
        self.subject: Any = None
        """The partition that the host has found for it; None before that."""
        self.view: KeyRange | None = None
        """The key range of a view partition: a part of its subject."""

    def changed(self, subject: Any, kinds: int, /) -> None:
        """Take note of a change of the subject."""
        session = self.session
        session.due[self] = None
        if session.listener is not None:
            session.listener.changed(subject, kinds)

    def has_waited(self, wait_ms: int) -> bool:
        """Whether the reader has waited so long for this offset, over all of its fetches. Called at each of them."""
        now_ms = self.session.last_used_ms
        return now_ms - self.session.waiting.setdefault(self, now_ms) >= wait_ms

    @property
    def is_known(self) -> bool:
        """Whether the last answer had the offsets of a partition that exists here, and no error."""
        return self.subject is not None and self.known_high_watermark != UNKNOWN

    def is_news(self, data: PartitionData) -> bool:
        """Whether the last answer had another high watermark or log start, or a scan for key ranges has got on."""
        return (
            data.high_watermark != self.known_high_watermark
            or data.log_start_offset != self.known_log_start_offset
            or data.scanned_to > self.fetch_offset
        )


STATED_FIELDS: Final = (
    "partition",
    "fetch_offset",
    "partition_max_bytes",
    "current_leader_epoch",
    "last_fetched_epoch",
    "log_start_offset",
    "high_watermark",
    "key_ranges",
)
"""The fields of a partition in a request that a session keeps."""
MAX_KEY_RANGES: Final = 100_000
"""Of all partitions of a session: one each of as many partitions as a consumer can read."""
_rank_of: Final = attrgetter("rank")
_SPARSE: Final = 8
"""So many times as many partitions have been due as are now: those are kept anew."""


class FetchSession:
    """The state of one fetcher at the broker."""

    __slots__ = (
        "_last_rank",
        "_most_due",
        "_named_in_order",
        "_topics",
        "client",
        "client_host",
        "client_id",
        "conditions",
        "counted",
        "created_ms",
        "due",
        "epoch",
        "has_long_names",
        "idle_answer_ms",
        "incremental_fetches",
        "is_busy",
        "is_open",
        "is_privileged",
        "key_range_count",
        "last_used_ms",
        "listener",
        "missing",
        "missing_told_ms",
        "owner",
        "partition_count",
        "saved_bytes",
        "session_id",
        "unacknowledged",
        "uses_topic_ids",
        "visits",
        "waiting",
        "watches_candidates",
    )

    def __init__(
        self,
        session_id: int,
        owner: SessionOwner,
        *,
        client: Hashable,
        is_privileged: bool,
        uses_topic_ids: bool,
        client_id: str,
        client_host: str,
        now_ms: int,
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        self.client = client
        """The client by which the places of sessions are shared out."""
        self.is_privileged = is_privileged
        """Whether a follower has created it: it is the last to be evicted."""
        self.uses_topic_ids = uses_topic_ids
        self.client_id = client_id
        self.client_host = client_host
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch of the next request."""
        self._topics: dict[SessionTopic, dict[int, SessionPartition]] = {}
        self.partition_count = 0
        self.counted = (0, 0)
        """Its partitions that exist and those that do not, as `session_places` has counted them."""
        self.missing: dict[SessionPartition, bool] = {}
        """Those that did not exist when they were looked for; True: the last answer about them has said so."""
        self.missing_told_ms = now_ms
        """The time from which on missing partitions are clean once an answer has named them."""
        self.has_long_names = False
        """Whether it was to have topics with names that none can have."""
        self.key_range_count = 0
        """The key ranges of all partitions (KIP-X)."""
        self.due: dict[SessionPartition, None] = {}
        self.waiting: dict[SessionPartition, int] = {}
        """Those whose offset is above the high watermark, and since when their readers wait, in ms."""
        self.unacknowledged: list[SessionPartition] = []
        """Those that the last answer names."""
        self.conditions: Hashable = None
        """The facts that hold for all partitions, beside the state of each; see `put_under`."""
        self.listener: ChangeListener | None = None
        """The request that waits for changes of the session."""
        self.is_busy = False
        """Whether a request of it is carried out in steps: another one has to wait for it."""
        self.is_open = True
        self.visits: Any = None
        """The host's clock of the fetches of a follower's session."""
        self.watches_candidates = False
        """Whether the reader may be sent to other replicas (KIP-392)."""
        self.idle_answer_ms = 0
        """The earliest time of the next answer that has nothing but high watermarks."""
        self._last_rank = 0
        self._most_due = 0
        self._named_in_order: list[SessionPartition] | None = None
        """Those that the request has named, if it did so by rank; None when they have been read."""
        self.incremental_fetches = 0
        self.saved_bytes = 0
        """An estimate of the bytes that full fetches would have taken more, requests and answers together."""

    def __iter__(self) -> Iterator[SessionPartition]:
        """All partitions, in no order."""
        return chain.from_iterable(topic.values() for topic in self._topics.values())

    def find(self, topic: SessionTopic, index: int) -> SessionPartition | None:
        """The partition, if the session has it."""
        return self._topics.get(topic, {}).get(index)

    @property
    def existing_count(self) -> int:
        """The partitions that exist, as far as they were looked for."""
        return self.partition_count - len(self.missing)

    @property
    def is_excessive(self) -> bool:
        """Whether it must end: its names of topics or its key ranges would take much memory."""
        return self.has_long_names or self.key_range_count > MAX_KEY_RANGES

    # Requests

    def name(
        self,
        topics: Iterable[FetchTopic],
        key_ranges: Sequence[WireKeyRange] = (),
        before: list[SessionPartition] | None = None,
    ) -> list[SessionPartition]:
        """Take the partitions that a request names, in order: new ones come last, known ones keep their rank.

        `key_ranges` are those of partitions that have none of their own (KIP-X). `before`: the partitions that the
        request has named by then, to which these are added.
        """
        named: list[SessionPartition] = [] if before is None else before
        due, waiting, missing, uses_topic_ids = self.due, self.waiting, self.missing, self.uses_topic_ids
        last_rank, is_in_order, shared_max_bytes = 0, True, UNKNOWN
        if named:
            last_rank, is_in_order = named[-1].rank, self._named_in_order is named
        for one in topics:
            topic: SessionTopic = bytes(one.topic_id) if uses_topic_ids else one.topic
            partitions = self._topics.get(topic)
            if partitions is None:
                if not one.partitions:
                    continue
                partitions = self._topics[topic] = {}
                self.has_long_names |= len(topic) > MAX_TOPIC_NAME
            stated = pick(one.partitions, STATED_FIELDS)
            for number, offset, max_bytes, leader_epoch, fetched_epoch, log_start, high_watermark, ranges in stated:
                partition = partitions.get(number)
                if partition is None:
                    partition = partitions[number] = self._new_partition(topic, number)
                partition.fetch_offset = offset
                if max_bytes != shared_max_bytes:
                    shared_max_bytes = max_bytes
                partition.partition_max_bytes = shared_max_bytes  # one number for all, not an object for each
                partition.current_leader_epoch = leader_epoch
                partition.last_fetched_epoch = fetched_epoch
                partition.log_start_offset = log_start
                partition.high_watermark = high_watermark
                wanted_ranges = ranges or key_ranges
                if wanted_ranges is not partition.key_ranges:
                    self.key_range_count += len(wanted_ranges) - len(partition.key_ranges)
                    partition.key_ranges = wanted_ranges
                if waiting:
                    waiting.pop(partition, None)
                if missing and partition in missing:
                    missing[partition] = False
                due[partition] = None
                named.append(partition)
                rank = partition.rank
                if rank <= last_rank:
                    is_in_order = False
                last_rank = rank
        self._named_in_order = named if is_in_order else None
        return named

    def _new_partition(self, topic: SessionTopic, number: int) -> SessionPartition:
        self.partition_count += 1
        self._last_rank += 1
        return SessionPartition(self, topic, number, self._last_rank)

    def forget(self, topics: Iterable[ForgottenTopic]) -> list[SessionPartition]:
        """Remove the partitions that a request forgets; those that were there. The host stops their watches."""
        gone: list[SessionPartition] = []
        self._named_in_order = None
        for one in topics:
            topic: SessionTopic = bytes(one.topic_id) if self.uses_topic_ids else one.topic
            partitions = self._topics.get(topic, {})
            for index in one.partitions:
                partition = partitions.pop(index, None)
                if partition is not None:
                    self.key_range_count -= len(partition.key_ranges)
                    self.due.pop(partition, None)
                    self.waiting.pop(partition, None)
                    self.missing.pop(partition, None)
                    gone.append(partition)
            if not partitions:
                self._topics.pop(topic, None)
        self.partition_count -= len(gone)
        return gone

    def begin(self) -> Sequence[SessionPartition]:
        """Begin an incremental fetch: the epoch rises before anything is read.

        Returns the partitions that the last answer named: the reader has that answer.
        """
        self.epoch = next_epoch(self.epoch)
        self.incremental_fetches += 1
        acknowledged, self.unacknowledged = self.unacknowledged, []
        return acknowledged

    def put_under(self, conditions: Hashable) -> bool:
        """Have all partitions due if these conditions are not those of the last fetch; returns whether they are not."""
        if conditions == self.conditions:
            return False
        self.conditions = conditions
        self.due.update(dict.fromkeys(self))
        return True

    def came(self, topic: SessionTopic, number: int, kinds: int) -> None:
        """Have this partition due if it was missing."""
        partition = self.find(topic, number)
        if partition is not None and partition in self.missing:
            partition.changed(None, kinds)

    def tell_missing_again(self, now_ms: int) -> None:
        """Have all missing partitions due, and the next answer name them."""
        self.missing_told_ms = now_ms
        self.missing = dict.fromkeys(self.missing, False)
        self.due.update(dict.fromkeys(self.missing))

    # Answers

    def is_known_to_miss(self, partition: SessionPartition) -> bool:
        """Note that the partition does not exist; whether its reader has an answer that says so."""
        return self.missing.setdefault(partition, False)

    def found(self, partition: SessionPartition) -> None:
        """Note that the partition exists."""
        self.missing.pop(partition, None)

    def due_in_order(self) -> list[SessionPartition]:
        """The partitions that are due, by rank."""
        count, named = len(self.due), self._named_in_order
        self._named_in_order = None
        if count > self._most_due:
            self._most_due = count
        elif count < self._most_due // _SPARSE:
            # A dictionary keeps the room of what has left it, and would be walked through from end to end.
            self.due, self._most_due = dict(self.due), count
        if named is not None and len(named) == count:
            return named  # those that are named are due, and no others are
        return sorted(self.due, key=_rank_of)

    def settle(self, partition: SessionPartition) -> None:
        """The partition is clean: its reader has all of it, and knows its offsets."""
        del self.due[partition]

    def put_last(self, partition: SessionPartition) -> None:
        """The partition comes behind all others from now on, though no answer names it: it has had its turn."""
        self._last_rank += 1
        partition.rank, self._named_in_order = self._last_rank, None

    def opened(self, named: Sequence[SessionPartition], answers: Iterable[PartitionData]) -> None:
        """A full answer, which begins the session, is on its way: it names all of them, in this order."""
        self.answered(named, answers, rotates=False)

    def answered(
        self, named: Sequence[SessionPartition], answers: Iterable[PartitionData], *, rotates: bool = True
    ) -> None:
        """An answer is on its way that names these, perhaps beside others. They stay due until the next request
        acknowledges it.

        A partition of which it has records comes behind all others from now on, if it `rotates`. After an error or a
        divergence, in which readers look at nothing else, the next answer has to say everything again.
        """
        last_rank = self._last_rank
        for partition, data in zip(named, answers, strict=True):
            if data.error_code or data.diverging_epoch.epoch >= 0:
                partition.known_high_watermark = partition.known_log_start_offset = UNKNOWN
                if partition.subject is None and data.error_code in DOES_NOT_EXIST:
                    self.missing[partition] = True
                continue
            partition.known_high_watermark = data.high_watermark
            partition.known_log_start_offset = data.log_start_offset
            if rotates and (data.records or data.scanned_to > partition.fetch_offset):
                last_rank += 1
                partition.rank = last_rank
        self._last_rank, self._named_in_order = last_rank, None
        self.unacknowledged += named
