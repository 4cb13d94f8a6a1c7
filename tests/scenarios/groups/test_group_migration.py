"""KIP-848, "Upgrading to the new protocol", "Downgrading": a running group changes its kind. Sentences in short."""

from collections.abc import Sequence

import pytest

from tailrace.coordinators.groups.history import GroupEventKind
from tailrace.metadata.commands import TopicReference
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from tailrace.protocol.messages.membership import LeaveGroupRequest, MemberIdentity
from tailrace.protocol.records.batch import iter_batches
from tailrace.storage import ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.classic_members import ClassicTableMember
from testkit.coordinators.consumer_groups import LEAVE_FOR_A_WHILE, TableMember, describe
from testkit.coordinators.group_path import GroupPath
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode
ALL = {0, 1, 2, 3}


def _node(files: SimulatedDisk | None = None, *, start: int = 1, **settings: str) -> GroupPath:
    texts = {name.replace("_", "."): value for name, value in settings.items()}
    node = GroupPath("/data", files=files or SimulatedDisk(seed=1), start=start, settings=texts)
    if start == 1:
        node.create_topics("orders", partitions=4)
        node.find_coordinator("g")
    return node


@pytest.fixture
def node() -> GroupPath:
    return _node()


def _settle(*members: TableMember | ClassicTableMember, rounds: int = 8) -> None:
    """Let all members do their due work, until none is."""
    for _ in range(rounds):
        for member in members:
            if isinstance(member, ClassicTableMember):
                member.act()
            elif member.epoch > 0:
                member.beat()


def _classic_group(node: GroupPath, count: int = 2, *, is_cooperative: bool = False) -> list[ClassicTableMember]:
    members = [ClassicTableMember(node, f"c{n}", is_cooperative=is_cooperative) for n in range(count)]
    for member in members:
        member.act()
        _settle(*members)
    assert _read_once(members) == ALL
    return members


def _read_once(members: Sequence[TableMember | ClassicTableMember]) -> set[int]:
    read = [partition for member in members for partition in member.partitions()]
    assert len(read) == len(set(read)), "a partition is read by one"
    return set(read)


def _kind(node: GroupPath) -> str:
    (group,) = node.send(ListGroupsRequest(), 5).response.groups
    return str(group.group_type)


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_a_running_group_changes_over_and_back(node: GroupPath, is_cooperative: bool) -> None:
    """ "rolling upgrade": members are replaced in turn; "the group is converted when the first ... joins"."""
    a, b = _classic_group(node, is_cooperative=is_cooperative)
    c = TableMember(node, "c")
    assert c.join() is E.NONE
    assert _kind(node) == "consumer"
    assert c.partitions() == set(), "all is held by members that have not got their new assignment yet"
    _settle(a, b, c)
    assert _read_once((a, b, c)) == ALL
    assert {member.member_type for member in describe(node).members} == {0, 1}
    assert describe(node).group_state == "Stable"

    assert a.leave() is E.NONE
    d = TableMember(node, "d")
    d.join()
    _settle(b, c, d)
    assert _read_once((b, c, d)) == ALL
    b.leave()
    _settle(c, d)
    assert _read_once((c, d)) == ALL

    e, f = (ClassicTableMember(node, name, is_cooperative=is_cooperative) for name in "ef")
    e.act()
    _settle(c, d, e)
    assert _read_once((c, d, e)) == ALL
    c.leave()
    f.act()
    _settle(d, e, f)
    assert _kind(node) == "consumer"
    d.leave()
    assert _kind(node) == "classic", "the last member that speaks the consumer protocol has left"
    _settle(e, f)
    assert _read_once((e, f)) == ALL
    (described,) = node.send(DescribeGroupsRequest(groups=("g",)), 5).response.groups
    assert (described.group_state, len(described.members)) == ("Stable", 2)


