"""The partitions and limits of one Fetch, and its sender: a consumer or a follower."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol

from tailrace.model.access import Operation, SecuredResource, SecuredType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange
from tailrace.model.proofs import NO_SECRET
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, WireKeyRange
from tailrace.protocol.rows import pick
from tailrace.protocol.schema import replace
from tailrace.replication.outcomes import READ_COMMITTED, PartitionRead
from tailrace.replication.partition import Partition
from tailrace.replication.replica_progress import SessionVisits
from tailrace.replication.watchers import Change
from tailrace.server.context import RequestContext
from tailrace.server.fetch.budget import FetchLimits
from tailrace.server.fetch.replica_choice import ReplicaChoice
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
"""The replica id of a client that wants the records of this replica, whether this replica leads or not."""


class WantedPartition(Protocol):
    """A partition as its reader names it: a `FetchPartition`, or a partition of a session with the same fields."""

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


class Reader(ABC):
    """The sender of a fetch: a consumer or a follower. For a consumer the methods about followers do nothing."""

    __slots__ = ()

    is_replica = False
    """Whether the sender is a follower, which reads up to the log end."""
    must_check: bool
    """Whether `check` may refuse a partition that is led here in the epoch that the reader names."""

    @property
    def is_proven(self) -> bool:
        """Whether the sender is a registered broker, and has proved to be that broker."""
        return False

    @property
    def is_registered(self) -> bool:
        """Whether the sender is proven, and has sent the fetch in its present registration."""
        return False

    @property
    def choice(self) -> ReplicaChoice | None:
        """The choice of another replica for the sender; None if there is no choice."""
        return None

    @property
    @abstractmethod
    def conditions(self) -> Hashable:
        """The facts about the reader that `check` and `read` depend on, beside the partition itself."""

    @abstractmethod
    def check(self, partition: Partition, wanted: WantedPartition) -> None:
        """Raises KafkaError if the reader may not read the partition, also as `Partition.check_replica`."""

    def read(self, partition: Partition, wanted: WantedPartition, limits: ReadLimits) -> PartitionRead:
        """The records of the partition. Raises the errors of `Partition.read`."""
        return partition.read(limits)

    def is_behind(self, partition: Partition, wanted: WantedPartition) -> bool:
        """Whether a follower's high watermark is behind the partition's: then a full fetch must not wait (KIP-392)."""
        return False

    def deleted_keys(self, partition: Partition, wanted: WantedPartition) -> bytes:
        """The note of deleted keys (decision 0099) in its stored form, for a follower that does not have it yet."""
        return b""

    @abstractmethod
    def mark_recorded(self) -> None:
        """Note that the first pass is complete: a retry of the same request must not record a follower's fetch offsets
        again."""

    @abstractmethod
    def acknowledge(self, known: Iterable[tuple[Partition, int]]) -> None:
        """Note that the reader has these high watermarks of partitions from the last answer of its session."""

    def new_visits(self) -> SessionVisits | None:
        """A new clock for the session (see `SessionVisits`); None if the session's fetches acknowledge nothing."""
        return None

    def rest(self, partition: Partition, visits: SessionVisits | None) -> bool:
        """Note that the reader has the whole partition; returns whether the session's next fetch can skip the read."""
        return True

    @abstractmethod
    def end_rest(self, partition: Partition, visits: SessionVisits | None) -> None:
        """Note that later fetches of the session do not count for the partition: it cannot be read, or leaves the
        session."""

    @abstractmethod
    def mark_sent(self, given: Sequence[tuple[Partition, int]], *, has_session: bool) -> None:
        """Count partitions that were read in this turn and leave in an answer, with the bytes per partition."""


class FetchSender(NamedTuple):
    """The sender of a fetch, as stated by the request."""

    replica_id: int
    """The id of a follower; negative for a consumer."""
    broker_epoch: int
    """The epoch of the registration in which the follower fetches; -1 if the request does not state an epoch."""
    secret: bytes = NO_SECRET
    """The secret of a follower's incarnation."""


