"""The partitions and limits of one Fetch, and its sender: a consumer or a follower."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from tailrace.metadata.views import ViewImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.proofs import NO_SECRET
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, WireKeyRange
from tailrace.protocol.rows import pick
from tailrace.protocol.schema import replace
from tailrace.replication.outcomes import READ_COMMITTED, PartitionRead
from tailrace.replication.partition import Partition
from tailrace.replication.replica_progress import SessionVisits
from tailrace.replication.watchers import Change
from tailrace.server.context import RequestContext
from tailrace.server.fetch.budget import wanted_bytes
from tailrace.server.fetch.replica_choice import ReplicaChoice
from tailrace.server.fetch.sent_bytes import SentBytes
from tailrace.server.fetch.views import ReadableViews
from tailrace.server.partitions.table import PartitionTable
from tailrace.storage import ReadLimits

FIRST_WITH_ZSTD: Final = 10
FIRST_FROM_FOLLOWERS: Final = 11
FIRST_WITH_TOPIC_IDS: Final = 13
FIRST_WITH_REPLICA_STATE: Final = 15
CONSUMER: Final = -1
"""The replica id of a consumer."""
_NUMBER: Final = ("partition", "partition_max_bytes")
DEBUGGING_REPLICA: Final = -2
"""The replica id of a client that asks for what this very replica has, whether it leads or not."""


class WantedPartition(Protocol):
    """One partition as its reader names it: `FetchPartition`, or that of a session, which has the same fields."""

    @property
    def partition(self) -> int: ...
    @property
    def fetch_offset(self) -> int: ...
    @property
    def partition_max_bytes(self) -> int: ...
    @property
    def current_leader_epoch(self) -> int: ...
    @property
    def last_fetched_epoch(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def key_ranges(self) -> Sequence[WireKeyRange]: ...


class Reader(Protocol):
    """The sender of a fetch: a consumer or a follower."""

    is_replica: bool
    """Whether it reads up to the log end."""

    @property
    def is_proven(self) -> bool:
        """Whether a registered broker asks, and has proved it. A consumer is none."""
        ...

    @property
    def is_registered(self) -> bool:
        """The same, and whether it asks in its present registration."""
        ...

    must_check: bool
    """Whether `check` may refuse a partition that is led here in the epoch that the reader names."""

    @property
    def choice(self) -> ReplicaChoice | None:
        """The choice of another replica; None if there is nothing to choose."""
        ...

    def check(self, partition: Partition, wanted: WantedPartition) -> None:
        """Raises KafkaError if the reader may not read the partition, of those of `Partition.check_replica` too."""
        ...

    def read(self, partition: Partition, wanted: WantedPartition, limits: ReadLimits) -> PartitionRead:
        """The records of the partition. Raises KafkaError as `Partition.read`."""
        ...

    def is_behind(self, partition: Partition, wanted: WantedPartition) -> bool:
        """Whether the reader's high watermark is behind the partition's: then a full fetch must not wait (KIP-392)."""
        ...

    def mark_recorded(self) -> None:
        """All partitions that the request names were read once: another reading records nothing."""
        ...

    def acknowledge(self, known: Iterable[tuple[Partition, int]]) -> None:
        """The reader has these high watermarks, each of a partition, from the last answer of its session."""
        ...

    def new_visits(self) -> SessionVisits | None:
        """The clock of a session under the present conditions; None if its fetches acknowledge nothing."""
        ...

    def rest(self, partition: Partition, visits: SessionVisits | None) -> bool:
        """The reader has all of the partition; returns whether the session's next fetch need not read it."""
        ...

    def end_rest(self, partition: Partition, visits: SessionVisits | None) -> None:
        """The partition cannot be read, or leaves the session: later fetches say nothing of it."""
        ...

    @property
    def conditions(self) -> Hashable:
        """The facts about the reader that `check` and `read` depend on, beside the partition itself."""
        ...

    def mark_sent(self, given: Sequence[tuple[Partition, int]], *, has_session: bool) -> None:
        """These partitions, which were read in this turn, leave in an answer, with the bytes of each: they count."""
        ...