def test_offsets_stay_and_each_kind_commits_in_its_own_way(node: GroupPath) -> None:
    """ "the member epoch ... is the generation id" of members with the classic protocol."""
    a, b = _classic_group(node)
    node.commit("g", "orders", 5, generation_id=a.generation, member_id=a.member_id)
    c = TableMember(node, "c")
    c.join()

    def code(generation_id: int, member_id: str, version: int) -> ErrorCode:
        answer = node.commit("g", "orders", 7, generation_id=generation_id, member_id=member_id, version=version)
        return ErrorCode(answer.response.topics[0].partitions[0].error_code)

    assert node.committed("g", "orders") == 5
    assert code(a.generation, a.member_id, 8) is E.NONE, "classic clients may be older than the epochs"
    _settle(a, b, c)
    assert code(a.generation, a.member_id, 9) is E.NONE
    assert code(a.generation - 1, a.member_id, 9) is E.ILLEGAL_GENERATION
    assert code(c.epoch, "c", 9) is E.NONE
    assert code(c.epoch - 1, "c", 9) is E.STALE_MEMBER_EPOCH
    assert code(-1, "", 9) is E.UNKNOWN_MEMBER_ID
    c.leave()
    assert code(a.generation, a.member_id, 9) is E.NONE, "it has not joined again, and is in the group"
    _settle(a, b)
    assert node.committed("g", "orders") == 7


def test_a_member_that_is_behind_keeps_what_it_has_read_when_the_group_is_converted_back(node: GroupPath) -> None:
    """Unlike in Kafka: there only members in the last epoch have to join again, and others lose their partitions."""
    c, d = TableMember(node, "c"), ClassicTableMember(node, "d")
    c.join()
    d.act()
    _settle(c, d)
    e = TableMember(node, "e")
    e.join()
    e.leave()
    c.leave()
    assert (_kind(node), describe(node).error_code) == ("classic", E.GROUP_ID_NOT_FOUND)
    read = node.commit("g", "orders", 7, generation_id=d.generation, member_id=d.member_id)
    assert read.response.topics[0].partitions[0].error_code == E.NONE
    assert d.beat() is E.REBALANCE_IN_PROGRESS
    behind = d.generation
    _settle(d)
    assert _read_once((d,)) == ALL
    assert d.generation > behind
    d.generation = behind
    assert d.beat() is E.ILLEGAL_GENERATION, "once it has joined, it is as in any classic group"


