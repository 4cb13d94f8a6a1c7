"""A group's progress by offsets and key hashes (KIP-X, individual commits): OffsetFetch, OffsetCommit with ranges."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from tailrace.client.errors import check
from tailrace.client.group.committed_offsets import COMMIT_TIMEOUT_MS, ConsumerGroupMetadata, commit_in_epoch
from tailrace.client.router import Router
from tailrace.model import __version__
from tailrace.model.committed_progress import MAX_RANGES_PER_COMMIT, CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import WHOLE, KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import hashes_by_name
from tailrace.net.connection import Connection
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.messages.fetch import KEY_RANGES_FEATURES
from tailrace.protocol.messages.offsets import (
    UNKNOWN_STATE_EPOCH,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    WireRectangle,
)

_FIRST_FETCH_WITH_RANGES: Final = 8
_LAST_WITH_NAMES: Final = 9
_NO_OFFSET: Final = -1
_FIRST_WITH_FEATURES: Final = 3
NO_NOTES: Final[Mapping[TopicPartition, str]] = {}


class KeyProgress:
    """The progress of a group in one partition."""

    __slots__ = ("_committed", "_of_hashes", "state_epoch")

    def __init__(self, committed: CommittedProgress, state_epoch: int, hashes: KeyRange = WHOLE) -> None:
        """`hashes` are the hashes that the records of the partition have, as its name tells."""
        self._committed: Final = committed
        is_within = all(hashes.first <= strip.start and strip.end - 1 <= hashes.last for strip in committed.strips)
        self._of_hashes: Final = committed.of_hashes(hashes) if is_within else committed
        self.state_epoch: Final = state_epoch
        """The number of resets of the offset, which a commit of ranges has to name; -1: the server does not count
        resets."""

    def __repr__(self) -> str:
        return f"KeyProgress(stable_offset={self.stable_offset}, ranges={self.ranges})"

    @property
    def stable_offset(self) -> int:
        """Every record below the stable offset is done. For clients that know no ranges it is the committed offset."""
        return self._committed.stable_offset

    @property
    def ranges(self) -> tuple[Rectangle, ...]:
        """The records beyond the stable offset that are done, by key hash and then by offset."""
        return tuple(self._committed.rectangles())

    def frontier(self, key_ranges: Iterable[KeyRange] = ()) -> int:
        """The first undone offset among these hashes, where a reader of the hashes starts; without ranges the
        stable offset."""
        return self._committed.lowest_frontier(key_ranges)

    def is_committed(self, offset: int, key_hash: int) -> bool:
        """Whether the record with this offset and key hash (`model.key_ranges.hash_of`) is done."""
        return self._committed.is_committed(offset, key_hash)

    @property
    def ahead(self) -> int:
        """The approximate number of done records beyond the stable offset: offsets, weighted by the share of all hashes
        that are done."""
        return self._committed.ahead

    @property
    def oldest_gap(self) -> KeyRange:
        """The first hashes of which the record at the stable offset is not done."""
        return next(self._of_hashes.gaps())


class RangeBudget(NamedTuple):
    """The ranges that a group has beyond its stable offset in one partition, and their limit.

    From three quarters on a reader should read nothing new of the partition until the missing records are done; above
    the limit a commit is refused.
    """

    used: int
    limit: int

    @property
    def is_high(self) -> bool:
        """Whether a reader should read nothing new of the partition."""
        return 4 * self.used >= 3 * self.limit


class RangeProgress:
    """The progress of one group at its coordinator."""

    def __init__(self, router: Router, group: str, author: Callable[[], ConsumerGroupMetadata]) -> None:
        """`author` returns the member that commits now, and may raise KafkaError."""
        self._router = router
        self._group = group
        self._author = author
        self._known: dict[TopicPartition, KeyProgress] = {}
        """The progress as it was fetched last: a commit names the state epoch of that progress."""
        self._supporter: Connection | None = None
        """The last connection to a coordinator that takes ranges."""

    async def takes_ranges(self) -> bool:
        """Whether the coordinator of the group takes ranges now."""
        return await self._router.ask_coordinator(self._group, self._announces)

    async def _announces(self, connection: Connection) -> bool:
        if connection is self._supporter:
            return True
        if connection.version_of(ApiVersionsRequest) < _FIRST_WITH_FEATURES:
            return False
        # Asked anew, not taken from the start of the connection: the cluster knows ranges once its last broker is
        # upgraded.
        answer = await self._router.ask(
            connection,
            ApiVersionsRequest(client_software_name="tailrace", client_software_version=__version__),
            ApiVersionsResponse,
            max_version=_FIRST_WITH_FEATURES,
        )
        is_supported = any(feature.name in KEY_RANGES_FEATURES for feature in answer.supported_features)
        if is_supported:
            self._supporter = connection
        return is_supported

    async def committed(self, partition: TopicPartition) -> KeyProgress | None:
        """The group's progress in this partition; None without a commit for the partition. Waits for the end of
        transactions that have set an offset."""
        topic = OffsetFetchRequestTopics(name=partition.topic, partition_indexes=(partition.partition,))
        found = (await fetch_progress(self._router, self._group, (topic,), require_stable=True)).get(partition)
        if found is None:
            self._known.pop(partition, None)
        else:
            self._known[partition] = found
        return found

    async def commit(
        self,
        ranges: Mapping[TopicPartition, Iterable[Rectangle]],
        *,
        notes: Mapping[TopicPartition, str] = NO_NOTES,
    ) -> dict[TopicPartition, RangeBudget]:
        """Commit that these records are done, in addition to the records that are committed already. A repeated commit
        does no harm. `notes` are the texts that are stored with the progress (the metadata of an offset).

        More ranges of a partition than a request may have go in several requests: commits unite. Raises KafkaError of
        the first partition that is refused; the other partitions are committed. UNSUPPORTED_VERSION if the coordinator
        takes no ranges: nothing is sent then. FENCED_STATE_EPOCH if the offset was reset since `committed`,
        OFFSET_METADATA_TOO_LARGE if there are too many ranges.
        """
        wanted = {partition: tuple(rectangles) for partition, rectangles in ranges.items()}
        budgets: dict[TopicPartition, RangeBudget] = {}
        for first in range(0, max(map(len, wanted.values()), default=0), MAX_RANGES_PER_COMMIT):
            piece = {name: found[first : first + MAX_RANGES_PER_COMMIT] for name, found in wanted.items()}
            commit = partial(self._commit_once, {name: found for name, found in piece.items() if found}, notes)
            budgets |= await commit_in_epoch(self._router, commit, timeout_ms=COMMIT_TIMEOUT_MS)
        return budgets

    async def _commit_once(
        self, ranges: Mapping[TopicPartition, tuple[Rectangle, ...]], notes: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, RangeBudget]:
        request = self._request(ranges, notes, self._author())

        async def ask(connection: Connection) -> OffsetCommitResponse:
            answer = await self._ask_to_commit(connection, request)
            for _, code, _ in _codes_in(answer):
                if code in _REPEATED:
                    raise KafkaError(ErrorCode(code), f"commit of ranges for group {self._group!r}")
            return answer

        answer = await self._router.ask_coordinator(self._group, ask, timeout_ms=COMMIT_TIMEOUT_MS)
        budgets = {}
        for partition, code, budget in _codes_in(answer):
            if code == ErrorCode.OFFSET_METADATA_TOO_LARGE:
                raise await self._too_many(partition)
            check(code, f"commit of ranges of {partition} for group {self._group!r}")
            budgets[partition] = budget
        return budgets

    async def cut(self, partition: TopicPartition, offset: int) -> None:
        """Forget the committed ranges from this offset on, since the log was truncated there (KIP-320), and move the
        group's offset back to it if the group's offset is higher.

        Does nothing if `committed` has found no progress. Raises KafkaError FENCED_STATE_EPOCH if the offset was reset
        since then.
        """
        known = self._known.get(partition)
        if known is None:
            return
        wanted = OffsetCommitRequestPartition(
            partition_index=partition.partition,
            committed_offset=offset,
            committed_metadata="",
            state_epoch=known.state_epoch,
        )
        request = self._request_of({partition.topic: [wanted]}, self._author())

        async def ask(connection: Connection) -> None:
            answer = await self._ask_to_commit(connection, request)
            for _, code, _ in _codes_in(answer):
                check(code, f"cut of {partition} at {offset} for group {self._group!r}")

        await self._router.ask_coordinator(self._group, ask)
        await self.committed(partition)

    async def _ask_to_commit(self, connection: Connection, request: OffsetCommitRequest) -> OffsetCommitResponse:
        """Send the commit. Raises UNSUPPORTED_VERSION if this coordinator takes no ranges: nothing is sent then."""
        if not await self._announces(connection):
            raise _unsupported(self._group)
        return await self._router.ask(connection, request, OffsetCommitResponse, max_version=_LAST_WITH_NAMES)

    def _request(
        self,
        ranges: Mapping[TopicPartition, tuple[Rectangle, ...]],
        notes: Mapping[TopicPartition, str],
        member: ConsumerGroupMetadata,
    ) -> OffsetCommitRequest:
        topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
        for partition, rectangles in ranges.items():
            known = self._known.get(partition)
            topics[partition.topic].append(
                OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=_NO_OFFSET if known is None else known.stable_offset,
                    committed_metadata=notes.get(partition, ""),
                    ranges=tuple(
                        WireRectangle(
                            first_offset=rectangle.first_offset,
                            last_offset=rectangle.last_offset,
                            first_hash=rectangle.first_hash,
                            last_hash=rectangle.last_hash,
                        )
                        for rectangle in rectangles
                    ),
                    state_epoch=UNKNOWN_STATE_EPOCH if known is None else known.state_epoch,
                )
            )
        return self._request_of(topics, member)

    def _request_of(
        self, topics: Mapping[str, list[OffsetCommitRequestPartition]], member: ConsumerGroupMetadata
    ) -> OffsetCommitRequest:
        return OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=tuple(OffsetCommitRequestTopic(name=name, partitions=tuple(each)) for name, each in topics.items()),
        )

    async def _too_many(self, partition: TopicPartition) -> KafkaError:
        """The error of a commit with too many ranges. The message names the record that holds the stable offset
        back."""
        topic = OffsetFetchRequestTopics(name=partition.topic, partition_indexes=(partition.partition,))
        progress = (await fetch_progress(self._router, self._group, (topic,))).get(partition)
        at = ""
        if progress is not None:
            at = (
                f"; it has {len(progress.ranges)}. Its oldest gap is at offset {progress.stable_offset}, key hashes "
                f"{progress.oldest_gap}: process that record, skip it, or raise offsets.max.ranges.per.partition"
            )
        return KafkaError(
            ErrorCode.OFFSET_METADATA_TOO_LARGE, f"group {self._group!r} has too many ranges in {partition}{at}"
        )


_REPEATED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
)
"""The codes after which the whole commit is sent again: ranges that are committed already do no harm."""


async def fetch_progress(
    router: Router,
    group: str,
    topics: tuple[OffsetFetchRequestTopics, ...] | None = None,
    *,
    require_stable: bool = False,
) -> dict[TopicPartition, KeyProgress]:
    """The progress of a group in these partitions, or in every partition; a partition without commits is left out.

    With `require_stable` the call waits for the end of transactions that have set an offset.
    """

    async def ask(connection: Connection) -> dict[TopicPartition, KeyProgress]:
        if connection.version_of(OffsetFetchRequest, _LAST_WITH_NAMES) < _FIRST_FETCH_WITH_RANGES:
            raise _unsupported(group)
        wanted = OffsetFetchRequestGroup(group_id=group, topics=topics, include_ranges=True)
        answer = await router.ask(
            connection,
            OffsetFetchRequest(groups=(wanted,), require_stable=require_stable),
            OffsetFetchResponse,
            max_version=_LAST_WITH_NAMES,
        )
        return _progress_in(answer, group)

    return await router.ask_coordinator(group, ask)


def _unsupported(group: str) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"the coordinator of group {group!r} takes no commits of ranges: it is not Tailrace, one of its brokers is too "
        "old, or group.key.ranges.enable is off. Commit offsets instead",
    )


def _progress_in(answer: OffsetFetchResponse, group: str) -> dict[TopicPartition, KeyProgress]:
    progress = {}
    for found in answer.groups:
        check(found.error_code, f"progress of group {group!r}")
        for topic in found.topics:
            for found_partition in topic.partitions:
                partition = TopicPartition(topic.name, found_partition.partition_index)
                check(found_partition.error_code, f"progress of group {group!r} in {partition}")
                if found_partition.committed_offset != _NO_OFFSET:
                    committed = CommittedProgress(found_partition.committed_offset).with_committed(
                        Rectangle(each.first_offset, each.last_offset, each.first_hash, each.last_hash)
                        for each in found_partition.committed_ranges
                    )
                    hashes = hashes_by_name(partition)
                    progress[partition] = KeyProgress(committed, found_partition.state_epoch, hashes)
    return progress


def _codes_in(answer: OffsetCommitResponse) -> Iterator[tuple[TopicPartition, int, RangeBudget]]:
    for topic in answer.topics:
        for committed in topic.partitions:
            budget = RangeBudget(committed.range_budget.used, committed.range_budget.limit)
            yield TopicPartition(topic.name, committed.partition_index), committed.error_code, budget
