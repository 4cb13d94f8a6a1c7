"""One pass over the partitions of a fetch, within its byte budget: those that a request names, or a session's."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tailrace.fetch_session.session import DOES_NOT_EXIST, UNKNOWN, FetchSession, SessionPartition, SessionTopic
from tailrace.metadata.views import ViewImage
from tailrace.model.errors import KafkaError
from tailrace.model.key_ranges import KeyRange
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchTopic, PartitionData
from tailrace.protocol.rows import portions
from tailrace.protocol.schema import positional
from tailrace.replication.outcomes import READ_COMMITTED
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change, Watcher
from tailrace.server.fetch.budget import FetchBudget, wait_ms
from tailrace.server.fetch.params import FetchParams, WantedPartition
from tailrace.server.fetch.partition_reader import FetchedPartition, PartitionReader

_SLICE: Final = 64
"""Partitions that a step of a reading looks at. Those of a session are committed then, while they are in the caches of
the processor: that saves 5 % of a large fetch, since each is an object of its own, which the fetch before was the last
to touch."""

_of_topic: Final[Callable[[str, bytes, list[PartitionData]], FetchableTopicResponse]] = positional(
    FetchableTopicResponse, "topic", "topic_id", "partitions"
)
_NO_TOPIC: Final[tuple[SessionTopic | None, list[PartitionData]]] = (None, [])


class Reading:
    """The result of one pass. A waiting fetch does not keep it, and makes a new one later.

    The pass is made by `steps`, and may break off between two of them: what it has read by then counts as of the moment
    of its step. Its partitions may change in between; their watchers say so, and a fetch that waits is tried again.
    """

    __slots__ = ("_budget", "_is_last", "_reader", "available_bytes", "given", "is_urgent", "params")

    def __init__(self, params: FetchParams, is_last: bool) -> None:
        """`is_last`: the answer is sent now, if need be with OFFSET_NOT_AVAILABLE (78)."""
        self.params = params
        self._reader = PartitionReader(params)
        self._budget = FetchBudget(params.request.max_bytes, params.fetch_max_bytes)
        self._is_last = is_last
        self.is_urgent = False
        """Whether the result of a partition is urgent, or the reader's high watermark is stale: the fetch must not
        wait."""
        self.available_bytes = 0
        """The readable bytes within the limits, of all partitions."""
        self.given: list[tuple[Partition, int]] = []
        """The partitions that were read, with the bytes of each; of a session those that are not committed."""

    @property
    def has_enough(self) -> bool:
        """Whether the answer is sent now, whatever else may come: it is urgent or has enough bytes."""
        return self.is_urgent or self.available_bytes >= self.params.wanted_bytes

    @property
    def has_key_ranges(self) -> bool:
        """Whether a partition was read for key ranges: how many bytes of these come is not known without a reading."""
        return self._reader.has_key_ranges

    def _refuse(self, wanted: WantedPartition, error: KafkaError) -> FetchedPartition:
        """The answer of a partition that is not here. One that does not exist ends no wait while others are read, as in
        Kafka."""
        if error.code not in DOES_NOT_EXIST:
            self.is_urgent = True
        return self._reader.refuse(wanted, error)


class FullReading(Reading):
    """A pass over the partitions that a request names. All of them are in the answer, in the order of the request."""

    __slots__ = ("_view", "_watcher", "topics")

    def __init__(self, params: FetchParams, *, is_last: bool, watcher: Watcher | None = None) -> None:
        """`watcher` is to be notified of changes of each partition from the moment on at which it was read."""
        super().__init__(params, is_last=is_last)
        self._watcher = watcher
        self._view: tuple[FetchTopic, ViewImage] | None = None
        """The last topic that is a view, and this view."""
        self.topics: tuple[FetchableTopicResponse, ...] = ()

    def read(self) -> "FullReading":
        """Make the whole pass now."""
        self.topics = tuple(
            [
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=tuple([self._data(topic, wanted) for wanted in topic.partitions]),
                )
                for topic in self.params.topics
            ]
        )
        return self

    def steps(self) -> Iterator[None]:
        """Make the pass in steps."""
        topics: list[FetchableTopicResponse] = []
        for topic in self.params.topics:
            found: list[PartitionData] = []
            for portion in portions(topic.partitions, _SLICE):
                found += [self._data(topic, wanted) for wanted in portion]
                yield
            topics.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=found))
        self.topics = tuple(topics)

    @property
    def ends_wait(self) -> bool:
        """Whether the answer is sent now: it is urgent, has enough bytes, or there is no partition to wait for."""
        return self.has_enough or not self.given

    def _data(self, topic: FetchTopic, wanted: WantedPartition) -> PartitionData:
        params = self.params
        key_range: KeyRange | None = None
        try:
            if self._view is not None and self._view[0] is topic:
                partition, key_range = self._find_in_view(self._view[1], wanted.partition)
            else:
                partition = params.partition(topic.topic, topic.topic_id, wanted.partition)
        except KafkaError as error:
            view = None if self._view is not None and self._view[0] is topic else self._find_view(topic)
            if view is None:
                return self._refuse(wanted, error).data
            self._view = topic, view
            return self._data(topic, wanted)
        result = self._reader.read(partition, wanted, self._budget, key_range, is_last=self._is_last)
        if result.is_urgent:
            self.is_urgent = True
            return result.data
        self.given.append((partition, result.size_bytes))
        if self._watcher is not None:
            partition.watch(self._watcher, params.watched_kinds)
        self.available_bytes += result.available_bytes
        if params.reader.is_behind(partition, wanted):
            self.is_urgent = True
        return result.data

    def _find_view(self, topic: FetchTopic) -> ViewImage | None:
        """A topic that is none is looked up as a view: a fetch of topics never looks for one."""
        return self.params.view(topic.topic, topic.topic_id)

    def _find_in_view(self, view: ViewImage, index: int) -> tuple[Partition, KeyRange]:
        return self.params.views.partition(view, index), view.key_range(index)


class SessionReading(Reading):
    """A pass over the partitions of a session that are due. Only those with news are in the answer (KIP-227).

    News are records, an error, a divergence, another replica to read from, and a high watermark or log start that the
    reader does not know. When an answer to a consumer is full, it has nothing of the partitions behind: they come first
    the next time.

    A pass whose answer is sure to be sent commits to the session what it has read, slice by slice. So a fault in it
    that is none of a partition has to end the session (`FetchSessions.read`).
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

    def __init__(self, params: FetchParams, session: FetchSession, is_last: bool) -> None:
        super().__init__(params, is_last)
        self._session = session
        self._has_missing = False
        self.has_stale_high_watermark = False
        """Whether there is a high watermark that the reader does not know."""
        self.named: list[SessionPartition] = []
        """Those with news, in the order of the answer."""
        self.answers: list[PartitionData] = []
        """Their news, one for each."""
        self._committed = 0
        """The first so many of them are committed."""
        self._topics: list[FetchableTopicResponse] = []
        self._open_topic = _NO_TOPIC
        """The last of them, and its partitions, which the next slice may add to."""

    def read(self) -> "SessionReading":
        """Make the whole pass now."""
        for _ in self.steps():
            pass
        return self

    def steps(self) -> Iterator[None]:
        """Make the pass in steps, by rank. A follower's looks at all that is due: its fetch offsets are
        acknowledgements."""
        session, params = self._session, self.params
        due, is_replica = session.due_in_order(), params.reader.is_replica
        if len(due) <= _SLICE:
            self._look_at(due, is_replica=is_replica)
            return
        for first in range(0, len(due), _SLICE):
            self._look_at(due[first : first + _SLICE], is_replica=is_replica)
            # The bytes of a follower count against its throttle, but not before the answer is whole (KIP-73).
            if not is_replica and (self._is_last or self.has_enough):
                self._commit()
                self._committed = len(self.named)
                self.given.clear()
                if self._budget.is_full:
                    break
            yield

    @property
    def ends_wait(self) -> bool:
        """Whether the answer is sent now: it is urgent, has enough bytes, or there is nothing else to wait for."""
        return self.has_enough or (self._has_missing and not self._session.existing_count)

    def _look_at(self, due: Sequence[SessionPartition], *, is_replica: bool) -> None:
        budget, named, answers, given = self._budget, self.named, self.answers, self.given
        reader, session, is_last = self.params.reader, self._session, self._is_last
        read = self._reader.read
        may_have_all = not is_replica and reader.choice is None and not reader.must_check
        for one in due:
            if not budget.left_bytes and budget.is_full and not is_replica:
                break
            partition: Partition | None = one.subject
            if partition is None or partition.is_closed:
                try:
                    partition = self._find(one)
                except KafkaError as error:
                    if error.code in DOES_NOT_EXIST:
                        if session.is_known_to_miss(one):
                            session.mark_clean(one)
                            continue
                        self._has_missing = True
                    named.append(one)
                    answers.append(self._refuse(one, error).data)
                    continue
            # The log end tells at once, without a call, that most have news.
            if may_have_all and one.fetch_offset == partition.log.log_end_offset and self._has_all(one, partition):
                session.mark_clean(one)
                continue
            result = read(partition, one, budget, one.view, is_last=is_last)
            data = result.data
            if result.is_urgent:
                self.is_urgent = True
                named.append(one)
                answers.append(data)
                reader.end_rest(partition, session.visits)
                continue
            given.append((partition, result.size_bytes))
            self.available_bytes += result.available_bytes
            if one.view is not None and not result.size_bytes:
                self._take_empty_view(one, partition, result)
            elif result.size_bytes or one.has_changed(data):
                named.append(one)
                answers.append(data)
                if data.high_watermark != one.known_high_watermark:
                    self.has_stale_high_watermark = True
            else:
                self._without_news(one, partition, data)

    def _has_all(self, one: SessionPartition, partition: Partition) -> bool:
        """Whether a read would find no news for a consumer: the usual state of one that names its next offset."""
        return (
            one.view is None
            and one.known_high_watermark == partition.high_watermark
            and one.last_fetched_epoch < 0
            and partition.is_read_up_to(one.fetch_offset, self.params.isolation, one.current_leader_epoch)
            and one.known_log_start_offset == partition.log.log_start_offset
        )

    def _take_empty_view(self, one: SessionPartition, partition: Partition, result: FetchedPartition) -> None:
        """Nothing was found for a view partition: it is clean if it was scanned to the end, else others come first.

        One whose end is not known waits, as one above the high watermark does.
        """
        data = result.data
        if data.high_watermark != UNKNOWN and one.has_changed(data):
            self.named.append(one)
            self.answers.append(data)
        elif result.has_all:
            self._session.mark_clean(one)
        elif result.has_scanned:
            self._session.put_last(one)
        elif data.high_watermark == UNKNOWN or one.fetch_offset > partition.high_watermark:
            self._wait_on(one, partition)

    def _without_news(self, one: SessionPartition, partition: Partition, data: PartitionData) -> None:
        """Have the partition clean if its reader has all of it. One above the high watermark waits: but not for ever,
        though each fetch is answered early with news of other partitions."""
        scanned_to = data.scanned_to if data.scanned_to >= 0 else one.fetch_offset
        if scanned_to == self._readable_end(partition, data) and self.params.reader.rest(
            partition, self._session.visits
        ):
            self._session.mark_clean(one)
        elif one.fetch_offset > data.high_watermark and not self.params.reader.is_replica:
            self._wait_on(one, partition)

    def _wait_on(self, one: SessionPartition, partition: Partition) -> None:
        """Have the reader wait for what is not available, and get the error if it has waited long enough."""
        if one.has_waited(wait_ms(self.params.request)):
            result = self._reader.read(partition, one, self._budget, one.view, is_last=True)
            if result.is_urgent:
                self.is_urgent = True
                self.named.append(one)
                self.answers.append(result.data)

    def _find(self, one: SessionPartition) -> Partition:
        """Find the partition anew, and have its changes make it due. Raises KafkaError as `PartitionTable.get`."""
        params, topic = self.params, one.topic
        name, topic_id = (topic, b"") if isinstance(topic, str) else ("", topic)
        one.lose()
        kinds, key_range = params.watched_kinds, None
        try:
            partition = params.partition(name, topic_id, one.partition)
        except KafkaError:
            view = params.view(name, topic_id)
            if view is None:
                raise
            partition, key_range = params.views.partition(view, one.partition), view.key_range(one.partition)
            kinds |= Change.SETTINGS
        one.found(partition, kinds, key_range)
        if one.known_high_watermark != UNKNOWN:  # the reader has the full answer that began the session
            params.reader.acknowledge([(partition, one.known_high_watermark)])
        return partition

    def _readable_end(self, partition: Partition, data: PartitionData) -> int:
        params = self.params
        if params.reader.is_replica:
            return partition.log.log_end_offset
        return data.last_stable_offset if params.isolation == READ_COMMITTED else data.high_watermark

    def commit(self) -> tuple[FetchableTopicResponse, ...]:
        """The topics of the answer, which is on its way: in its order, and those of one topic that follow each other
        together."""
        if self._committed < len(self.named) or self.given:
            self._commit()
        return tuple(self._topics)

    def commit_in_steps(self) -> Iterator[None]:
        """Do most of the work of `commit`."""
        while len(self.named) - self._committed > _SLICE:
            given, self.given = self.given, []  # these count together, at the end
            self._commit(self._committed + _SLICE)
            self.given = given
            self._committed += _SLICE
            yield

    def _commit(self, end: int | None = None) -> None:
        """Take for answered what is not committed, up to the place `end` in the answer."""
        named, answers = self.named, self.answers
        if self._committed or end is not None:
            named, answers = named[self._committed : end], answers[self._committed : end]
        self._session.answered(named, answers)
        self.params.reader.mark_sent(self.given, has_session=True)
        topic, partitions = self._open_topic
        for one, data in zip(named, answers, strict=True):
            if one.topic != topic:
                topic, partitions = one.topic, []
                name, topic_id = (topic, b"") if isinstance(topic, str) else ("", topic)
                self._topics.append(_of_topic(name, topic_id, partitions))
            partitions.append(data)
        self._open_topic = topic, partitions
