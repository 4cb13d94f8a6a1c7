"""A fetch session at the broker: its partitions, and what the last answers have stated of these partitions (KIP-227).
Pure.

1. A partition of the session is *due* when an answer may have to name the partition: a new partition, a partition that
   the request names, that has changed, whose last answer is not acknowledged, whose reader lags, or that has an error.
   Any other partition is *clean*: the cost of an incremental fetch grows with the due partitions only. A missing
   partition is clean once its reader knows that the partition is missing: when the partition exists, a change of the
   metadata makes it due.
2. An answer is acknowledged by the request with the next epoch, and not before: after a lost answer no request with the
   next epoch comes. So a partition that an answer names stays due until the acknowledgement.
3. Partitions are answered in the order of their ranks. When an answer carries records of a partition, the partition
   moves to the end of the order, so that every partition gets its turn, however small the answers are.
4. Nothing outside this file writes the state of a session or of its partitions (decision 0095).
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

DOES_NOT_EXIST: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""The errors of a partition that metadata does not have."""

SessionTopic = str | bytes
"""The name of a topic, or its id from Fetch v13 on."""


class SessionOwner(NamedTuple):
    """The reader that a session belongs to. No other reader can find the session."""

    principal: str
    listener_name: str
    replica_id: int
    """-1 for a consumer, -2 for a sender that asks as a replica and has not proved to be this replica."""


class ChangeListener(Protocol):
    """The request that waits for changes of a session."""

    def changed(self, subject: Any, kinds: int, /) -> None: ...


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


class SessionPartition:
    """A partition of a session. The partition watches its subject, and becomes due when the subject changes.

    The partition has the fields of the reader's last `FetchPartition`, and keeps no part of the request.
    """

    __slots__ = (
        *STATED_FIELDS,
        "known_high_watermark",
        "known_log_start_offset",
        "rank",
        "session",
        "subject",
        "topic",
        "view",
    )

    fetch_offset: int
    partition: int
    """The number of the partition."""
    partition_max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    """The log start of the reader, if the reader is a follower."""
    high_watermark: int
    """The high watermark of the reader, if the reader is a follower with Fetch v18 or later."""
    key_ranges: Sequence[WireKeyRange]

    def __init__(self, session: "FetchSession", topic: SessionTopic, partition: int, rank: int) -> None:
        self.session: FetchSession = session
        self.topic = topic
        self.partition = partition
        self.rank = rank
        self.known_high_watermark = UNKNOWN
        """The high watermark in the last answer; -1: the next answer states the high watermark in any case."""
        self.known_log_start_offset = UNKNOWN
        self.key_ranges = ()
        self.subject: Any = None
        """The subject that the host has found: a partition of this broker; None until the host has found a subject."""
        self.view: KeyRange | None = None
        """The key range of a view partition, which is a part of its subject."""

    def changed(self, subject: Any, kinds: int, /) -> None:
        """Become due, and notify the request that waits."""
        session = self.session
        session.due[self] = None
        if session.listener is not None:
            session.listener.changed(subject, kinds)

    def found(self, subject: Any, kinds: int, view: KeyRange | None = None) -> None:
        """Take the subject that the host has found, with the key range of a view partition, and watch it for changes of
        these kinds. A session that is closed watches nothing."""
        session = self.session
        session.missing.pop(self, None)
        self.view = view
        if session.is_open:
            subject.watch(self, kinds)
            self.subject = subject

    def lose(self) -> None:
        """Watch the subject no more: the host has to find it anew."""
        if self.subject is not None:
            self.subject.unwatch(self)
            self.subject = self.view = None

    def has_waited(self, wait_ms: int) -> bool:
        """Whether `wait_ms` have passed since the first fetch at this offset. Call it at every fetch: the first call
        starts the clock."""
        now_ms = self.session.last_used_ms
        return now_ms - self.session.waiting.setdefault(self, now_ms) >= wait_ms

    @property
    def is_known(self) -> bool:
        """Whether the last answer had the offsets of a partition that exists here, and no error."""
        return self.subject is not None and self.known_high_watermark != UNKNOWN

    def has_changed(self, data: PartitionData) -> bool:
        """Whether the high watermark or the log start differs from the last answer, or a scan for key ranges has
        advanced."""
        return (
            data.high_watermark != self.known_high_watermark
            or data.log_start_offset != self.known_log_start_offset
            or data.scanned_to > self.fetch_offset
        )


MAX_KEY_RANGES: Final = 100_000
"""The most key ranges of a session: a consumer has a range in every partition that it can read."""
_rank_of: Final = attrgetter("rank")
_SPARSE: Final = 8
"""When fewer partitions are due than an eighth of the most that were due, the due partitions move to a new
dictionary."""


