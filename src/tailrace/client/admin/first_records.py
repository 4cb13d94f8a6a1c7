"""The first records of many partitions from given offsets on, with the fewest requests.

All partitions of a leader are in one fetch. A leader gives the first batch of the fetch whole, and of the other
partitions the batches that fit; partitions that have got nothing are asked again, and come first then.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tailrace.client.cluster_view import BrokerAddress
from tailrace.client.group.range_progress import KeyProgress
from tailrace.client.offsets import READ_UNCOMMITTED
from tailrace.client.partition_names import ByPartition, by_partition
from tailrace.client.reading.fetching import (
    LAST_BY_LEADER,
    STALE_LEADER,
    Fetched,
    FetchOptions,
    PartitionFetch,
    fetch,
)
from tailrace.client.router import Router
from tailrace.model.errors import KafkaError
from tailrace.model.key_ranges import hash_of
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import Record, read_records

_USE = "fetch"
_FIRST_BYTES: Final = 16 << 10
"""The bytes of a partition in the first fetch: nearly all batches are smaller."""
_MORE_BYTES: Final = 1 << 20
_ANSWER_BYTES: Final = 4 << 20
_PAUSE_S: Final = 0.05
"""The pause after a round without news: a leader is moving, or looks at keys."""
NO_PROGRESS: Final[Mapping[TopicPartition, KeyProgress]] = {}


class FirstRecord(NamedTuple):
    """The first record of a partition from an offset on."""

    offset: int
    timestamp: int
    """ms since 1970."""
    key: bytes | None


async def first_records(
    router: Router,
    offsets: ByPartition[int],
    done: ByPartition[KeyProgress] = NO_PROGRESS,
    *,
    timeout_ms: int,
) -> dict[TopicPartition, FirstRecord]:
    """The first record of each partition at or behind its offset; records that are done by this progress are passed.

    A partition is left out if it has no such record, or if the record cannot be read in this time.
    """
    search = _FirstRecordSearch(router, by_partition(offsets), by_partition(done))
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await search.run()
    except (TimeoutError, KafkaError):
        pass  # the answer has the rest
    return search.found


class _FirstRecordSearch:
    """The search in all partitions: the position in each partition whose record is not found yet, in the order of the
    next fetch."""

    def __init__(
        self, router: Router, offsets: Mapping[TopicPartition, int], done: Mapping[TopicPartition, KeyProgress]
    ) -> None:
        self._router = router
        self._done = done
        self._positions = dict(offsets)
        self.found: dict[TopicPartition, FirstRecord] = {}

    async def run(self) -> None:
        """Fetch until the record of each partition is found, or is known not to exist."""
        size = _FIRST_BYTES
        while self._positions:
            answers = await self._round(size)
            size = _MORE_BYTES
            has_news = False
            for fetched in answers:
                has_news |= self._take(fetched)
            if not has_news:
                await asyncio.sleep(_PAUSE_S)

    async def _round(self, partition_bytes: int) -> list[Fetched]:
        """Ask every leader once, side by side."""
        router = self._router
        await router.ensure_fresh({partition.topic for partition in self._positions})
        by_leader: dict[BrokerAddress, list[PartitionFetch]] = defaultdict(list)
        for partition, offset in self._positions.items():
            try:
                leader = router.view.leader(partition)
            except KafkaError:
                router.view.mark_stale(partition.topic)
                continue
            by_leader[leader].append(
                PartitionFetch(
                    topic_partition=partition,
                    topic_id=router.view.topic(partition.topic).topic_id,
                    offset=offset,
                    leader_epoch=router.view.partition(partition).leader_epoch,
                    max_bytes=partition_bytes,
                )
            )
        answers = await asyncio.gather(*(self._ask(leader, wanted) for leader, wanted in by_leader.items()))
        return [fetched for answer in answers for fetched in answer]

    async def _ask(self, leader: BrokerAddress, wanted: list[PartitionFetch]) -> list[Fetched]:
        router = self._router
        options = FetchOptions(
            max_wait_ms=0, min_bytes=1, max_bytes=_ANSWER_BYTES, isolation_level=READ_UNCOMMITTED, rack=""
        )
        try:
            connection = await router.broker_connection(leader, _USE)
            return await fetch(
                connection, wanted, options, timeout_ms=router.request_timeout_ms, max_version=LAST_BY_LEADER
            )
        except KafkaError:
            for want in wanted:
                router.view.mark_stale(want.topic_partition.topic)
            return []

    def _take(self, fetched: Fetched) -> bool:
        """Take the answer of a partition. Returns whether the partition has moved, or needs no more answers."""
        partition = fetched.topic_partition
        if fetched.fault is not None:
            if fetched.fault.code in STALE_LEADER:
                self._router.view.mark_stale(partition.topic)
                return False
            del self._positions[partition]
            return True
        try:
            record = self._first_in(fetched)
        except KafkaError:  # damage, or a codec that is not installed
            del self._positions[partition]
            return True
        if record is not None:
            self.found[partition] = FirstRecord(record.offset, record.timestamp, record.key)
        is_at_end = not fetched.size_bytes and 0 <= fetched.readable_end <= fetched.offset
        if record is not None or is_at_end or fetched.corrupt:
            del self._positions[partition]
            return True
        if fetched.next_offset <= fetched.offset:
            return False
        del self._positions[partition]
        self._positions[partition] = fetched.next_offset  # behind the partitions that have got nothing
        return True

    def _first_in(self, fetched: Fetched) -> Record | None:
        done = self._done.get(fetched.topic_partition)
        for record in _records(fetched):
            if record.offset < fetched.offset:
                continue
            if done is None or not done.is_committed(record.offset, hash_of(record.key, record.offset)):
                return record
        return None


def _records(fetched: Fetched) -> Iterable[Record]:
    for buffer in fetched.buffers:
        for position, _ in iter_batches(buffer):
            yield from read_records(buffer, position)
