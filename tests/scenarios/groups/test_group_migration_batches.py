"""KIP-848: the conversion of a group is one batch in the log, whole or not at all, whatever its size."""

import pytest

from scenarios.groups.changing_groups import ALL, classic_group, kind_of_group, partitions_read_once, settle
from scenarios.groups.consumer_group_nodes import new_node
from tailrace.coordinators.groups.history import GroupEventKind
from tailrace.model.errors import ErrorCode
from tailrace.protocol.records.batch import iter_batches
from tailrace.storage import ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.classic_members import ClassicTableMember
from testkit.coordinators.consumer_groups import LEAVE_FOR_A_WHILE, TableMember, describe
from testkit.coordinators.group_path import GroupPath

E = ErrorCode


class TestConversionsInTheLog:
    """The conversion is in the log, whole or not at all."""

    @pytest.mark.parametrize("is_cooperative", [False, True])
    def test_an_upgraded_group_goes_on_at_another_coordinator(self, is_cooperative: bool) -> None:
        files = SimulatedDisk(seed=2)
        node = new_node(files)
        members = classic_group(node, is_cooperative=is_cooperative)
        c = TableMember(node, "c")
        c.join()
        before = describe(node)
        again = _restart(files, *members, c)
        assert describe(again) == before
        settle(*members, c)
        assert partitions_read_once((*members, c)) == ALL

    @pytest.mark.parametrize("is_cooperative", [False, True])
    def test_a_downgraded_group_goes_on_at_another_coordinator(self, is_cooperative: bool) -> None:
        files = SimulatedDisk(seed=2)
        node = new_node(files)
        c = TableMember(node, "c")
        c.join()
        members = [ClassicTableMember(node, name, is_cooperative=is_cooperative) for name in "ab"]
        for member in members:
            member.act()
        settle(*members, c)
        c.leave()
        again = _restart(files, *members)
        assert kind_of_group(again) == "classic"
        for member in members:
            assert member.beat() in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION), "a rebalance is due"
        settle(*members)
        assert partitions_read_once(members) == ALL

    def test_an_upgrade_that_is_not_written_leaves_a_classic_group(self) -> None:
        files = SimulatedDisk(seed=4)
        node = new_node(files)
        members = classic_group(node)
        c = TableMember(node, "c")
        files.fail_at(files.operations + 1)
        assert c.join() is E.NOT_COORDINATOR
        assert kind_of_group(node) == "classic"
        settle(*members)
        assert partitions_read_once(members) == ALL
        assert c.join() is E.NONE
        settle(*members, c)
        assert partitions_read_once((*members, c)) == ALL

    def test_a_downgrade_that_is_not_written_leaves_a_consumer_group(self) -> None:
        files = SimulatedDisk(seed=4)
        node = new_node(files)
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d")
        c.join()
        d.act()
        settle(c, d)
        files.fail_at(files.operations + 1)
        assert c.leave() is E.NOT_COORDINATOR
        assert kind_of_group(node) == "consumer"
        assert d.beat() is E.NONE
        assert c.leave() is E.NONE
        settle(d)
        assert (kind_of_group(node), partitions_read_once((d,))) == ("classic", ALL)


def _restart(files: SimulatedDisk, *members: TableMember | ClassicTableMember) -> GroupPath:
    files.power_cut()
    files.reboot()
    node = new_node(files, start=2)
    for member in members:
        member.node = node
    return node


def test_a_conversion_of_a_group_is_one_batch(node: GroupPath) -> None:
    """So a log that is cut has the whole conversion or nothing of it, however large the group is."""
    (a,) = classic_group(node, 1)
    members = node.coordinators.host_of("g").machine._memberships["g"].group.members
    for protocol in members[a.member_id].protocols:
        object.__setattr__(protocol, "metadata", protocol.metadata + bytes(600_000))
    before = _batches(node)
    assert TableMember(node, "c").join() is E.NONE
    assert _batches(node) == before + 1
    for protocol in members[a.member_id].protocols:
        assert len(protocol.metadata) > 600_000


def test_a_classic_group_that_takes_more_than_a_batch_is_not_converted(node: GroupPath) -> None:
    (a,) = classic_group(node, 1)
    members = node.coordinators.host_of("g").machine._memberships["g"].group.members
    for protocol in members[a.member_id].protocols:
        object.__setattr__(protocol, "metadata", protocol.metadata + bytes(1_000_000))
    assert TableMember(node, "c").join() is E.GROUP_MAX_SIZE_REACHED
    assert a.beat() is E.NONE


def _names(prefix: str) -> tuple[str, ...]:
    """240 kB of names of topics that do not exist."""
    return tuple(f"{prefix}-{number:05d}-".ljust(100, "x") for number in range(2_400))


def test_the_records_of_the_converting_heartbeat_count_for_the_size_of_the_upgrade_batch(node: GroupPath) -> None:
    """The heartbeat is refused with a reason, and no member has changed; a member that brings less is admitted."""
    (a,) = classic_group(node, 1)
    machine = node.coordinators.host_of("g").machine
    for protocol in machine._memberships["g"].group.members[a.member_id].protocols:
        object.__setattr__(protocol, "metadata", protocol.metadata + bytes(850_000))
    generation = a.generation
    for _ in range(2):
        assert TableMember(node, "c", topics=("orders", *_names("c"))).join() is E.GROUP_MAX_SIZE_REACHED
        assert a.beat() is E.NONE
    assert (kind_of_group(node), a.generation) == ("classic", generation)
    assert machine._consumers._sessions.next_deadline_ms is None, "no session was begun for a member that is not there"
    assert GroupEventKind.CONVERTED not in {event.kind for event in machine._histories["g"].events}
    assert TableMember(node, "d").join() is E.NONE
    assert kind_of_group(node) == "consumer"


def test_the_records_of_the_last_member_count_for_the_size_of_the_downgrade_batch(node: GroupPath) -> None:
    c = TableMember(node, "c", instance_id="i")
    c.join()
    others = [ClassicTableMember(node, name, topics=("orders", *_names(name))) for name in "de"]
    for other in others:
        other.act()
    settle(c, *others)
    c.leave(LEAVE_FOR_A_WHILE)
    again = ClassicTableMember(node, "f", topics=("orders", *_names("f")), instance_id="i")
    again.act()
    assert kind_of_group(node) == "consumer", (
        "what it brings, twice, and the whole classic group take more than a batch"
    )
    settle(again, *others)
    assert partitions_read_once((again, *others)) == ALL


def _batches(node: GroupPath) -> int:
    partition = node.coordinators.host_of("g").partition
    data = partition.read(ReadLimits(0, 1 << 24)).records
    return sum(1 for _ in iter_batches(data))
