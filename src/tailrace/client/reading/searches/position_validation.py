"""Compares positions with the leaders' logs after a change of leader, by OffsetForLeaderEpoch (KIP-320).

A leader that does not answer holds back its own partitions alone. `reading.position` decides on the answers.
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
from tailrace.client.reading.searches.retried_search import RetriedSearch
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
"""The number of times that metadata with an older leader epoch than the position's are refreshed before they count: the
topic may have been created again, and its epochs with it."""


class _Asked(NamedTuple):
    """A position that is being compared."""

    offset: int
    epoch: int
    leader_epoch: int


class PositionValidator:
    """The comparison of positions that await validation. At most one runs at a time."""

    def __init__(self, router: Router, fetcher: Fetcher, *, resets: bool, notices: ReadNotices) -> None:
        """`resets`: the consumer has a reset policy, earliest or latest."""
        self._router = router
        self._assigned = fetcher.assigned
        self._resets = resets
        self._notices = notices
        self._search = RetriedSearch(router, on_end=fetcher.wake)
        self._stale_looks: dict[TopicPartition, int] = {}

    @property
    def trouble(self) -> KafkaError | None:
        """The fault of the last comparison during retries."""
        return self._search.trouble

    def check(self) -> None:
        """Raise KafkaError for a fault that a retry does not cure."""
        fault = self._search.take_fault()
        if fault is not None and self._assigned.unvalidated():
            raise fault

    def advance(self) -> None:
        """Compare the positions that await validation, unless a comparison is under way."""
        if self._assigned.has_unvalidated:
            self._search.start_if_due(self._compare)
        else:
            self._search.trouble = None

    def next_due_ms(self, deadline_ms: int) -> int:
        """The time of the next comparison, at most the deadline."""
        return self._search.next_due_ms(deadline_ms) if self._assigned.has_unvalidated else deadline_ms

    def cancel(self) -> None:
        """Cancel the comparison: other partitions are assigned now."""
        self._search.cancel()
        self._stale_looks.clear()

    async def _compare(self) -> None:
        """Send one request to each leader. Raises the first fault, when all leaders have answered."""
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
        """Raise KafkaError if the metadata are older than a record that was read, and may name a former leader."""
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
            response = await self._router.ask(connection, _request(asked), OffsetForLeaderEpochResponse)
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