class FetchSender(NamedTuple):
    """The sender of a fetch, as the request states it."""

    replica_id: int
    """Of a follower; negative for a consumer."""
    broker_epoch: int
    """Of the registration in which the follower asks; -1 if it does not say."""
    secret: bytes = NO_SECRET
    """Of the incarnation of a follower."""


_CONSUMER_SENDER: Final = FetchSender(CONSUMER, -1)


def sender_of(request: FetchRequest, version: int) -> FetchSender:
    """The sender of this fetch."""
    if version < FIRST_WITH_REPLICA_STATE:
        return FetchSender(request.replica_id, -1, request.secret)
    state = request.replica_state
    if state.replica_id == CONSUMER:
        return _CONSUMER_SENDER
    return FetchSender(state.replica_id, state.replica_epoch, request.secret)


class FetchingConsumer:
    """A consumer: it reads up to the high watermark, or for read_committed up to the last stable offset.

    From Fetch v11 on it may read from followers; so may one of any version that says so by its replica id.
    """

    is_replica = False
    is_proven = is_registered = False

    __slots__ = ("_sent", "_wants_leader", "choice", "conditions", "must_check")

    def __init__(
        self, version: int, sent: SentBytes, *, replica_id: int = CONSUMER, choice: ReplicaChoice | None = None
    ) -> None:
        """`replica_id` is negative. `sent` counts the bytes of its answers."""
        self._sent = sent
        self.must_check = version < FIRST_WITH_ZSTD
        self._wants_leader = version < FIRST_FROM_FOLLOWERS and replica_id != DEBUGGING_REPLICA
        self.choice = choice
        self.conditions: Hashable = None if choice is None else choice.client

    def check(self, partition: Partition, wanted: WantedPartition) -> None:
        if self._wants_leader or partition.is_leader:
            partition.check_leader(wanted.current_leader_epoch)
        else:
            partition.check_replica(wanted.current_leader_epoch)
        if self.must_check and partition.config.compression_type == "zstd":
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "the topic is compressed with zstd: Fetch v10 or later"
            )

    def read(self, partition: Partition, wanted: WantedPartition, limits: ReadLimits) -> PartitionRead:
        return partition.read(limits)

    def is_behind(self, partition: Partition, wanted: WantedPartition) -> bool:
        return False

    def mark_recorded(self) -> None:
        pass

    def acknowledge(self, known: Iterable[tuple[Partition, int]]) -> None:
        pass

    def new_visits(self) -> None:
        return None

    def rest(self, partition: Partition, visits: SessionVisits | None) -> bool:
        return True

    def end_rest(self, partition: Partition, visits: SessionVisits | None) -> None:
        pass

    def mark_sent(self, given: Sequence[tuple[Partition, int]], *, has_session: bool) -> None:
        self._sent.count(given, is_replica=False)


