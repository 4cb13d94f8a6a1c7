"""A Fetch request to a node for some partitions, and the batches of its answer that a reader may see."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tailrace.client.errors import check, code_of
from tailrace.client.offsets import READ_COMMITTED
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId
from tailrace.model.key_ranges import KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    WireKeyRange,
)
from tailrace.protocol.records.batch import HEADER_SIZE, BatchHeader, iter_batches, read_header
from tailrace.protocol.records.corrupt_batch import CorruptBatch, corrupt_batch, stored_end
from tailrace.protocol.records.record import read_records
from tailrace.protocol.schema import Buffer

LAST_WITH_NAMES = 12
LAST_BY_LEADER = 10
"""The last version in which a leader names no other replica to read from, whatever its selector would choose."""
"""The last version of Fetch that names topics by name, not by id (KIP-516)."""
NEWEST = 17
_ABORT = 0


class PartitionFetch(NamedTuple):
    """A partition to read, and the offset."""

    topic_partition: TopicPartition
    topic_id: TopicId
    offset: int
    leader_epoch: int
    """The leader epoch in the client's metadata; -1: unchecked. A leader of another epoch refuses (KIP-320)."""
    max_bytes: int
    key_ranges: tuple[KeyRange, ...] = ()
    """The key hashes of the wanted records, in order and joined (KIP-X); empty for all records."""


