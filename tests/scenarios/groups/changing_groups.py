"""Groups whose members speak either protocol, for tests of a group that changes its kind."""

from collections.abc import Sequence

from tailrace.protocol.messages.groups import ListGroupsRequest
from testkit.coordinators.classic_members import ClassicTableMember
from testkit.coordinators.consumer_groups import TableMember
from testkit.coordinators.group_path import GroupPath

ALL = {0, 1, 2, 3}


def settle(*members: TableMember | ClassicTableMember, rounds: int = 8) -> None:
    """Let all members do their due work, until none is."""
    for _ in range(rounds):
        for member in members:
            if isinstance(member, ClassicTableMember):
                member.act()
            elif member.epoch > 0:
                member.beat()


def classic_group(node: GroupPath, count: int = 2, *, is_cooperative: bool = False) -> list[ClassicTableMember]:
    members = [ClassicTableMember(node, f"c{n}", is_cooperative=is_cooperative) for n in range(count)]
    for member in members:
        member.act()
        settle(*members)
    assert partitions_read_once(members) == ALL
    return members


def partitions_read_once(members: Sequence[TableMember | ClassicTableMember]) -> set[int]:
    read = [partition for member in members for partition in member.partitions()]
    assert len(read) == len(set(read)), "a partition is read by one"
    return set(read)


def kind_of_group(node: GroupPath) -> str:
    (group,) = node.send(ListGroupsRequest(), 5).response.groups
    return str(group.group_type)