class FetchParams:
    """One request: its reader, its partitions in order, and its limits."""

    __slots__ = (
        "_conditions",
        "_kinds",
        "_table",
        "context",
        "fetch_max_bytes",
        "isolation",
        "key_reads",
        "reader",
        "request",
        "sender",
        "topics",
        "version",
        "views",
        "wanted_bytes",
    )

    def __init__(
        self,
        request: FetchRequest,
        context: RequestContext,
        sender: FetchSender,
        reader: Reader,
        table: PartitionTable,
        fetch_max_bytes: int,
        views: ReadableViews,
    ) -> None:
        self.request = request
        self.views = views
        self.key_reads = views.key_reads
        self.sender = sender
        self._table = table
        self.fetch_max_bytes = fetch_max_bytes
        self.context = context
        self.version = context.api_version
        self.reader = reader
        self.topics = request.topics
        """The partitions that the request names; of a full fetch each once."""
        self.isolation = request.isolation_level
        self.wanted_bytes = wanted_bytes(request, fetch_max_bytes=fetch_max_bytes)
        """The bytes that the request waits for; 0 or less: it does not wait."""
        self._kinds = 0
        self._conditions: Hashable = None

    def name_each_once(self) -> None:
        """Leave out what a full fetch says twice: a partition has the place that comes first, and what is said last."""
        by_id = self.version >= FIRST_WITH_TOPIC_IDS
        if _names_twice(self.topics, by_id=by_id):
            self.topics = _each_once(self.topics, by_id=by_id)

    @property
    def watched_kinds(self) -> int:
        """The changes of a partition that may end the wait, or make it due in a session."""
        if not self._kinds:
            self._kinds = _watched_kinds(self.reader, self.isolation, self.version)
        return self._kinds

    def partition(self, topic: str, topic_id: bytes, index: int) -> Partition:
        """The partition, by topic name or by topic id as the version has it. Raises KafkaError as
        `PartitionTable.get`."""
        if self.version < FIRST_WITH_TOPIC_IDS:
            return self._table.get(topic, index)
        return self._table.get_by_id(topic_id, index)

    def view(self, topic: str, topic_id: bytes) -> ViewImage | None:
        """The view of this name or id. A follower reads none."""
        if self.reader.is_replica:
            return None
        return self.views.named(topic) if self.version < FIRST_WITH_TOPIC_IDS else self.views.with_id(topic_id)

    def no_view(self) -> KafkaError:
        """The error of a view that is not served any more."""
        by_id = self.version >= FIRST_WITH_TOPIC_IDS
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return KafkaError(code, "the topic is not shared by key ranges any more")

    @property
    def conditions(self) -> Hashable:
        """The facts about the request that the answers of all its partitions depend on."""
        if self._conditions is None:
            self._conditions = (self.version, self.isolation, self.reader.conditions)
        return self._conditions


def _names_twice(topics: Sequence[FetchTopic], *, by_id: bool) -> bool:
    """Whether a partition is named twice."""
    if len({bytes(topic.topic_id) if by_id else topic.topic for topic in topics}) == len(topics):
        return any(
            len(topic.partitions) > 1
            and len({number for number, _ in pick(topic.partitions, _NUMBER)}) < len(topic.partitions)
            for topic in topics
        )
    of_topics: dict[str | bytes, set[int]] = {}
    for topic in topics:
        known = of_topics.setdefault(bytes(topic.topic_id) if by_id else topic.topic, set())
        before = len(known)
        known.update(number for number, _ in pick(topic.partitions, _NUMBER))
        if len(known) - before < len(topic.partitions):
            return True
    return False


def _each_once(topics: Sequence[FetchTopic], *, by_id: bool) -> tuple[FetchTopic, ...]:
    wanted: dict[tuple[str | bytes, int], tuple[FetchTopic, FetchPartition]] = {}
    for topic in topics:
        key = bytes(topic.topic_id) if by_id else topic.topic
        for one in topic.partitions:
            first, _ = wanted.get((key, one.partition), (topic, one))
            wanted[key, one.partition] = first, one
    in_order = groupby(wanted.values(), key=lambda entry: id(entry[0]))
    groups = [tuple(group) for _, group in in_order]
    return tuple(replace(group[0][0], partitions=tuple(one for _, one in group)) for group in groups)


def _watched_kinds(reader: Reader, isolation: int, version: int) -> int:
    kinds = Change.HIGH_WATERMARK | Change.LOG_START | Change.ROLE | Change.ERROR
    if reader.is_replica:
        return kinds | Change.LOG_END | Change.IN_SYNC
    if reader.choice is not None:
        kinds |= Change.CANDIDATES
    if isolation == READ_COMMITTED:
        kinds |= Change.LAST_STABLE_OFFSET
    return kinds if version >= FIRST_WITH_ZSTD else kinds | Change.SETTINGS
