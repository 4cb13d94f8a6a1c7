"""Groups whose members speak either protocol, under random histories: conversions, failing writes, new coordinators."""

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.model.errors import ErrorCode
from testkit.coordinators.classic_members import ClassicTableMember
from testkit.coordinators.consumer_groups import LEAVE_FOR_A_WHILE, TableMember
from testkit.coordinators.group_path import GroupPath
from testkit.coordinators.replayed_node import ReplayedNode

TOPICS = ("orders", "returns")
PARTITIONS = {"orders": 4, "returns": 1}
NAMES = ("a", "b", "c")
SILENCE_MS = 9_000

ACTIONS = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(
        [
            "modern",
            "classic",
            "act",
            "act",
            "act",
            "act",
            "leave",
            "stop",
            "away",
            "silence",
            "restart",
            "fail",
            "topic",
        ]
    ),
)


class _Client:
    """A process in one of three places: it speaks either protocol, is stopped and started with the other protocol."""

    def __init__(self, node: GroupPath, name: str, *, is_cooperative: bool) -> None:
        self.node, self.name = node, name
        self.instance_id = "i" if name == "a" else None
        self._is_cooperative = is_cooperative
        self._starts = 0
        self.member: TableMember | ClassicTableMember | None = None

    def start(self, *, is_classic: bool) -> None:
        self.stop()
        self._starts += 1
        name = f"{self.name}{self._starts}"
        self.member = (
            ClassicTableMember(
                self.node, name, topics=TOPICS, instance_id=self.instance_id, is_cooperative=self._is_cooperative
            )
            if is_classic
            else TableMember(self.node, name, topics=TOPICS, instance_id=self.instance_id)
        )
        self.act()

    def act(self) -> None:
        member = self.member
        if isinstance(member, ClassicTableMember):
            member.act()
        elif member is not None:
            code = member.beat() if member.epoch > 0 else member.join()
            if code not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
                member.epoch, member.owned = 0, {}

    def leave(self, epoch: int = -1) -> None:
        if isinstance(self.member, TableMember):
            self.member.leave(epoch)
        elif self.member is not None:
            self.member.leave()
        self.member = None

    def stop(self) -> None:
        """The process ends without a word."""
        self.member = None

    @property
    def member_id(self) -> str:
        return (
            self.member.member_id if isinstance(self.member, ClassicTableMember) else getattr(self.member, "name", "")
        )

    @property
    def reads(self) -> set[tuple[str, int]]:
        if self.member is None:
            return set()
        topics = [topic for topic in TOPICS if topic in self.node.controller.image.topics]
        return {(topic, partition) for topic in topics for partition in self.member.partitions(topic)}


class _MigrationHistory(ReplayedNode):
    """A node, three clients that obey it, and what must hold after each step."""

    def __init__(self, *, is_cooperative: bool) -> None:
        super().__init__({"orders": PARTITIONS["orders"]})
        self.clients = {name: _Client(self.node, name, is_cooperative=is_cooperative) for name in NAMES}

    def act(self, name: str, action: str) -> None:
        client = self.clients[name]
        match action:
            case "modern" | "classic":
                client.start(is_classic=action == "classic")
            case "act":
                client.act()
            case "leave":
                client.leave()
            case "stop":
                client.stop()
            case "away":
                client.leave(LEAVE_FOR_A_WHILE if client.instance_id is not None else -1)
            case "silence":
                self.node.clock.advance(SILENCE_MS)
            case "restart":
                self._restart()
            case "fail":
                self.files.fail_at(self.files.operations + 1)
                client.act()
                self.files.forget_faults()  # it has written nothing: no other write is to fail for it
            case "topic" if "returns" not in self.node.controller.image.topics:
                self.node.create_topics("returns", partitions=PARTITIONS["returns"])

    def _restart(self) -> None:
        self.restart()
        for client in self.clients.values():
            client.node = self.node
            if client.member is not None:
                client.member.node = self.node
            if isinstance(client.member, ClassicTableMember):
                # Its connection is gone, and the answer with it: it asks again.
                client.member.must_join |= client.member.joining is not None or client.member.syncing is not None
                client.member.joining = client.member.syncing = None

    def members(self) -> set[str]:
        """The members by the coordinator's state."""
        machine = self.node.coordinators.host_of("g").machine
        membership, stored = machine._memberships.get("g"), self.committed().get("g")
        assert membership is None or stored is None or stored.consumer is None or not stored.consumer.members
        if membership is not None:
            return set(membership.group.members)
        return set(stored.consumer.members) if stored is not None and stored.consumer is not None else set()

    def check(self) -> None:
        members, read = self.members(), set[tuple[str, int]]()
        for client in self.clients.values():
            if client.member_id in members:
                assert not read & client.reads, "no partition is read by two members"
                read |= client.reads

    def converge(self) -> None:
        """Nothing happens any more: the running clients share all partitions, in a group of the right kind."""
        running = [client for client in self.clients.values() if client.member is not None]
        for _ in range(40):
            for client in running:
                client.act()
                self.check()
            self.node.clock.advance(3_000)
        read = [partition for client in running for partition in client.reads]
        topics = [topic for topic in TOPICS if topic in self.node.controller.image.topics]
        everything = {(topic, number) for topic in topics for number in range(PARTITIONS[topic])}
        assert sorted(read) == (sorted(everything) if running else [])
        stored = self.committed().get("g")
        if running:
            is_consumer_group = any(isinstance(client.member, TableMember) for client in running)
            assert (stored is not None and stored.consumer is not None) == is_consumer_group


@settings(max_examples=40, deadline=None)
@given(st.lists(ACTIONS, max_size=30), st.booleans(), st.randoms(use_true_random=False))
@example([("b", "classic"), ("c", "classic"), ("a", "modern"), ("a", "leave")], True, Random(0))
@example([("b", "classic"), ("c", "modern"), ("c", "leave"), ("a", "modern"), ("b", "restart")], False, Random(0))
def test_no_conversion_gives_a_partition_to_two_and_every_group_comes_to_rest(
    actions: list[tuple[str, str]], is_cooperative: bool, luck: Random
) -> None:
    history = _MigrationHistory(is_cooperative=is_cooperative)
    for action in actions:
        history.act(*action)
        history.check()
    history.check_compacted(luck)
    history.converge()
