"""Commits of ranges to the coordinator of a node, and the progress of their group."""

from collections.abc import Sequence
from typing import Any

from tailrace.metadata.views import id_of
from tailrace.model.errors import ErrorCode
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.protocol.messages.fetch import WireKeyRange
from tailrace.protocol.messages.offsets import (
    UNKNOWN_STATE_EPOCH,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
    WireRectangle,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.transaction_path import TransactionPath

E = ErrorCode


HALF = HASH_SPACE // 2


LAST = HASH_SPACE - 1


RECORDS = 100
"""In each of the partitions."""


ORDERS_0 = OffsetFetchRequestTopics(name="orders", partition_indexes=(0,))


def new_node(files: SimulatedDisk | None = None, **settings: str) -> TransactionPath:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return TransactionPath(
        "/data", files=files or SimulatedDisk(seed=1), settings={**TransactionPath.SETTINGS, **named}
    )


def filled(node: TransactionPath, *, partitions: int = 2) -> TransactionPath:
    node.create_topics("orders", partitions=partitions)
    node.find_coordinator("g")
    node.produce("orders", *[b"x"] * RECORDS)
    return node


def low(first: int, last: int) -> WireRectangle:
    return WireRectangle(first_offset=first, last_offset=last, first_hash=0, last_hash=HALF - 1)


def high(first: int, last: int) -> WireRectangle:
    return WireRectangle(first_offset=first, last_offset=last, first_hash=HALF, last_hash=LAST)


def partition_of(
    *ranges: WireRectangle, offset: int = -1, state_epoch: int = UNKNOWN_STATE_EPOCH, partition: int = 0
) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_metadata="",
        ranges=ranges,
        state_epoch=state_epoch,
    )


def commit(
    node: TransactionPath,
    *ranges: WireRectangle,
    offset: int = -1,
    state_epoch: int = UNKNOWN_STATE_EPOCH,
    **options: Any,
) -> OffsetCommitResponsePartition:
    """`commit_all` for one partition."""
    return commit_all(node, partition_of(*ranges, offset=offset, state_epoch=state_epoch), **options)[0]


def request_of(
    *partitions: OffsetCommitRequestPartition,
    topic: str = "orders",
    topic_id: bytes = bytes(16),
    member: tuple[str, int] = ("", -1),
    retention_ms: int = -1,
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="g",
        member_id=member[0],
        generation_id_or_member_epoch=member[1],
        retention_time_ms=retention_ms,
        topics=(OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions),),
    )


def commit_all(
    node: TransactionPath,
    *partitions: OffsetCommitRequestPartition,
    topic: str = "orders",
    member: tuple[str, int] = ("", -1),
    version: int = 9,
    retention_ms: int = -1,
) -> Sequence[OffsetCommitResponsePartition]:
    naming: dict[str, Any] = {"topic": topic} if version < 10 else {"topic": "", "topic_id": _id_of(node, topic)}
    request = request_of(*partitions, member=member, retention_ms=retention_ms, **naming)
    answered: Sequence[OffsetCommitResponsePartition] = node.send(request, version).response.topics[0].partitions
    return answered


def _id_of(node: TransactionPath, topic: str) -> bytes:
    found = id_of(node.coordinators.image, topic)
    assert found is not None
    return found


def progress(
    node: TransactionPath, *key_ranges: WireKeyRange, topic: str = "orders", partition: int = 0
) -> OffsetFetchResponsePartitions:
    asked = OffsetFetchRequestTopics(name=topic, partition_indexes=(partition,))
    group = OffsetFetchRequestGroup(group_id="g", topics=(asked,), include_ranges=True, key_ranges=key_ranges)
    (answer,) = node.send(OffsetFetchRequest(groups=(group,)), 8).response.groups
    assert answer.error_code == E.NONE
    found: OffsetFetchResponsePartitions = answer.topics[0].partitions[0]
    return found


def stand(
    node: TransactionPath, *, topic: str = "orders", partition: int = 0
) -> tuple[int, tuple[WireRectangle, ...], int]:
    """Stable offset, ranges and state epoch."""
    found = progress(node, topic=topic, partition=partition)
    return found.committed_offset, found.committed_ranges, found.state_epoch
