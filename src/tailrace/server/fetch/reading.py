"""A pass over the partitions of a fetch, within its byte budget: of a request's partitions, or a session's."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tailrace.fetch_session.session import DOES_NOT_EXIST, UNKNOWN, FetchSession, SessionPartition, SessionTopic
from tailrace.model.errors import KafkaError
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchTopic, PartitionData
from tailrace.protocol.rows import portions
from tailrace.protocol.schema import positional
from tailrace.replication.outcomes import READ_COMMITTED, PartitionRead
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change, Watcher
from tailrace.server.fetch.params import FetchParams, WantedPartition
from tailrace.server.fetch.partition_reader import FetchOutcome, PartitionReader

_SLICE: Final = 64
"""The partitions that a step of a reading examines. The partitions of a session are committed at the end of the step,
while they are still in the caches of the processor: that saves 5 % of a large fetch."""

_of_topic: Final[Callable[[str, bytes, list[PartitionData]], FetchableTopicResponse]] = positional(
    FetchableTopicResponse, "topic", "topic_id", "partitions"
)
_NO_TOPIC: Final[tuple[SessionTopic | None, list[PartitionData]]] = (None, [])


class Reading:
    """The result of a pass. A waiting fetch does not keep the result, and makes a new pass later.

    The pass is made by `read`, or by `steps`, and may be interrupted between two steps: each partition counts as read
    at the time of its step. If a partition changes in between, its watchers are notified, and a waiting fetch is tried
    again.
    """

    __slots__ = ("_is_last", "_reader", "available_bytes", "given", "is_urgent", "params")

    def __init__(self, params: FetchParams, *, is_last: bool) -> None:
        """`is_last`: the answer is sent now, if need be with OFFSET_NOT_AVAILABLE (78)."""
        self.params = params
        self._reader = PartitionReader(params)
        self._is_last = is_last
        self.is_urgent = False
        """Whether the result of a partition is urgent, or the reader's high watermark is stale: the fetch must not
        wait."""
        self.available_bytes = 0
        """The readable bytes within the limits, of all partitions."""
        self.given: list[tuple[Partition, int]] = []
        """The partitions that were read, with the bytes per partition; in a session only partitions that are not
        committed."""

    @property
    def has_enough(self) -> bool:
        """Whether the answer must be sent now: it is urgent, or has enough bytes."""
        return self.is_urgent or self.available_bytes >= self.params.limits.wanted_bytes

    @property
    def has_key_ranges(self) -> bool:
        """Whether a partition was read for key ranges: without a read it is not known how many bytes of the key ranges
        have come."""
        return self._reader.has_key_ranges

    def count_filtered(self) -> None:
        """Count the bytes of key ranges and views in the answer, which is on its way."""
        self._reader.count_sent()

    def _refuse(self, wanted: WantedPartition, error: KafkaError) -> PartitionData:
        """The answer of a partition that this node cannot read. As in Kafka, a partition that does not exist does not
        end the wait while other partitions can be read."""
        if error.code not in DOES_NOT_EXIST:
            self.is_urgent = True
        return self._reader.refuse(wanted, error).data


class FullReading(Reading):
    """A pass over the partitions that a request names. The answer has every partition, in the order of the request."""

    __slots__ = ("topics",)

    topics: Sequence[FetchableTopicResponse]
    """The answer, when the pass is over."""

    def read(self) -> "FullReading":
        """Make the whole pass now."""
        topics: list[FetchableTopicResponse] = []
        for topic in self.params.topics:
            found: list[PartitionData] = []
            self._read_some(topic, topic.partitions, found, None)
            topics.append(_of_topic(topic.topic, topic.topic_id, found))
        self.topics = topics
        return self

    def steps(self, watcher: Watcher | None) -> Iterator[None]:
        """Make the pass in steps. `watcher` is notified of changes of a partition from the moment on at which the
        partition was read."""
        topics: list[FetchableTopicResponse] = []
        for topic in self.params.topics:
            found: list[PartitionData] = []
            for portion in portions(topic.partitions, _SLICE):
                self._read_some(topic, portion, found, watcher)
                yield
            topics.append(_of_topic(topic.topic, topic.topic_id, found))
        self.topics = topics

    @property
    def ends_wait(self) -> bool:
        """Whether the answer is sent now: an urgent answer, enough bytes, or no partition to wait for."""
        return self.is_urgent or not self.given or self.available_bytes >= self.params.limits.wanted_bytes

    def _read_some(
        self,
        topic: FetchTopic,
        partitions: Iterable[WantedPartition],
        found: list[PartitionData],
        watcher: Watcher | None,
    ) -> None:
        """Read partitions of a topic, and append their answers to `found`."""
        params, given, is_last = self.params, self.given, self._is_last
        find, read, reader, access = params.find, self._reader.read, params.reader, params.access
        key: str | bytes = topic.topic_id if params.uses_topic_ids else topic.topic
        for wanted in partitions:
            key_range = None
            try:
                if access is not None:
                    access.check(key)
                try:
                    partition = find(key, wanted.partition)
                except KafkaError:
                    in_view = params.find_in_view(key, wanted.partition)
                    if in_view is None:
                        raise  # to keep the error in this frame would make a reference cycle
                    partition, key_range = in_view
            except KafkaError as error:
                found.append(self._refuse(wanted, error))
                continue
            outcome = read(partition, wanted, key_range, is_last=is_last)
            found.append(outcome.data)
            if outcome.read is None:
                self.is_urgent = True
                continue
            given.append((partition, outcome.read.size_bytes))
            if watcher is not None:
                partition.watch(watcher, params.watched_kinds)
            self.available_bytes += outcome.available_bytes
            if reader.is_replica and reader.is_behind(partition, wanted):
                self.is_urgent = True


class SessionReading(Reading):
    """A pass over the due partitions of a session. The answer names the partitions that have changed (KIP-227).

    Changes are records, an error, a divergence, another replica to read from, and a high watermark or log start that
    the reader does not know. When an answer to a consumer is full, the later partitions are left out: they come first
    in the next answer.

    If the answer of a pass will certainly be sent, the pass commits its reads to the session, slice by slice. So any
    exception except the error of a partition has to end the session (`FetchSessions.read`).
    """

    __slots__ = (
        "_committed",
        "_has_missing",
        "_open_topic",
        "_session",
        "_topics",
        "answers",
        "has_stale_high_watermark",
        "named",
    )

    def __init__(self, params: FetchParams, session: FetchSession, *, is_last: bool) -> None:
        super().__init__(params, is_last=is_last)
        self._session = session
        self._has_missing = False
        self.has_stale_high_watermark = False
        """Whether there is a high watermark that the reader does not know."""
        self.named: list[SessionPartition] = []
        """The partitions that have changed, in the order of the answer."""
        self.answers: list[PartitionData] = []
        """The answers of these partitions."""
        self._committed = 0
        """The number of named partitions that are committed, from the first on."""
        self._topics: list[FetchableTopicResponse] = []
        self._open_topic = _NO_TOPIC
        """The last topic, and its partitions, which the next slice may add to."""

    def read(self) -> "SessionReading":
        """Make the whole pass now."""
        due, is_replica = self._session.due_in_order(), self.params.reader.is_replica
        if len(due) <= _SLICE:
            self._look_at(due, is_replica=is_replica)
        else:
            for _ in self._slices(due, is_replica=is_replica):
                pass
        return self

    def steps(self) -> Iterator[None]:
        """Make the pass in steps, by rank. The pass of a follower looks at all due partitions: its fetch offsets are
        acknowledgements."""
        return self._slices(self._session.due_in_order(), is_replica=self.params.reader.is_replica)

    def _slices(self, due: Sequence[SessionPartition], *, is_replica: bool) -> Iterator[None]:
        for first in range(0, len(due), _SLICE):
            self._look_at(due[first : first + _SLICE], is_replica=is_replica)
            # The bytes of a follower count against its throttle only when the answer is complete (KIP-73).
            if not is_replica and (self._is_last or self.has_enough):
                self._commit()
                self._committed = len(self.named)
                self.given.clear()
                if self._reader.budget.is_full:
                    break
            yield

    @property
    def ends_wait(self) -> bool:
        """Whether the answer is sent now: an urgent answer, enough bytes, or nothing else to wait for."""
        return self.has_enough or (self._has_missing and not self._session.existing_count)

    def _look_at(self, due: Sequence[SessionPartition], *, is_replica: bool) -> None:
        budget, named, answers, given = self._reader.budget, self.named, self.answers, self.given
        reader, session, is_last = self.params.reader, self._session, self._is_last
        read = self._reader.read
        may_have_all = not is_replica and reader.choice is None and not reader.must_check
        for wanted in due:
            if not budget.left_bytes and budget.is_full and not is_replica:
                break
            partition: Partition | None = wanted.subject
            if partition is None or partition.is_closed:
                try:
                    partition = self._find(wanted)
                except KafkaError as error:
                    if error.code in DOES_NOT_EXIST:
                        if session.is_known_to_miss(wanted):
                            session.mark_clean(wanted)
                            continue
                        self._has_missing = True
                    named.append(wanted)
                    answers.append(self._refuse(wanted, error))
                    continue
            # The log end comes first, as it shows without a call that most partitions have changed.
            if (
                may_have_all
                and wanted.fetch_offset == partition.log.log_end_offset
                and self._has_all(wanted, partition)
            ):
                session.mark_clean(wanted)
                continue
            outcome = read(partition, wanted, wanted.view, is_last=is_last)
            got, data = outcome.read, outcome.data
            if got is None:
                self.is_urgent = True
                named.append(wanted)
                answers.append(data)
                reader.end_rest(partition, session.visits)
                continue
            given.append((partition, got.size_bytes))
            self.available_bytes += outcome.available_bytes
            if got.size_bytes or (wanted.has_changed(data) and not got.is_pending):
                named.append(wanted)
                answers.append(data)
                if data.high_watermark != wanted.known_high_watermark:
                    self.has_stale_high_watermark = True
            else:
                self._take_unchanged(wanted, partition, outcome)

    def _has_all(self, wanted: SessionPartition, partition: Partition) -> bool:
        """Whether a read would find no change for a consumer: usual for a consumer that names its next offset."""
        return (
            wanted.view is None
            and wanted.known_high_watermark == partition.high_watermark
            and wanted.last_fetched_epoch < 0
            and partition.is_read_up_to(wanted.fetch_offset, self.params.isolation, wanted.current_leader_epoch)
            and wanted.known_log_start_offset == partition.log.log_start_offset
        )

    def _take_unchanged(self, wanted: SessionPartition, partition: Partition, outcome: FetchOutcome) -> None:
        """Mark the partition clean if its reader has every record. If the partition was scanned only in part, let other
        partitions come first.

        The reader waits for an offset above the high watermark, and for a read that is pending: but at most for the
        wait of the fetch, even if each fetch is answered early with changes of other partitions.
        """
        got, is_replica = outcome.read, self.params.reader.is_replica
        assert got is not None
        is_above = wanted.fetch_offset > partition.high_watermark and not is_replica
        if wanted.view is None:
            has_all = got.next_offset == self._readable_end(partition, got)
        else:
            has_all = got.reaches_end and not (is_above or got.is_pending)
        if has_all and self.params.reader.rest(partition, self._session.visits):
            self._session.mark_clean(wanted)
        elif got.has_scanned:
            self._session.put_last(wanted)
        elif (is_above or got.is_pending) and wanted.has_waited(self.params.limits.wait_ms):
            late = self._reader.read(partition, wanted, wanted.view, is_last=True)
            if late.is_urgent:
                self.is_urgent = True
                self.named.append(wanted)
                self.answers.append(late.data)

    def _find(self, wanted: SessionPartition) -> Partition:
        """Find the partition again; from now on its changes make it due. Raises the errors of `PartitionTable.get`."""
        params, kinds, key_range = self.params, self.params.watched_kinds, None
        wanted.lose()
        if params.access is not None:
            params.access.check(wanted.topic)
        try:
            partition = params.find(wanted.topic, wanted.partition)
        except KafkaError:
            in_view = params.find_in_view(wanted.topic, wanted.partition)
            if in_view is None:
                raise
            partition, key_range = in_view
            kinds |= Change.SETTINGS
        wanted.found(partition, kinds, key_range)
        if wanted.known_high_watermark != UNKNOWN:  # the reader knows it from the full answer that began the session
            params.reader.acknowledge([(partition, wanted.known_high_watermark)])
        return partition

    def _readable_end(self, partition: Partition, got: PartitionRead) -> int:
        params = self.params
        if params.reader.is_replica:
            return partition.log.log_end_offset
        return got.last_stable_offset if params.isolation == READ_COMMITTED else got.high_watermark

    def commit(self) -> tuple[FetchableTopicResponse, ...]:
        """The topics of the answer, which is on its way: partitions of a topic that follow each other are together."""
        if self._committed < len(self.named) or self.given:
            self._commit()
        return tuple(self._topics)

    def commit_in_steps(self) -> Iterator[None]:
        """Do most of the work of `commit`."""
        while len(self.named) - self._committed > _SLICE:
            given, self.given = self.given, []  # the bytes are counted together, at the end
            self._commit(self._committed + _SLICE)
            self.given = given
            self._committed += _SLICE
            yield

    def _commit(self, end: int | None = None) -> None:
        """Commit the named partitions that are not committed, up to the place `end` in the answer."""
        named, answers = self.named, self.answers
        if self._committed or end is not None:
            named, answers = named[self._committed : end], answers[self._committed : end]
        self._session.answered(named, answers)
        self.params.reader.mark_sent(self.given, has_session=True)
        self.count_filtered()
        topic, partitions = self._open_topic
        for wanted, data in zip(named, answers, strict=True):
            if wanted.topic != topic:
                topic, partitions = wanted.topic, []
                name, topic_id = (topic, b"") if isinstance(topic, str) else ("", topic)
                self._topics.append(_of_topic(name, topic_id, partitions))
            partitions.append(data)
        self._open_topic = topic, partitions