@pytest.mark.parametrize(
    ("policy", "upgrades", "downgrades"),
    [("bidirectional", True, True), ("upgrade", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_the_policy(policy: str, upgrades: bool, downgrades: bool) -> None:
    """group.consumer.migration.policy."""
    node = _node(group_consumer_migration_policy=policy)
    a, _ = _classic_group(node)
    code = TableMember(node, "c").join()
    assert (code, _kind(node)) == ((E.NONE, "consumer") if upgrades else (E.GROUP_ID_NOT_FOUND, "classic"))
    assert a.beat() is (E.REBALANCE_IN_PROGRESS if upgrades else E.NONE)

    other = _node(group_consumer_migration_policy=policy)
    c, d = TableMember(other, "c"), ClassicTableMember(other, "d")
    c.join()
    d.act()
    _settle(c, d)
    assert _read_once((c, d)) == ALL
    c.leave()
    assert _kind(other) == ("classic" if downgrades else "consumer")
    _settle(d)
    assert _read_once((d,)) == ALL


class TestGroupsThatStay:
    def test_a_group_of_another_protocol_type(self, node: GroupPath) -> None:
        member_id = node.join("g").response.member_id
        node.join("g", member_id)  # its metadata is b"topics"
        assert TableMember(node, "c").join() is E.GROUP_ID_NOT_FOUND

    def test_a_group_that_is_too_large(self) -> None:
        node = _node(group_consumer_max_size="1")
        _classic_group(node)
        assert TableMember(node, "c").join() is E.GROUP_MAX_SIZE_REACHED
        assert _kind(node) == "classic"

    def test_a_group_whose_assignor_tells_more_than_partitions(self, node: GroupPath) -> None:
        a = ClassicTableMember(node, "a", says_beside=b"own")
        a.act()
        assert a.partitions() == ALL
        assert TableMember(node, "c").join() is E.UNSUPPORTED_VERSION
        assert a.beat() is E.NONE

    def test_only_one_that_joins_converts(self, node: GroupPath) -> None:
        a, _ = _classic_group(node)
        c = TableMember(node, "c")
        assert c.beat(epoch=3) is E.GROUP_ID_NOT_FOUND
        assert a.beat() is E.NONE


class TestClassicMembersInAConsumerGroup:
    def test_they_share_an_assignor(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d")
        c.join()
        d.act()
        assert ClassicTableMember(node, "e", is_cooperative=True).act() is E.INCONSISTENT_GROUP_PROTOCOL
        assert node.join("g", version=3).response.error_code == E.INCONSISTENT_GROUP_PROTOCOL, "metadata is no topics"

    def test_a_session_ends_after_the_time_that_the_member_has_said(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d", session_timeout_ms=10_000)
        c.join()
        d.act()
        _settle(c, d)
        node.clock.advance(9_999)
        assert d.beat() is E.NONE
        node.clock.advance(10_000)
        assert d.beat() is E.UNKNOWN_MEMBER_ID
        c.beat()
        assert c.partitions() == ALL

    def test_commits_keep_a_session_alive(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d", session_timeout_ms=10_000)
        c.join()
        d.act()
        _settle(c, d)
        for _ in range(3):
            node.clock.advance(9_000)
            node.commit("g", "orders", 1, generation_id=d.generation, member_id=d.member_id)
        assert d.beat() is E.NONE

    def test_one_that_does_not_join_again_in_time_is_out(self, node: GroupPath) -> None:
        d = ClassicTableMember(node, "d", session_timeout_ms=60_000, rebalance_timeout_ms=20_000)
        c = TableMember(node, "c")
        c.join()
        d.act()
        _settle(c, d)
        TableMember(node, "e").join()
        generation = d.generation
        for _ in range(2):
            d.generation = generation
            assert d.beat() is E.REBALANCE_IN_PROGRESS
            node.clock.advance(10_000)
        assert d.beat() is E.UNKNOWN_MEMBER_ID

    def test_one_that_does_not_ask_for_its_assignment_in_time_is_out(self, node: GroupPath) -> None:
        d = ClassicTableMember(node, "d", session_timeout_ms=60_000, rebalance_timeout_ms=20_000)
        TableMember(node, "c").join()
        d.act()
        assert node.send(d.join_request(), 9).response.error_code == E.NONE
        node.clock.advance(19_999)
        assert [member.member_type for member in describe(node).members] == [1, 0]
        node.clock.advance(1)
        assert [member.member_type for member in describe(node).members] == [1]

    def test_faults(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d")
        c.join()
        d.act()
        _settle(c, d)
        assert node.sync("g", "stranger", 1).response.error_code == E.UNKNOWN_MEMBER_ID
        assert node.sync("g", "c", c.epoch).response.error_code == E.UNKNOWN_MEMBER_ID, "it speaks the other protocol"
        assert node.sync("g", d.member_id, d.generation + 1).response.error_code == E.ILLEGAL_GENERATION
        assert node.join("g", "c", version=9).response.error_code in (
            E.UNKNOWN_MEMBER_ID,
            E.INCONSISTENT_GROUP_PROTOCOL,
        )
        modern = ConsumerGroupHeartbeatRequest(group_id="g", member_id=d.member_id, member_epoch=d.generation)
        assert node.send(modern, 1).response.error_code == E.UNKNOWN_MEMBER_ID
        leaving = LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id="c"),))
        assert node.send(leaving, 5).response.members[0].error_code == E.UNKNOWN_MEMBER_ID
        assert d.beat() is E.NONE

    def test_topics_that_come_are_noticed_by_heartbeats_of_either_kind(self) -> None:
        node = _node(group_consumer_migration_policy="disabled")
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d", topics=("orders", "later"))
        c.join()
        d.act()
        _settle(c, d)
        c.leave()
        _settle(d)
        node.create_topics("later", partitions=2)
        _settle(d)
        assert (d.partitions(), d.partitions("later")) == (ALL, {0, 1})
        node.submit(delete_topics(TopicReference(name="orders")))
        node.end_turn()
        _settle(d)
        assert d.reads == {("later", 0), ("later", 1)}


class TestStaticMembers:
    def test_a_process_with_the_other_protocol_takes_the_place_of_the_former_one(self, node: GroupPath) -> None:
        """ "static members ... are replaced": the same instance id, another protocol."""
        old = [ClassicTableMember(node, name, instance_id=name) for name in "ab"]
        for member in old:
            member.act()
        _settle(*old)
        a = TableMember(node, "a2", instance_id="a")
        assert a.join() is E.NONE
        assert {member.instance_id for member in describe(node).members} == {"a", "b"}
        assert old[0].beat() is E.FENCED_INSTANCE_ID
        _settle(a, old[1])
        assert _read_once((a, old[1])) == ALL
        b = TableMember(node, "b2", instance_id="b")
        assert b.join() is E.NONE
        _settle(a, b)
        assert _read_once((a, b)) == ALL

        for leaver in (a, b):
            assert leaver.leave(LEAVE_FOR_A_WHILE) is E.NONE
        again = [ClassicTableMember(node, name, instance_id=name) for name in "ab"]
        for member in again:
            member.act()
        assert _kind(node) == "classic", "the last place was taken by a member with the classic protocol"
        _settle(*again)
        assert _read_once(again) == ALL

    def test_an_administrator_removes_one_by_its_name(self, node: GroupPath) -> None:
        c, d = TableMember(node, "c", instance_id="i"), ClassicTableMember(node, "d")
        c.join()
        d.act()
        _settle(c, d)
        leaving = LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id="", group_instance_id="i"),))
        assert node.send(leaving, 5).response.members[0].error_code == E.NONE
        assert _kind(node) == "classic"
        _settle(d)
        assert _read_once((d,)) == ALL


class TestAnotherCoordinator:
    """The conversion is in the log, whole or not at all."""

    @pytest.mark.parametrize("is_cooperative", [False, True])
    def test_it_goes_on_behind_an_upgrade(self, is_cooperative: bool) -> None:
        files = SimulatedDisk(seed=2)
        node = _node(files)
        members = _classic_group(node, is_cooperative=is_cooperative)
        c = TableMember(node, "c")
        c.join()
        before = describe(node)
        again = _restart(files, *members, c)
        assert describe(again) == before
        _settle(*members, c)
        assert _read_once((*members, c)) == ALL

    @pytest.mark.parametrize("is_cooperative", [False, True])
    def test_it_goes_on_behind_a_downgrade(self, is_cooperative: bool) -> None:
        files = SimulatedDisk(seed=2)
        node = _node(files)
        c = TableMember(node, "c")
        c.join()
        members = [ClassicTableMember(node, name, is_cooperative=is_cooperative) for name in "ab"]
        for member in members:
            member.act()
        _settle(*members, c)
        c.leave()
        again = _restart(files, *members)
        assert _kind(again) == "classic"
        for member in members:
            assert member.beat() in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION), "a rebalance is due"
        _settle(*members)
        assert _read_once(members) == ALL

    def test_an_upgrade_that_is_not_written_leaves_a_classic_group(self) -> None:
        files = SimulatedDisk(seed=4)
        node = _node(files)
        members = _classic_group(node)
        c = TableMember(node, "c")
        files.fail_at(files.operations + 1)
        assert c.join() is E.NOT_COORDINATOR
        assert _kind(node) == "classic"
        _settle(*members)
        assert _read_once(members) == ALL
        assert c.join() is E.NONE
        _settle(*members, c)
        assert _read_once((*members, c)) == ALL

    def test_a_downgrade_that_is_not_written_leaves_a_consumer_group(self) -> None:
        files = SimulatedDisk(seed=4)
        node = _node(files)
        c, d = TableMember(node, "c"), ClassicTableMember(node, "d")
        c.join()
        d.act()
        _settle(c, d)
        files.fail_at(files.operations + 1)
        assert c.leave() is E.NOT_COORDINATOR
        assert _kind(node) == "consumer"
        assert d.beat() is E.NONE
        assert c.leave() is E.NONE
        _settle(d)
        assert (_kind(node), _read_once((d,))) == ("classic", ALL)