_CONSUMER_SENDER: Final = FetchSender(CONSUMER, -1)


def sender_of(request: FetchRequest, version: int) -> FetchSender:
    """The sender of this fetch."""
    if version < FIRST_WITH_REPLICA_STATE:
        return FetchSender(request.replica_id, -1, request.secret)
    state = request.replica_state
    if state.replica_id == CONSUMER:
        return _CONSUMER_SENDER
    return FetchSender(state.replica_id, state.replica_epoch, request.secret)


class SentBytes:
    """The bytes sent since the start of the broker. Plain numbers, read at a scrape."""

    __slots__ = ("to_consumers_by_follower", "to_consumers_by_leader", "to_followers")

    def __init__(self) -> None:
        self.to_followers = 0
        self.to_consumers_by_leader = 0
        """Bytes sent to consumers, of partitions that this broker led."""
        self.to_consumers_by_follower = 0
        """Bytes sent to consumers, of partitions that another broker led (KIP-392)."""

    def count(self, given: Iterable[tuple[Partition, int]], *, is_replica: bool) -> None:
        """Count an answer: its partitions, with the bytes per partition."""
        for partition, size_bytes in given:
            if size_bytes:
                partition.sent_bytes += size_bytes
                if is_replica:
                    self.to_followers += size_bytes
                elif partition.is_leader:
                    self.to_consumers_by_leader += size_bytes
                else:
                    self.to_consumers_by_follower += size_bytes


class FetchingConsumer(Reader):
    """A consumer: it reads up to the high watermark, or for read_committed up to the last stable offset.

    From Fetch v11 on a consumer may read from followers; before v11 only with replica id -2.
    """

    __slots__ = ("_sent", "_wants_leader", "choice", "conditions", "must_check")

    def __init__(
        self, version: int, sent: SentBytes, *, replica_id: int = CONSUMER, choice: ReplicaChoice | None = None
    ) -> None:
        """`replica_id` is negative. `sent` counts the bytes of its answers."""
        self._sent = sent
        self.must_check = version < FIRST_WITH_ZSTD
        self._wants_leader = version < FIRST_FROM_FOLLOWERS and replica_id != DEBUGGING_REPLICA
        self.choice: ReplicaChoice | None = choice
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

    def mark_recorded(self) -> None:
        pass  # fetch offsets of consumers are not recorded

    def acknowledge(self, known: Iterable[tuple[Partition, int]]) -> None:
        pass  # no broker waits for a consumer

    def end_rest(self, partition: Partition, visits: SessionVisits | None) -> None:
        pass

    def mark_sent(self, given: Sequence[tuple[Partition, int]], *, has_session: bool) -> None:
        self._sent.count(given, is_replica=False)


class _RulesVersion:
    """The version of the rules of access, as a value that can be compared: equal to the same version alone."""

    __slots__ = ("_version",)

    def __init__(self, version: object) -> None:
        self._version = version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RulesVersion) and self._version is other._version

    def __hash__(self) -> int:
        return id(self._version)


class FetchAccess:
    """The access of a consumer to the topics that it reads."""

    __slots__ = ("_by_id", "_context", "_version")

    def __init__(self, context: RequestContext, *, by_id: bool) -> None:
        self._context = context
        self._by_id = by_id
        self._version = _RulesVersion(context.services.authorizer.version)

    @property
    def conditions(self) -> Hashable:
        """The facts that the checks depend on: the rules when the request came, and the client's address. The principal
        of a session does not change."""
        return self._version, self._context.identity.address

    @property
    def is_outdated(self) -> bool:
        """Whether the rules have changed since the request came."""
        return _RulesVersion(self._context.services.authorizer.version) != self._version

    def check(self, topic: Any) -> None:
        """Raises the error of a topic, a name or an id, that the consumer may not read."""
        by_id = SecuredResource(SecuredType.TOPIC, "", topic) if self._by_id else None
        self._context.check(Operation.READ, by_id or SecuredResource(SecuredType.TOPIC, topic))


