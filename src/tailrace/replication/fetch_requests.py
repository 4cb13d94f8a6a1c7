"""A follower's fetches as requests of a fetch session (KIP-227).

The `ReplicaFetcher` passes the changes since its last request, and gets the answers of those partitions that the
response names. A leader without sessions, or with a full cache of sessions, gets full fetches; every full fetch asks
for a session.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tailrace.fetch_session.epochs import FINAL_EPOCH, NO_SESSION, is_full
from tailrace.fetch_session.requester import FetchSessionRequester, SessionRequest
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.model.proofs import NO_SECRET
from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from tailrace.replication.fetcher_events import FetchAnswer, PartitionKey, Wanted
from tailrace.replication.replica_fetcher import MAX_CHANGES

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stated:
    """The part of a fetch that belongs to one partition: the value that the session compares."""

    leader_epoch: int
    end_offset: int
    last_epoch: int
    log_start_offset: int
    high_watermark: int = field(compare=False)
    """The high watermark alone is no reason to send the partition again: in a session the leader knows which high
    watermark the follower has got."""


class SessionFetches:
    """The requests of a follower to a leader, and their answers, in a session (KIP-227): the leader gets the
    differences, and sends the partitions that have changed."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        config: ReplicaFetchConfig,
        secret: bytes = NO_SECRET,
        max_partitions: int = MAX_CHANGES,
    ) -> None:
        """`secret` proves to the leader that this broker asks. `max_partitions` is the most that one request names,
        unless the leader has no sessions."""
        self._broker_id = broker_id
        self._secret = secret
        self._config = config
        self._session = FetchSessionRequester[PartitionKey, _Stated](max_partitions=max_partitions)

    def request(
        self, changed: Sequence[Wanted], forgotten: Sequence[PartitionKey], *, has_more: bool, broker_epoch: int
    ) -> FetchRequest:
        """The next request, which is under way alone; for the changes see `replica_fetcher.SendFetch`."""
        stated = ((wanted.key, _stated(wanted)) for wanted in changed)
        session = self._session.request(stated, forgotten)
        max_wait_ms = 0 if session.is_slice or has_more else self._config.replica_fetch_wait_max_ms
        return self._request(session, broker_epoch, max_wait_ms=max_wait_ms)

    def end_wait(self, *, broker_epoch: int) -> FetchRequest:
        """A request without partitions, to be sent behind the fetch under way: a leader answers a waiting fetch of a
        follower when another request comes behind the fetch on its connection.

        The request belongs to no session, and its answer is ignored. Kafka's leaders read the request only after the
        waiting fetch.
        """
        nothing: SessionRequest[PartitionKey, _Stated] = SessionRequest(
            session_id=NO_SESSION, session_epoch=FINAL_EPOCH, partitions=(), forgotten=(), is_slice=False
        )
        return self._request(nothing, broker_epoch, max_wait_ms=0)

    def _request(
        self, session: SessionRequest[PartitionKey, _Stated], broker_epoch: int, *, max_wait_ms: int
    ) -> FetchRequest:
        config = self._config
        partitions: dict[TopicId, list[FetchPartition]] = {}
        for key, stated in session.partitions:
            partitions.setdefault(key.topic_id, []).append(self._partition(key, stated))
        forgotten: dict[TopicId, list[int]] = {}
        for key in session.forgotten:
            forgotten.setdefault(key.topic_id, []).append(key.partition)
        return FetchRequest(
            replica_id=self._broker_id,
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=broker_epoch),
            secret=self._secret,
            max_wait_ms=max_wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            topics=tuple(
                FetchTopic(topic_id=topic_id, partitions=tuple(named)) for topic_id, named in partitions.items()
            ),
            forgotten_topics_data=tuple(
                ForgottenTopic(topic_id=topic_id, partitions=tuple(numbers)) for topic_id, numbers in forgotten.items()
            ),
        )

    def _partition(self, key: PartitionKey, stated: _Stated) -> FetchPartition:
        return FetchPartition(
            partition=key.partition,
            current_leader_epoch=stated.leader_epoch,
            fetch_offset=stated.end_offset,
            last_fetched_epoch=stated.last_epoch,
            log_start_offset=stated.log_start_offset,
            partition_max_bytes=self._config.replica_fetch_max_bytes,
            high_watermark=stated.high_watermark,
        )

    def answers(self, response: FetchResponse | None) -> tuple[FetchAnswer, ...] | None:
        """The answers in the response to the last request; None after an error, or for the response None.

        Empty if no answer counts and the next request may leave at once. None too after a refused full fetch: the
        leader may refuse the next full fetch too, so the caller waits.
        """
        session = self._session
        if response is None:
            session.failed()
            return None
        answers = tuple(
            _answer(PartitionKey(TopicId(bytes(topic.topic_id)), data.partition_index), data)
            for topic in response.responses
            for data in topic.partitions
        )
        was_full = is_full(session.epoch)
        does_count = session.answered(
            error_code=response.error_code,
            session_id=response.session_id,
            keys=[answer.key for answer in answers],
            is_throttled=response.throttle_time_ms > 0,
        )
        if does_count:
            return answers
        # A session may be lost at any time. The next fetch is full, and leaves at once unless the refused fetch was
        # full too.
        return None if was_full else ()

    def close(self, *, broker_epoch: int) -> FetchRequest | None:
        """A last request, which ends the session at the leader; None if the leader has no session of this follower.

        The last request may be sent behind the request under way. If `answers` later takes the response to the request
        under way, the leader may have a session again.
        """
        last = self._session.close()
        return None if last is None else self._request(last, broker_epoch, max_wait_ms=0)


def _stated(wanted: Wanted) -> _Stated:
    position = wanted.position
    return _Stated(
        leader_epoch=wanted.leader_epoch,
        end_offset=position.end_offset,
        last_epoch=position.last_epoch,
        log_start_offset=position.log_start_offset,
        high_watermark=position.high_watermark,
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
        None if data.checked_from < 0 else data.checked_from,
        bytes(data.deleted_keys),
    )


def _error_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