def _restart(files: SimulatedDisk, *members: TableMember | ClassicTableMember) -> GroupPath:
    files.power_cut()
    files.reboot()
    node = _node(files, start=2)
    for member in members:
        member.node = node
    return node


def test_a_conversion_is_one_batch(node: GroupPath) -> None:
    """So a log that is cut has the whole conversion or nothing of it, however large the group is."""
    (a,) = _classic_group(node, 1)
    members = node.coordinators.host_of("g").machine._memberships["g"].group.members
    for protocol in members[a.member_id].protocols:
        object.__setattr__(protocol, "metadata", protocol.metadata + bytes(600_000))
    before = _batches(node)
    assert TableMember(node, "c").join() is E.NONE
    assert _batches(node) == before + 1
    for protocol in members[a.member_id].protocols:
        assert len(protocol.metadata) > 600_000


def test_a_group_that_takes_more_than_a_batch_is_not_converted(node: GroupPath) -> None:
    (a,) = _classic_group(node, 1)
    members = node.coordinators.host_of("g").machine._memberships["g"].group.members
    for protocol in members[a.member_id].protocols:
        object.__setattr__(protocol, "metadata", protocol.metadata + bytes(1_000_000))
    assert TableMember(node, "c").join() is E.GROUP_MAX_SIZE_REACHED
    assert a.beat() is E.NONE


