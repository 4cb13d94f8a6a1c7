"""The views that readers may name, and the partitions behind them (decision 0057)."""

from typing import Final

from tailrace.metadata.views import ViewImage, Views
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.replication.partition import Partition
from tailrace.server.fetch.key_reads import KeyRangeReads, ScanBudget
from tailrace.server.fetch.slot_counts import SlotCount, SlotCounts
from tailrace.server.fetch.view_reads import ViewReads
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Controller


class ReadableViews:
    """The views of one broker, for its readers."""

    def __init__(
        self,
        views: Views,
        *,
        controller: Controller,
        partitions: PartitionTable,
        key_reads: KeyRangeReads,
        clock: Clock,
    ) -> None:
        self._views = views
        self._controller = controller
        self._partitions = partitions
        self.key_reads: Final = key_reads
        self.reads: Final = ViewReads(key_reads, clock)
        self.counts: Final = SlotCounts()

    def named(self, topic: str) -> ViewImage | None:
        """The view of this name, if there is such a view and no topic has the name."""
        return self._views.named(self._controller.image, topic)

    def with_id(self, topic_id: bytes) -> ViewImage | None:
        """The view of this id, if there is such a view and no topic has the id."""
        return self._views.with_id(self._controller.image, topic_id)

    def unread(
        self,
        partition: Partition,
        view: ViewImage | None,
        number: int,
        start_offset: int,
        end_offset: int,
        budget: ScanBudget,
    ) -> SlotCount:
        """The records from an offset up to the end: of the partition or, with a view, of its partition `number`.

        Raises KafkaError as a read of the log.
        """
        if view is None:
            start = max(start_offset, partition.log.log_start_offset)
            return SlotCount(max(end_offset - start, 0), is_exact=True)
        return self.counts.count(partition, view.key_range(number), start_offset, end_offset, budget)

    def partition(self, view: ViewImage, index: int) -> Partition:
        """The partition that the view partition is a part of. Raises the errors of `PartitionTable.get_by_id`."""
        if index not in view.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {view.name}-{index}")
        return self._partitions.get_by_id(view.source.topic_id, view.stored_as(index).partition)
