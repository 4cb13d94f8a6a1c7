"""A follower's fetches as requests without a fetch session (session id 0, epoch -1).

`Fetches` is also the port for fetch sessions (KIP-227): the machine passes the changes since its last request, and gets
answers for the partitions that have any.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from tailrace.replication.replica_fetcher import FetchAnswer, PartitionKey, Wanted

OLDEST_VERSION: Final = 15
"""The first version with the epoch of the follower's registration (KIP-903); topics have ids."""

_NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFetchConfig:
    """Settings of a follower's fetches, with Kafka's names and defaults."""

    replica_fetch_max_bytes: int = 1_048_576
    replica_fetch_response_max_bytes: int = 10_485_760
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_min_bytes: int = 1
    replica_fetch_backoff_ms: int = 1_000
    replica_socket_timeout_ms: int = 30_000


class Fetches(Protocol):
    """The requests of one follower to one leader, and their answers."""

    def request(
        self, changed: Sequence[Wanted], forgotten: Sequence[PartitionKey], *, broker_epoch: int
    ) -> FetchRequest:
        """The next request; for the changes see `replica_fetcher.SendFetch`. One is under way at a time."""
        ...

    def answers(self, response: FetchResponse | None) -> tuple[FetchAnswer, ...] | None:
        """The answers in the response to the last request; None for an error, or without a response (None)."""
        ...


class FullFetches:
    """Every request names every partition."""

    def __init__(self, *, broker_id: BrokerId, config: ReplicaFetchConfig) -> None:
        self._broker_id = broker_id
        self._config = config
        self._wanted: dict[PartitionKey, FetchPartition] = {}

    def request(
        self, changed: Sequence[Wanted], forgotten: Sequence[PartitionKey], *, broker_epoch: int
    ) -> FetchRequest:
        wanted, config = self._wanted, self._config
        for key in forgotten:
            del wanted[key]
        for one in changed:
            wanted.pop(one.key, None)
            wanted[one.key] = self._partition(one)
        by_topic: dict[TopicId, list[FetchPartition]] = {}
        for key, partition in wanted.items():
            by_topic.setdefault(key.topic_id, []).append(partition)
        return FetchRequest(
            replica_id=self._broker_id,
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=broker_epoch),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            topics=tuple(
                FetchTopic(topic_id=topic_id, partitions=tuple(partitions)) for topic_id, partitions in by_topic.items()
            ),
        )

    def _partition(self, one: Wanted) -> FetchPartition:
        position = one.position
        return FetchPartition(
            partition=one.key.partition,
            current_leader_epoch=one.leader_epoch,
            fetch_offset=position.end_offset,
            last_fetched_epoch=position.last_epoch,
            log_start_offset=position.log_start_offset,
            partition_max_bytes=self._config.replica_fetch_max_bytes,
            high_watermark=position.high_watermark,
        )

    def answers(self, response: FetchResponse | None) -> tuple[FetchAnswer, ...] | None:
        if response is None or response.error_code != ErrorCode.NONE:
            return None
        return tuple(
            _answer(PartitionKey(TopicId(bytes(topic.topic_id)), data.partition_index), data)
            for topic in response.responses
            for data in topic.partitions
        )


def _answer(key: PartitionKey, data: PartitionData) -> FetchAnswer:
    diverging = None
    if data.diverging_epoch.epoch != _NONE or data.diverging_epoch.end_offset != _NONE:
        diverging = OffsetAndEpoch(data.diverging_epoch.end_offset, LeaderEpoch(data.diverging_epoch.epoch))
    return FetchAnswer(
        key,
        _error_code(data.error_code),
        data.high_watermark,
        data.log_start_offset,
        b"" if data.records is None else data.records,
        diverging,
    )


def _error_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
