"""The fetches of one node by one consumer: the partitions that are read there, and its fetch session (KIP-227). Pure.

1. The caller says which partitions are read here, and from which offsets, as changes: `want` and `drop`. A fetch names
   the changes since the last fetch. With thousands of unchanged partitions, a fetch has a few dozen bytes.
2. A partition with records that are not returned yet is dropped: the broker would send the same records with each
   answer. If the records are returned before the next fetch, the broker learns of the new offset alone.
3. Topics are named by ids (Fetch v13), or by names if a topic has no id or the broker is older. A session has one
   way; the first fetch of the other way begins a new session.
4. A broker before Fetch v7 has no sessions, and a broker that gives the id 0 keeps no session: then every fetch is
   full.
"""

from collections import defaultdict
from typing import NamedTuple

from tailrace.client.errors import check
from tailrace.client.reading.fetching import (
    LAST_WITH_NAMES,
    NEWEST,
    Fetched,
    FetchOptions,
    PartitionFetch,
    fetch_request,
    read_partition,
)
from tailrace.fetch_session.requester import FetchSessionRequester, SessionRequest
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse, ForgottenTopic, PartitionData

_FIRST_WITH_SESSIONS = 7

_SESSION_FAULTS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class FetchKey(NamedTuple):
    """A partition of a topic with this id: a topic that is created again has other partitions."""

    topic: str
    partition: int
    topic_id: TopicId


class NodeFetches:
    """The fetches of a node, a single fetch at a time: `request`, then `answered` or `failed`."""

    def __init__(self) -> None:
        self._session: FetchSessionRequester[FetchKey, PartitionFetch] = FetchSessionRequester()
        self._wanted: dict[TopicPartition, FetchKey] = {}
        self._changed: dict[FetchKey, PartitionFetch] = {}
        self._dropped: dict[FetchKey, None] = {}
        self._asked: dict[FetchKey, PartitionFetch] = {}
        """The session after the fetch under way."""
        self._topic_ids: dict[str, TopicId] = {}
        self._topic_names: dict[TopicId, str] = {}
        self._without_id = 0
        """The number of wanted partitions of topics without an id."""
        self._has_names = False
        """Whether the fetch under way names topics by name."""
        self._is_full = True
        self.full_fetches = 0
        """Answered full fetches; `incremental_fetches` counts answered fetches too."""
        self.incremental_fetches = 0

    @property
    def session_id(self) -> int:
        """The id of the session; 0 without a session."""
        return self._session.session_id

    @property
    def epoch(self) -> int:
        """The epoch of the fetch under way, or of the next fetch."""
        return self._session.epoch

    @property
    def fetches(self) -> int:
        """The number of answered fetches."""
        return self.full_fetches + self.incremental_fetches

    @property
    def partition_count(self) -> int:
        """The number of partitions that are read here."""
        return len(self._wanted)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that are read here."""
        return list(self._wanted)

    @property
    def max_version(self) -> int:
        """The newest version of Fetch that can name all partitions."""
        return LAST_WITH_NAMES if self._without_id else NEWEST

    def want(self, fetch: PartitionFetch) -> None:
        """Read this partition here, from this offset on."""
        name = fetch.topic_partition
        key = FetchKey(name.topic, name.partition, fetch.topic_id)
        before = self._wanted.get(name)
        if before != key:
            if before is not None:
                self.drop(name)
            self._wanted[name] = key
            self._without_id += key.topic_id == ZERO_TOPIC_ID
            self._topic_ids[key.topic] = key.topic_id
            self._topic_names[key.topic_id] = key.topic
        self._dropped.pop(key, None)
        self._changed[key] = fetch

    def drop(self, name: TopicPartition) -> None:
        """Do not read this partition here for now."""
        key = self._wanted.pop(name)
        self._without_id -= key.topic_id == ZERO_TOPIC_ID
        self._changed.pop(key, None)
        self._dropped[key] = None

    def request(self, options: FetchOptions, version: int) -> FetchRequest:
        """The next fetch, in this version of the message: the caller asks the connection, up to `max_version`."""
        has_names = version <= LAST_WITH_NAMES
        if has_names != self._has_names or (has_names and self._names_clash()):
            self._session.failed()
        self._has_names = has_names
        step = self._session.request(self._changed.items(), self._dropped)
        self._changed, self._dropped = {}, {}
        self._is_full = step.is_full
        self._remember(step)
        if version < _FIRST_WITH_SESSIONS:
            return fetch_request([fetch for _, fetch in step.partitions], options)
        return fetch_request(
            [fetch for _, fetch in step.partitions],
            options,
            session_id=step.session_id,
            session_epoch=step.session_epoch,
            forgotten=_forgotten(step),
        )

    def _names_clash(self) -> bool:
        """Whether a topic was created again: its partitions would leave the session and enter it under one name."""
        return any(TopicPartition(key.topic, key.partition) in self._wanted for key in self._dropped)

    def _remember(self, step: SessionRequest[FetchKey, PartitionFetch]) -> None:
        if step.is_full:
            self._asked = dict(step.partitions)
            return
        for key in step.forgotten:
            self._asked.pop(key, None)
        self._asked.update(step.partitions)

    def answered(self, response: FetchResponse, options: FetchOptions) -> list[Fetched] | None:
        """The answers for partitions; None if the session ends: then the next fetch is full, and may follow at once.

        Raises KafkaError for another fault of the whole fetch.
        """
        answers: list[tuple[FetchKey, PartitionData]] = []
        for topic in response.responses:
            name, topic_id = self._identify(topic.topic, TopicId(bytes(topic.topic_id)))
            answers += [(FetchKey(name, data.partition_index, topic_id), data) for data in topic.partitions]
        counts = self._session.answered(
            error_code=response.error_code,
            session_id=response.session_id,
            keys=[key for key, _ in answers],
            is_throttled=response.throttle_time_ms > 0,
        )
        if response.error_code not in _SESSION_FAULTS:
            check(response.error_code, "fetch")
        if not counts:
            return None
        if self._is_full:
            self.full_fetches += 1
        else:
            self.incremental_fetches += 1
        return [read_partition(self._asked[key], data, options) for key, data in answers]

    def _identify(self, name: str, topic_id: TopicId) -> tuple[str, TopicId]:
        if self._has_names:
            return name, self._topic_ids.get(name, ZERO_TOPIC_ID)
        return self._topic_names.get(topic_id, ""), topic_id

    @property
    def was_full(self) -> bool:
        """Whether the last fetch named all partitions."""
        return self._is_full

    def failed(self) -> None:
        """The fetch under way got no answer."""
        self._session.failed()

    def close(self) -> FetchRequest | None:
        """The fetch that ends the session at the broker; None without a session. Its answer does not matter."""
        step = self._session.close()
        if step is None:
            return None
        options = FetchOptions(max_wait_ms=0, min_bytes=0, max_bytes=0, isolation_level=0, rack="")
        return fetch_request((), options, session_id=step.session_id, session_epoch=step.session_epoch)


def _forgotten(step: SessionRequest[FetchKey, PartitionFetch]) -> tuple[ForgottenTopic, ...]:
    topics: dict[tuple[str, TopicId], list[int]] = defaultdict(list)
    for key in step.forgotten:
        topics[key.topic, key.topic_id].append(key.partition)
    return tuple(
        ForgottenTopic(topic=name, topic_id=topic_id, partitions=tuple(partitions))
        for (name, topic_id), partitions in topics.items()
    )
