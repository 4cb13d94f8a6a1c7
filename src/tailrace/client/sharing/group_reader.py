"""A consumer in a group whose partitions are given up only after their records in hand."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tailrace.client.consumer import AsyncConsumer
from tailrace.client.offsets import LATEST, OffsetAt, request_offsets
from tailrace.model.partitions import TopicPartition


class GroupReader(AsyncConsumer):
    """It commits nothing by itself. The callbacks run on its event loop."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        group: str,
        topics: Iterable[str],
        on_revoke: Callable[[], Awaitable[None]],
        on_assigned: Callable[[], None],
        **settings: Any,
    ) -> None:
        """`on_revoke` ends before the partitions are given up; `on_assigned`: all have left, or others have come."""
        super().__init__(bootstrap_servers, group=group, topics=topics, enable_auto_commit=False, **settings)
        self._on_revoke = on_revoke
        self._on_assigned = on_assigned

    async def revoke(self) -> None:
        """The group rebalances: finish and commit, then stop reading."""
        await self._on_revoke()
        await super().revoke()

    def assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Read these partitions, from their committed offsets on."""
        super().assigned(partitions)
        self._on_assigned()

    def now_ms(self) -> int:
        """The time of its clock, which does not go back."""
        return self._router.now_ms()

    @property
    def corrupt_batches(self) -> int:
        """The batches that could not be decoded and were stepped over."""
        return self._assigned.corrupt.batches

    def set_paused(self, name: TopicPartition, is_paused: bool) -> None:
        """Stop or resume this partition, if it is assigned."""
        if name not in self._assigned.by_name:
            return
        if is_paused:
            self._assigned.pause((name,))
        else:
            self._assigned.resume((name,))
            self._fetcher.wake()

    def start_over(self, name: TopicPartition) -> None:
        """Read this partition from its committed offset again, or by the reset policy if it has none any more."""
        assigned = self.assignment
        if name in assigned:
            self._fetcher.assign(assigned - {name})
            self._fetcher.assign(assigned)

    async def cut(self, name: TopicPartition, offset: int) -> None:
        """The log was cut: what the group has committed from this offset on is of records that are no more.

        Raises KafkaError FENCED_STATE_EPOCH if the offset was reset since its progress was read.
        """
        await self._progress_of_group().cut(name, offset, member=self.group_metadata())

    def is_displaced(self, name: TopicPartition) -> bool:
        """Whether the log did not have the offset at which reading was to go on, and a reset or a truncation has moved
        it to the one where it went on last."""
        partition = self._assigned.get(name)
        return partition is not None and partition.position.is_displaced

    async def end_of(self, name: TopicPartition) -> int:
        """The end of the log, as its leader says. Raises KafkaError."""
        found: dict[TopicPartition, OffsetAt] = {}
        faults = await request_offsets(self._router, {name: LATEST}, found.update)
        if name in faults:
            raise faults[name]
        return found[name].offset

    def doubt(self, name: TopicPartition) -> None:
        """A fault shows that the log may have been cut: compare the position with it."""
        self._assigned.doubt(name)
        self._router.view.mark_stale(name.topic)
        self._fetcher.wake()

    def epoch_before(self, name: TopicPartition, offset: int) -> int:
        """The leader epoch of the last record before this offset; -1: unknown."""
        return self._assigned.epoch_before(name, offset)