def _names(prefix: str) -> tuple[str, ...]:
    """240 kB of names of topics that do not exist."""
    return tuple(f"{prefix}-{number:05d}-".ljust(100, "x") for number in range(2_400))


def test_the_records_of_the_converting_heartbeat_count_for_the_size_of_the_batch(node: GroupPath) -> None:
    """The heartbeat is refused with a reason, and no member has changed; a member that brings less is admitted."""
    (a,) = _classic_group(node, 1)
    machine = node.coordinators.host_of("g").machine
    for protocol in machine._memberships["g"].group.members[a.member_id].protocols:
        object.__setattr__(protocol, "metadata", protocol.metadata + bytes(850_000))
    generation = a.generation
    for _ in range(2):
        assert TableMember(node, "c", topics=("orders", *_names("c"))).join() is E.GROUP_MAX_SIZE_REACHED
        assert a.beat() is E.NONE
    assert (_kind(node), a.generation) == ("classic", generation)
    assert machine._consumers._sessions.next_deadline_ms is None, "no session was begun for a member that is not there"
    assert GroupEventKind.CONVERTED not in {event.kind for event in machine._histories["g"].events}
    assert TableMember(node, "d").join() is E.NONE
    assert _kind(node) == "consumer"


def test_the_records_of_the_last_member_count_for_the_size_of_the_batch_back(node: GroupPath) -> None:
    c = TableMember(node, "c", instance_id="i")
    c.join()
    others = [ClassicTableMember(node, name, topics=("orders", *_names(name))) for name in "de"]
    for other in others:
        other.act()
    _settle(c, *others)
    c.leave(LEAVE_FOR_A_WHILE)
    again = ClassicTableMember(node, "f", topics=("orders", *_names("f")), instance_id="i")
    again.act()
    assert _kind(node) == "consumer", "what it brings, twice, and the whole classic group take more than a batch"
    _settle(again, *others)
    assert _read_once((again, *others)) == ALL


def _batches(node: GroupPath) -> int:
    partition = node.coordinators.host_of("g").partition
    data = partition.read(ReadLimits(0, 1 << 24)).records
    return sum(1 for _ in iter_batches(data))


def test_members_that_wait_are_sent_back_when_the_group_is_converted(node: GroupPath) -> None:
    a, b = _classic_group(node)
    a.join()  # it leads, so all join again
    assert a.joining is not None
    assert not a.joining.is_answered
    TableMember(node, "c").join()
    assert a.joining.is_answered
    assert a.joining.response.error_code == E.REBALANCE_IN_PROGRESS
    c = TableMember(node, "d")
    c.join()
    _settle(a, b, c)
    assert _read_once((a, b, c)) <= ALL


def test_the_history_tells_of_it(node: GroupPath) -> None:
    a, b = _classic_group(node)
    c = TableMember(node, "c")
    c.join()
    _settle(a, b, c)
    c.leave()
    insight = node.coordinators.host_of("g").insight("g")
    assert [event.reason.split(":")[0] for event in insight.events if event.kind == "converted"] == [
        "to a consumer group",
        "to a classic group",
    ]