class FetchOptions(NamedTuple):
    """The waits and sizes of a fetch, by Kafka's names."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    rack: str


class Fetched(NamedTuple):
    """The answer for one partition. Offsets are -1 if the server did not give offsets."""

    topic_partition: TopicPartition
    offset: int
    """The offset at which the fetch began."""
    next_offset: int
    """The offset at which the next fetch begins."""
    buffers: list[Buffer]
    """Whole batches in order of offset. The first may begin below `offset` (KIP-74)."""
    size_bytes: int
    readable_end: int
    """The high watermark, or the last stable offset under read_committed."""
    log_start_offset: int
    preferred_read_replica: int
    fault: KafkaError | None
    last_epoch: int = -1
    """The leader epoch of the last batch below `next_offset`; -1 if the answer has no batch."""
    key_ranges: tuple[KeyRange, ...] = ()
    """The ranges of the fetch (KIP-X)."""
    is_filtered: bool = False
    """Whether the broker has left out the records of other keys. A broker that does not know key ranges leaves out
    nothing."""
    corrupt: tuple[CorruptBatch, ...] = ()
    """Batches that are not in the buffers, since their headers or markers cannot be decoded; in order of offset."""


class VisibleBatches(NamedTuple):
    """The batches of an answer that a reader may see."""

    stretches: list[Buffer]
    next_offset: int
    """The offset behind the last batch, visible or not."""
    last_epoch: int
    """The leader epoch of the last batch; -1 without a batch."""
    corrupt: tuple[CorruptBatch, ...]
    """Batches whose headers cannot be decoded, and unreadable markers that may end an aborted transaction."""


async def fetch(
    connection: Connection,
    wanted: Sequence[PartitionFetch],
    options: FetchOptions,
    *,
    timeout_ms: int,
    max_version: int = NEWEST,
) -> list[Fetched]:
    """Fetch from one node, without a fetch session. Faults of single partitions are in their results."""
    names = {want.topic_id: want.topic_partition.topic for want in wanted}
    has_ids = ZERO_TOPIC_ID not in names
    response = await connection.ask(
        fetch_request(wanted, options),
        FetchResponse,
        timeout_ms=timeout_ms + options.max_wait_ms,
        max_version=max_version if has_ids else min(max_version, LAST_WITH_NAMES),
    )
    return read_answer(response, wanted, options)


def fetch_request(
    wanted: Sequence[PartitionFetch],
    options: FetchOptions,
    *,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: tuple[ForgottenTopic, ...] = (),
) -> FetchRequest:
    """The request for these partitions, fit for every version: topics have their name and their id.

    The default is a fetch without a session (KIP-227).
    """
    topics: dict[tuple[str, TopicId], list[FetchPartition]] = defaultdict(list)
    for want in wanted:
        topics[want.topic_partition.topic, want.topic_id].append(
            FetchPartition(
                partition=want.topic_partition.partition,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                partition_max_bytes=want.max_bytes,
                key_ranges=wire_ranges(want.key_ranges),
            )
        )
    return FetchRequest(
        max_wait_ms=options.max_wait_ms,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        isolation_level=options.isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=tuple(
            FetchTopic(topic=name, topic_id=topic_id, partitions=tuple(partitions))
            for (name, topic_id), partitions in topics.items()
        ),
        forgotten_topics_data=forgotten,
        rack_id=options.rack,
    )


def read_answer(response: FetchResponse, wanted: Sequence[PartitionFetch], options: FetchOptions) -> list[Fetched]:
    """The answer for each requested partition. Raises KafkaError for a fault of the whole fetch."""
    check(response.error_code, "fetch")
    by_partition: dict[tuple[str, int], PartitionFetch] = {}
    for want in wanted:
        by_partition[want.topic_partition] = want
    names = {want.topic_id: want.topic_partition.topic for want in wanted}
    results = []
    for topic in response.responses:
        name = topic.topic or names.get(TopicId(bytes(topic.topic_id)), "")
        for answer in topic.partitions:
            found = by_partition.get((name, answer.partition_index))
            if found is not None:
                results.append(read_partition(found, answer, options))
    return results


def read_partition(want: PartitionFetch, answer: PartitionData, options: FetchOptions) -> Fetched:
    """The answer to this part of a fetch. A fault of the partition is part of the answer."""
    fault = None
    buffers: list[Buffer] = []
    next_offset, last_epoch = want.offset, -1
    corrupt: tuple[CorruptBatch, ...] = ()
    if answer.error_code:
        fault = KafkaError(code_of(answer.error_code), f"fetch of {want.topic_partition} at offset {want.offset}")
    elif answer.records:
        committed_only = options.isolation_level == READ_COMMITTED
        aborted = (answer.aborted_transactions or ()) if committed_only else ()
        try:
            buffers, next_offset, last_epoch, corrupt = visible_batches(answer.records, want.offset, aborted)
        except CorruptRecords as damage:
            fault = CorruptRecords(f"{want.topic_partition} at offset {want.offset}: {damage.detail}")
    is_filtered = bool(want.key_ranges) and answer.applied_key_ranges == wire_ranges(want.key_ranges)
    if is_filtered and fault is None:
        next_offset = max(next_offset, answer.scanned_to)
    end = answer.last_stable_offset if options.isolation_level == READ_COMMITTED else answer.high_watermark
    return Fetched(
        topic_partition=want.topic_partition,
        offset=want.offset,
        next_offset=next_offset,
        buffers=buffers,
        size_bytes=len(answer.records) if answer.records else 0,
        readable_end=end,
        log_start_offset=answer.log_start_offset,
        preferred_read_replica=answer.preferred_read_replica,
        fault=fault,
        last_epoch=last_epoch,
        key_ranges=want.key_ranges,
        is_filtered=is_filtered,
        corrupt=corrupt,
    )


def wire_ranges(ranges: Iterable[KeyRange]) -> tuple[WireKeyRange, ...]:
    """The ranges in the form of a Fetch request."""
    return tuple([WireKeyRange(first=first, last=last) for first, last in ranges])


def visible_batches(records: Buffer, offset: int, aborted: Iterable[AbortedTransaction]) -> VisibleBatches:
    """The stretches of `records` that a reader at `offset` may see, as views.

    Left out are batches that end below the offset, control batches, and batches of aborted transactions: a producer's
    batches from the transaction's first offset up to its abort marker. An incomplete batch at the end is left out.
    Raises CorruptRecords if the end of the first batch cannot be found; a later batch of this kind is left for the next
    fetch.
    """
    view = memoryview(records)
    transactions = _AbortedTransactions(aborted)
    stretches: list[Buffer] = []
    corrupt: list[CorruptBatch] = []
    start: int | None = None
    position = 0
    next_offset, last_epoch = offset, -1
    while len(view) - position >= HEADER_SIZE:
        end, is_visible = stored_end(view, position), False
        try:
            header = read_header(view, position)
            if end is None:
                break
            is_hidden = transactions.hide(view[position:end], header)
            next_offset, last_epoch = max(next_offset, header.end_offset), header.partition_leader_epoch
            is_visible = not is_hidden and header.end_offset > offset and header.records_count > 0
        except CorruptRecords as fault:
            if end is None and position:
                break
            if end is None:
                raise
            corrupt.append(corrupt_batch(view, position, end, fault, least_offset=next_offset))
            next_offset = max(next_offset, corrupt[-1].next_offset)
        if is_visible and start is None:
            start = position
        elif not is_visible and start is not None:
            stretches.append(view[start:position])
            start = None
        position = end
    if start is not None:
        stretches.append(view[start:position])
    return VisibleBatches(stretches, next_offset, last_epoch, tuple(corrupt))


def before(buffers: Iterable[Buffer], offset: int) -> list[Buffer]:
    """The batches that begin below this offset."""
    parts: list[Buffer] = []
    for buffer in buffers:
        view, end = memoryview(buffer), 0
        for position, header in iter_batches(view):
            if header.base_offset >= offset:
                break
            end = position + header.size_bytes
        if end:
            parts.append(view[:end])
    return parts


class _AbortedTransactions:
    """The aborted transactions of an answer, which begin and end as its batches pass."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborting: set[int] = set()
        """The producers of the aborted transactions that have begun and not ended."""

    def hide(self, batch: memoryview, header: BatchHeader) -> bool:
        """Whether the next batch is not for readers. Raises CorruptRecords for a marker that cannot be read.

        A marker that cannot be read counts as the abort marker, which is the next marker that the producer gets.
        """
        while self._waiting and self._waiting[-1].first_offset <= header.last_offset:
            self._aborting.add(self._waiting.pop().producer_id)
        producer_id = header.producer_id
        if not header.is_control:
            return header.is_transactional and producer_id in self._aborting
        if producer_id in self._aborting:
            self._aborting.discard(producer_id)
            if not _is_abort(batch):
                self._aborting.add(producer_id)
        return True


def _is_abort(batch: memoryview) -> bool:
    """Whether the control batch is an abort marker: its one record's key is (version, type), both int16.

    A marker that compaction has emptied ends no transaction: the records of its transaction are gone as well.
    """
    records = read_records(batch)
    return any(record.key is not None and int.from_bytes(record.key[2:4], "big") == _ABORT for record in records)


STALE_LEADER = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)
"""Faults after which the metadata must be refreshed. UNKNOWN_LEADER_EPOCH is left out: there the broker's metadata is
old, not the client's."""
