"""Compares positions with the leaders' logs after a change of leader, by OffsetForLeaderEpoch (KIP-320).

It runs in a task beside `poll`: a leader that does not answer holds back its own partitions alone. `reading.position`
decides on the answers.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.errors import code_of
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.fetching import STALE_LEADER
from tailrace.client.reading.position import Truncation
from tailrace.client.reading.read_notices import ReadNotices
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.list_offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_CONSUMER = -1

_MAX_STALE_LOOKS: Final = 5
"""The number of times that metadata with an older leader epoch than the position's are refreshed before they are
believed: the topic may have been created again, and its epochs with it."""


class _Asked(NamedTuple):
    """A position that is being compared."""

    offset: int
    epoch: int
    leader_epoch: int


class PositionValidator:
    """At most one comparison runs at a time; after a fault the next one waits, twice as long each time."""

    def __init__(self, router: Router, fetcher: Fetcher, *, resets: bool, notices: ReadNotices) -> None:
        """`resets`: the consumer has a reset policy, earliest or latest."""
        self._router = router
        self._fetcher = fetcher
        self._assigned = fetcher.assigned
        self._resets = resets
        self._notices = notices
        self._task: asyncio.Task[None] | None = None
        self._fault: KafkaError | None = None
        self._pause_ms = router.retry_backoff_ms
        self._not_before_ms = 0
        self._stale_looks: dict[TopicPartition, int] = {}
        self.trouble: KafkaError | None = None
        """The fault of the last comparison while it is retried."""

    def check(self) -> None:
        """Raise KafkaError for a fault that a retry does not cure."""
        fault, self._fault = self._fault, None
        if fault is not None and self._assigned.unvalidated():
            raise fault

    def advance(self) -> None:
        """Compare the positions that await it, unless a comparison is under way."""
        if not self._assigned.has_unvalidated:
            self.trouble = None
        elif self._task is None and self._router.now_ms() >= self._not_before_ms:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def next_due_ms(self, deadline_ms: int) -> int:
        """The earlier one of the deadline and the time at which the next comparison is due."""
        if self._task is not None or not self._assigned.has_unvalidated:
            return deadline_ms
        return min(deadline_ms, self._not_before_ms)

    def cancel(self) -> None:
        """Cancel the comparison: other partitions are assigned now."""
        if self._task is not None:
            self._task.cancel()
        self._task = self._fault = self.trouble = None
        self._stale_looks.clear()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pause_ms = self._router.retry_backoff_ms
        self._not_before_ms = 0

    async def _run(self) -> None:
        try:
            await self._compare()
            self.trouble = None
            self._begin_anew()
        except KafkaError as fault:
            self._not_before_ms = self._router.now_ms() + self._pause_ms
            self._pause_ms = min(self._pause_ms * 2, self._router.retry_backoff_max_ms)
            if fault.code.retriable:
                self.trouble = fault
            else:
                self._fault = fault
        except Exception as bug:
            # A bug: raise it for the log, and fail the next poll, so that no caller polls for ever.
            self._fault = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"this consumer has failed: {bug!r}")
            raise
        finally:
            if self._task is asyncio.current_task():
                self._task = None
            self._fetcher.wake()

    async def _compare(self) -> None:
        """One request to each leader. Raises the first fault, when all leaders have answered."""
        await self._router.ensure_fresh({name.topic for name in self._assigned.unvalidated()})
        by_leader, faults = self._by_leader()
        results = await asyncio.gather(*(self._ask(leader, asked) for leader, asked in by_leader.items()))
        for result in results:
            faults.update(result)
        for name, fault in faults.items():
            if fault.code in STALE_LEADER:
                self._router.view.mark_stale(name.topic)
        if faults:
            raise min(faults.values(), key=lambda fault: fault.code.retriable)

    def _by_leader(
        self,
    ) -> tuple[dict[BrokerAddress, dict[TopicPartition, _Asked]], dict[TopicPartition, KafkaError]]:
        by_leader: dict[BrokerAddress, dict[TopicPartition, _Asked]] = defaultdict(dict)
        faults: dict[TopicPartition, KafkaError] = {}
        for name, position in self._assigned.unvalidated().items():
            try:
                leader = self._router.view.leader(name)
                leader_epoch = self._router.view.partition(name).leader_epoch
                self._check_age(name, position.offset_epoch, leader_epoch)
            except KafkaError as fault:
                faults[name] = fault
            else:
                by_leader[leader][name] = _Asked(position.offset, position.offset_epoch, leader_epoch)
        return by_leader, faults

    def _check_age(self, name: TopicPartition, epoch: int, leader_epoch: int) -> None:
        """Raise KafkaError if the metadata are older than a record that was read: their leader may be an old one."""
        if not 0 <= leader_epoch < epoch:
            self._stale_looks.pop(name, None)
            return
        looks = self._stale_looks[name] = self._stale_looks.get(name, 0) + 1
        if looks <= _MAX_STALE_LOOKS:
            self._router.view.mark_stale(name.topic)
            detail = f"{name}: metadata have leader epoch {leader_epoch}, and records of epoch {epoch} were read"
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, detail)

    async def _ask(
        self, leader: BrokerAddress, asked: Mapping[TopicPartition, _Asked]
    ) -> dict[TopicPartition, KafkaError]:
        """Compare these positions with one leader's log. Returns the faults."""
        try:
            connection = await self._router.broker_connection(leader)
            if not connection.offers(OffsetForLeaderEpochRequest, 2):
                for name, position in asked.items():
                    self._assigned.skip_validation(name, leader_epoch=position.leader_epoch)
                return {}
            response = await connection.ask(
                _request(asked), OffsetForLeaderEpochResponse, timeout_ms=self._router.request_timeout_ms
            )
        except KafkaError as fault:
            return dict.fromkeys(asked, fault)
        return self._take(asked, response)

    def _take(
        self, asked: Mapping[TopicPartition, _Asked], response: OffsetForLeaderEpochResponse
    ) -> dict[TopicPartition, KafkaError]:
        missing = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the leader's answer leaves the partition out")
        faults: dict[TopicPartition, KafkaError] = dict.fromkeys(asked, missing)
        truncations: dict[TopicPartition, Truncation] = {}
        for topic in response.topics:
            for end in topic.partitions:
                name = TopicPartition(topic.topic, end.partition)
                position = asked.get(name)
                if position is None:
                    continue
                if end.error_code:
                    faults[name] = KafkaError(code_of(end.error_code), f"end of epoch {position.epoch} of {name}")
                    continue
                del faults[name]
                truncation = self._assigned.validated(
                    name,
                    position.offset,
                    end.leader_epoch,
                    end.end_offset,
                    leader_epoch=position.leader_epoch,
                    resets=self._resets,
                )
                if truncation is not None:
                    truncations[name] = truncation
        if self._resets:
            self._notices.report_jumps(truncations, self._router.now_ms())
        return faults


def _request(asked: Mapping[TopicPartition, _Asked]) -> OffsetForLeaderEpochRequest:
    topics: dict[str, list[OffsetForLeaderPartition]] = defaultdict(list)
    for name, position in asked.items():
        topics[name.topic].append(
            OffsetForLeaderPartition(
                partition=name.partition,
                current_leader_epoch=position.leader_epoch,
                leader_epoch=position.epoch,
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=tuple(OffsetForLeaderTopic(topic=name, partitions=tuple(each)) for name, each in topics.items()),
    )