class FetchSession:
    """The state of one reader at the broker. The class has no `__slots__`: there are a thousand sessions, not a
    million."""

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
        """The client of the session: clients share the places for sessions."""
        self.is_privileged = is_privileged
        """Whether a follower has created the session: sessions of followers are evicted last."""
        self.uses_topic_ids = uses_topic_ids
        self.client_id = client_id
        self.client_host = client_host
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch of the next request."""
        self._topics: dict[SessionTopic, dict[int, SessionPartition]] = {}
        self.partition_count = 0
        self.counted = (0, 0)
        """The numbers of existing and of missing partitions at the last count of `session_places`."""
        self.missing: dict[SessionPartition, bool] = {}
        """The partitions that did not exist when the host looked; True: an answer has named the partition as missing to
        the reader."""
        self.missing_told_ms = now_ms
        """The time from which on a missing partition is clean once an answer has named the partition."""
        self.has_long_names = False
        """Whether requests have named topics whose names are longer than a topic's can be."""
        self.key_range_count = 0
        """The key ranges of all partitions (KIP-X)."""
        self.due: dict[SessionPartition, None] = {}
        self.waiting: dict[SessionPartition, int] = {}
        """The partitions whose offset is above the high watermark, with the time since which the reader waits."""
        self.unacknowledged: list[SessionPartition] = []
        """The partitions that the last answer names."""
        self.conditions: Hashable = None
        """The facts that the answers of all partitions depend on; see `begin_under`."""
        self.listener: ChangeListener | None = None
        self.is_busy = False
        """Whether a request of the session is carried out in steps: the next request has to wait for the last step."""
        self.is_open = True
        self.visits: Any = None
        """The host's clock of the fetches of a follower's session."""
        self.may_redirect = False
        """Whether the reader may be sent to other replicas (KIP-392)."""
        self.idle_answer_ms = 0
        """The earliest time of the next answer that has nothing but high watermarks."""
        self._last_rank = 0
        self._most_due = 0
        self._named_in_order: list[SessionPartition] | None = None
        """The partitions that the request has named by rank; None when the host has read these partitions."""
        self.incremental_fetches = 0
        self.saved_bytes = 0
        """An estimate of the bytes by which full fetches would have been larger, requests and answers together."""

    def __iter__(self) -> Iterator[SessionPartition]:
        """Iterate over the partitions, in no order."""
        return chain.from_iterable(topic.values() for topic in self._topics.values())

    def find(self, topic: SessionTopic, index: int) -> SessionPartition | None:
        """The partition; None if the session does not have this partition."""
        return self._topics.get(topic, {}).get(index)

    @property
    def existing_count(self) -> int:
        """The number of partitions that exist, as far as the host has looked for the partitions."""
        return self.partition_count - len(self.missing)

    @property
    def is_excessive(self) -> bool:
        """Whether the session must end: names of topics or key ranges would take much memory."""
        return self.has_long_names or self.key_range_count > MAX_KEY_RANGES

    # Requests

    def name(
        self,
        topics: Iterable[FetchTopic],
        key_ranges: Sequence[WireKeyRange] = (),
        before: list[SessionPartition] | None = None,
    ) -> list[SessionPartition]:
        """Take the partitions that a request names, in order: a new partition comes last, a known one keeps its rank.

        `key_ranges` are for partitions without ranges of their own (KIP-X). `before`: the partitions that the request
        has named so far; the result is this list, with the partitions of `topics` at its end.
        """
        named: list[SessionPartition] = [] if before is None else before
        due, waiting, missing, uses_topic_ids = self.due, self.waiting, self.missing, self.uses_topic_ids
        last_rank, is_in_order, shared_max_bytes = 0, True, UNKNOWN
        if named:
            last_rank, is_in_order = named[-1].rank, self._named_in_order is named
        for wanted in topics:
            topic: SessionTopic = bytes(wanted.topic_id) if uses_topic_ids else wanted.topic
            partitions = self._topics.get(topic)
            if partitions is None:
                if not wanted.partitions:
                    continue
                partitions = self._topics[topic] = {}
                self.has_long_names |= len(topic) > MAX_TOPIC_NAME
            stated = pick(wanted.partitions, STATED_FIELDS)
            for number, offset, max_bytes, leader_epoch, fetched_epoch, log_start, high_watermark, ranges in stated:
                partition = partitions.get(number)
                if partition is None:
                    self.partition_count += 1
                    self._last_rank += 1
                    partition = partitions[number] = SessionPartition(self, topic, number, self._last_rank)
                partition.fetch_offset = offset
                if max_bytes != shared_max_bytes:
                    shared_max_bytes = max_bytes
                partition.partition_max_bytes = shared_max_bytes  # the partitions share one number object
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

    def forget(self, topics: Iterable[ForgottenTopic]) -> list[SessionPartition]:
        """Remove the partitions that a request forgets; returns the removed partitions, for the host to let go."""
        gone: list[SessionPartition] = []
        self._named_in_order = None
        for forgotten in topics:
            topic: SessionTopic = bytes(forgotten.topic_id) if self.uses_topic_ids else forgotten.topic
            partitions = self._topics.get(topic, {})
            for index in forgotten.partitions:
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
        """Begin an incremental fetch: the epoch rises before anything is read. A request that still waits is notified,
        so that it ends with an error. Returns the partitions that the last answer named: this request acknowledges the
        answer."""
        self.epoch = next_epoch(self.epoch)
        self.incremental_fetches += 1
        acknowledged, self.unacknowledged = self.unacknowledged, []
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.changed(None, 0)
        return acknowledged

    def begin_under(self, conditions: Hashable, visits: Any, *, may_redirect: bool) -> None:
        """Make every partition due: the request comes under other conditions than the request before, with a clock of
        its own. The host finds the partitions anew."""
        self.conditions, self.visits, self.may_redirect = conditions, visits, may_redirect
        self.due.update(dict.fromkeys(self))

    def used(self, now_ms: int) -> None:
        """Note that a request of the session was taken or answered now."""
        self.last_used_ms = now_ms

    def set_busy(self, *, is_busy: bool) -> None:
        """Let later requests of the session wait for a request that is carried out in steps, or go on."""
        self.is_busy = is_busy

    def listen(self, listener: ChangeListener | None) -> None:
        """Notify this waiting request of every change; None: no request waits."""
        self.listener = listener

    def close(self) -> None:
        """End the session. At the next `recount` its places are free again."""
        self.is_open = False

    def recount(self) -> tuple[int, int]:
        """Count the existing and the missing partitions; a closed session has no partitions. Returns how far both
        numbers have risen since the last count."""
        before_existing, before_missing = self.counted
        self.counted = (self.existing_count, len(self.missing)) if self.is_open else (0, 0)
        return self.counted[0] - before_existing, self.counted[1] - before_missing

    def tell_missing_again(self, now_ms: int) -> None:
        """Make the missing partitions due, so that the next answer names the missing partitions."""
        self.missing_told_ms = now_ms
        self.missing = dict.fromkeys(self.missing, False)
        self.due.update(dict.fromkeys(self.missing))

    # Answers

    def is_known_to_miss(self, partition: SessionPartition) -> bool:
        """Note that the partition does not exist; returns whether an answer has named the partition as missing to the
        reader."""
        return self.missing.setdefault(partition, False)

    def due_in_order(self) -> list[SessionPartition]:
        """The partitions that are due, by rank."""
        count, named = len(self.due), self._named_in_order
        self._named_in_order = None
        if count > self._most_due:
            self._most_due = count
        elif count < self._most_due // _SPARSE:
            # A dictionary keeps the room of removed entries, and would be walked through from end to end.
            self.due, self._most_due = dict(self.due), count
        if named is not None and len(named) == count:
            return named  # the named partitions are due, and no other partition is
        return sorted(self.due, key=_rank_of)

    def mark_clean(self, partition: SessionPartition) -> None:
        """Make the partition clean: the reader has every record of the partition, and knows its offsets."""
        del self.due[partition]

    def put_last(self, partition: SessionPartition) -> None:
        """Move the partition to the end of the order, though no answer names the partition: its turn is over."""
        self._last_rank += 1
        partition.rank, self._named_in_order = self._last_rank, None

    def may_answer_idle(self, now_ms: int, pause_ms: int) -> bool:
        """Whether an answer that has nothing but high watermarks may leave now. If so, the next such answer has to wait
        for `pause_ms`; if not, this answer has to wait until `idle_answer_ms`."""
        if now_ms < self.idle_answer_ms:
            return False
        self.idle_answer_ms = now_ms + pause_ms
        return True

    def count_saved(self, named: int, size_bytes: int) -> None:
        """Count the bytes that an incremental request or answer has saved: `size_bytes` for each partition that the
        request or answer does not name."""
        self.saved_bytes += (self.partition_count - named) * size_bytes

    def answered(
        self, named: Sequence[SessionPartition], answers: Iterable[PartitionData], *, rotates: bool = True
    ) -> None:
        """Note that an answer that names these partitions is on its way. A long answer is noted in parts. The
        partitions stay due until the next request acknowledges the answer.

        A partition of which the answer has records moves to the end of the order, unless the answer begins the session
        (`rotates`). After an answer with an error or a divergence the next answer has to state everything again:
        readers ignore the other fields of that answer.
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
