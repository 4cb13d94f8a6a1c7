"""The state of a coordinator that clients see, now and after any end of the open transactions: for comparisons."""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

from tailrace.coordinators.groups.records import GroupLogRecord, TransactionEnd
from tailrace.coordinators.groups.store import GroupStore, StoredGroup
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.protocol.records.record import Record


class GroupStoreReceiver:
    """A `GroupStore` that is fed with a log's records, as at the load of a group coordinator."""

    def __init__(self, decode: Callable[[Record, int], GroupLogRecord | None]) -> None:
        self.store = GroupStore()
        self._decode = decode

    def on_record(self, record: Record, producer_id: int, producer_epoch: int) -> None:
        decoded = self._decode(record, producer_id)
        if decoded is not None:
            self.store.apply(decoded)

    def on_marker(self, producer_id: int, marker: EndTransactionMarker) -> None:
        is_committed = marker.type is ControlType.COMMIT
        for group_id in sorted(self.store.groups_waiting_for(producer_id)):
            self.store.apply(TransactionEnd(group_id=group_id, producer_id=producer_id, is_committed=is_committed))


def groups_seen(store: GroupStore, producer_ids: Sequence[int] = ()) -> dict[str, Any]:
    """The groups, with the offsets that the commits of these producers' transactions would leave, in each order."""
    orders = [order for count in range(len(producer_ids) + 1) for order in permutations(producer_ids, count)]
    return {group_id: _group_seen(group, orders) for group_id, group in store.groups.items()}


def _group_seen(group: StoredGroup, orders: Sequence[Sequence[int]]) -> tuple[Any, ...]:
    ends = {tuple(order): _offsets_after(group, order) for order in orders}
    return (group.metadata, group.consumer, group.pending.partitions, ends)


def _offsets_after(group: StoredGroup, committing: Sequence[int]) -> Mapping[Any, Any]:
    twin = group.copy()
    for producer_id in committing:
        twin.offsets.update(twin.pending.end(producer_id, is_committed=True))
    return twin.offsets