class FetchParams:
    """A request: its reader, its partitions in order, and its limits."""

    __slots__ = (
        "_conditions",
        "_kinds",
        "access",
        "context",
        "find",
        "is_throttled",
        "isolation",
        "key_reads",
        "limits",
        "reader",
        "request",
        "sender",
        "topics",
        "uses_topic_ids",
        "version",
        "views",
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
        self.context = context
        self.version = context.api_version
        self.uses_topic_ids = self.version >= FIRST_WITH_TOPIC_IDS
        self.find: Final[Callable[[Any, int], Partition]] = table.get_by_id if self.uses_topic_ids else table.get
        """Finds a partition by topic id or, in older versions, by topic name. Raises KafkaError as
        `PartitionTable.get`."""
        self.reader = reader
        self.topics = request.topics
        """The partitions that the request names; in a full fetch without repetitions."""
        self.isolation = request.isolation_level
        self.limits: Final = FetchLimits(request, fetch_max_bytes)
        self.is_throttled = False
        """Whether the answer has no records, since the consumer's quota is used up."""
        self._kinds = 0
        self._conditions: Hashable = None
        self.access: FetchAccess | None = None
        """The check of the topics that a consumer reads; None on a node without security, and for a follower."""
        if context.has_authorizer and not reader.is_replica:
            self.access = FetchAccess(context, by_id=self.uses_topic_ids)

    def name_each_once(self) -> int:
        """Remove repetitions from a full fetch: a repeated partition keeps its first place, and gets its last values.

        Returns the number of partitions.
        """
        topics = self.topics
        if len(topics) == 1 and len(topics[0].partitions) == 1:
            return 1
        if _names_twice(topics, by_id=self.uses_topic_ids):
            self.topics = _each_once(topics, by_id=self.uses_topic_ids)
        return sum(len(topic.partitions) for topic in self.topics)

    @property
    def watched_kinds(self) -> int:
        """The kinds of changes of a partition that may end the wait or, in a session, make the partition due."""
        if not self._kinds:
            self._kinds = _watched_kinds(self.reader, self.isolation, self.version)
        return self._kinds

    def find_in_view(self, topic: Any, index: int) -> tuple[Partition, KeyRange] | None:
        """The partition and the key range of a view partition, for a consumer. `topic` is a name or id that no topic
        has; the result is None if no view has it either. Raises the errors of `ReadableViews.partition`."""
        if self.reader.is_replica:
            return None
        view = self.views.with_id(topic) if self.uses_topic_ids else self.views.named(topic)
        return None if view is None else (self.views.partition(view, index), view.key_range(index))

    def no_view(self) -> KafkaError:
        """The error of a view that is not served any more."""
        code = ErrorCode.UNKNOWN_TOPIC_ID if self.uses_topic_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return KafkaError(code, "the topic is not read by key ranges any more")

    @property
    def conditions(self) -> Hashable:
        """The facts about the request that the answers of all its partitions depend on."""
        if self._conditions is None:
            access = None if self.access is None else self.access.conditions
            self._conditions = (self.version, self.isolation, self.reader.conditions, access)
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
        for named in topic.partitions:
            first, _ = wanted.get((key, named.partition), (topic, named))
            wanted[key, named.partition] = first, named
    in_order = groupby(wanted.values(), key=lambda entry: id(entry[0]))
    groups = [tuple(group) for _, group in in_order]
    return tuple(replace(group[0][0], partitions=tuple(named for _, named in group)) for group in groups)


def _watched_kinds(reader: Reader, isolation: int, version: int) -> int:
    kinds = Change.HIGH_WATERMARK | Change.LOG_START | Change.ROLE | Change.ERROR | Change.AVAILABLE
    if reader.is_replica:
        return kinds | Change.LOG_END | Change.IN_SYNC
    if reader.choice is not None:
        kinds |= Change.CANDIDATES
    if isolation == READ_COMMITTED:
        kinds |= Change.LAST_STABLE_OFFSET
    return kinds if version >= FIRST_WITH_ZSTD else kinds | Change.SETTINGS
