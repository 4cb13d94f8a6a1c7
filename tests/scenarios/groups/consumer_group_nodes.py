"""Nodes with consumer groups (KIP-848), and the groups that tests begin with."""

from typing import Any

from tailrace.model.errors import ErrorCode
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.consumer_groups import TableMember, describe
from testkit.coordinators.group_path import GroupPath

E = ErrorCode

SESSION_MS = 45_000


def new_node(files: SimulatedDisk | None = None, *, start: int = 1, **settings: str) -> GroupPath:
    texts = {name.replace("_", "."): value for name, value in settings.items()}
    node = GroupPath("/data", files=files or SimulatedDisk(seed=1), start=start, settings=texts)
    if start == 1:
        node.create_topics("orders", partitions=4)
        node.create_topics("returns", partitions=4)
        node.find_coordinator("g")
    return node


def two_members(node: GroupPath, **options: Any) -> tuple[TableMember, TableMember]:
    """A stable group of two with two partitions each."""
    a, b = TableMember(node, "a", **options), TableMember(node, "b", **options)
    assert (a.join(), b.join()) == (E.NONE, E.NONE)
    for member in (a, a, b):
        assert member.beat() is E.NONE
    assert len(a.partitions()) == len(b.partitions()) == 2
    assert describe(node).group_state == "Stable"
    return a, b


VALID: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1_000,
    "subscribed_topic_names": ("orders",),
    "topic_partitions": (),
}


def code_of_commit(exchange: Any) -> ErrorCode:
    return ErrorCode(exchange.response.topics[0].partitions[0].error_code)
