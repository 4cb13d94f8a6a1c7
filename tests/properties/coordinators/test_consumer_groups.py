"""Consumer groups (KIP-848) under random histories, and the assignors under random members."""

from random import Random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.coordinators.groups.consumer.assignment import NOTHING, Assignment
from tailrace.coordinators.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_uniform
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from testkit.coordinators.consumer_groups import LEAVE_FOR_A_WHILE, TableMember, describe
from testkit.coordinators.replayed_node import ReplayedNode

TOPICS = ("orders", "returns")
PARTITIONS = {"orders": 5, "returns": 2}
NAMES = ("a", "b", "c")
SILENCE_MS = 20_000

ACTIONS = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from(
        [
            "join",
            "beat",
            "beat",
            "beat",
            "mute",
            "slow",
            "slow",
            "release",
            "leave",
            "away",
            "subscribe",
            "match",
            "move",
            "silence",
            "old",
            "restart",
        ]
    ),
    st.sampled_from([("orders",), ("returns",), TOPICS]),
)


PARTS_OF_A_REVOCATION = [
    (name, action, TOPICS)
    for words in ("a join, b join, a slow, a release, b beat", "c join, a slow, a release, b beat, c beat, a release")
    for name, action in map(str.split, words.split(", "))
]


class _ConsumerGroupHistory(ReplayedNode):
    """A node, three clients that obey it, and what must hold after each step."""

    def __init__(self) -> None:
        super().__init__(PARTITIONS)
        self.members = {
            name: TableMember(self.node, name, instance_id="i" if name == "a" else None, topics=TOPICS)
            for name in NAMES
        }
        self.joined: set[str] = set()
        self.releasing: dict[str, set[tuple[TopicId, int]]] = {name: set() for name in NAMES}
        """The partitions that leave, and that a slow member has not released yet."""

    def act(self, name: str, action: str, topics: tuple[str, ...]) -> None:
        member = self.members[name]
        match action:
            case "silence":
                self.node.clock.advance(SILENCE_MS)
            case "restart":
                self._restart()
            case "join":
                if name not in self.joined:
                    self._settle(name, member.join())
            case _ if name not in self.joined:
                pass
            case "beat":
                self._settle(name, member.beat())
            case "mute":
                self._settle(name, member.beat(says_owned=False))
            case "slow":
                self._beat_slowly(name)
            case "release" if self.releasing[name]:
                topic_id, partition = min(self.releasing[name])
                member.owned.get(topic_id, set()).discard(partition)
                self._settle(name, member.beat())
            case "old":
                member.beat(epoch=max(member.epoch - 1, 1))
            case "subscribe":
                self._settle(name, member.subscribe(*topics))
            case "match":
                self._settle(name, member.subscribe_to_pattern("|".join(topics)))
            case "move":
                self._settle(name, member.move(topics[0]))
            case "leave" | "away":
                member.leave(LEAVE_FOR_A_WHILE if action == "away" and member.instance_id else -1)
                self.joined.discard(name)

    def _beat_slowly(self, name: str) -> None:
        """A heartbeat of a member that keeps the partitions that it is to give up."""
        member = self.members[name]
        before = {topic_id: set(partitions) for topic_id, partitions in member.owned.items()}
        self._settle(name, member.beat())
        for topic_id, partitions in before.items() if name in self.joined else ():
            gone = partitions - member.owned.get(topic_id, set())
            member.owned.setdefault(topic_id, set()).update(gone)
            self.releasing[name].update((topic_id, partition) for partition in gone)

    def _settle(self, name: str, code: ErrorCode) -> None:
        owned = self.members[name].owned
        self.releasing[name] = {each for each in self.releasing[name] if each[1] in owned.get(each[0], ())}
        if code is ErrorCode.NONE:
            self.joined.add(name)
        else:
            self.joined.discard(name)
            self.members[name].owned = {}

    def _restart(self) -> None:
        self.restart()
        for member in self.members.values():
            member.node = self.node

    def check(self) -> None:
        stored = self.committed().get("g")
        group = None if stored is None else stored.consumer
        held: set[tuple[bytes, int]] = set()
        for member in group.members.values() if group is not None else ():
            for assignment in (member.assigned, member.pending_revocation):
                assert not held & _pairs(assignment), "a partition is held once"
                held |= _pairs(assignment)
            owner = self.members[member.member_id]
            if member.member_id in self.joined:
                owned = {(topic_id, partition) for topic_id in owner.owned for partition in owner.owned[topic_id]}
                assert owned <= _pairs(member.held), "no lost partition is read"

    def converge(self) -> None:
        """No member leaves: the group comes to rest with every partition read once."""
        for name, places in self.releasing.items():
            for topic_id, partition in places:
                self.members[name].owned.get(topic_id, set()).discard(partition)
        for _ in range(12):
            for name in NAMES:
                if name not in self.joined:
                    self._settle(name, self.members[name].join())
                else:
                    self._settle(name, self.members[name].beat())
            self.node.clock.advance(5_000)
        assert self.joined == set(NAMES)
        assert describe(self.node).group_state == "Stable"
        wishes = [{*member.topics, *(member.regex or "").split("|")} for member in self.members.values()]
        wanted = set().union(*wishes)
        for topic in TOPICS:
            read = [partition for member in self.members.values() for partition in member.partitions(topic)]
            assert sorted(read) == (list(range(PARTITIONS[topic])) if topic in wanted else [])
        if all(wish - {""} == wishes[0] - {""} for wish in wishes):
            loads = [sum(map(len, member.owned.values())) for member in self.members.values()]
            assert max(loads) - min(loads) <= 1


@settings(max_examples=25, deadline=None)
@given(st.lists(ACTIONS, max_size=25), st.randoms(use_true_random=False))
@example([("b", "join", TOPICS), ("b", "move", TOPICS)], Random(0))
@example(PARTS_OF_A_REVOCATION, Random(0))
def test_no_history_gives_a_partition_to_two_and_every_group_comes_to_rest(
    actions: list[tuple[str, str, tuple[str, ...]]], luck: Random
) -> None:
    history = _ConsumerGroupHistory()
    for action in actions:
        history.act(*action)
        history.check()
    history.check_compacted(luck)
    # A static member that went for a while and a session that is nearly over must not spoil the end.
    history.converge()
    history.check()


def _pairs(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic_id, partition) for topic_id, partitions in assignment for partition in partitions}


TOPIC_IDS = [bytes([number]) * 16 for number in range(1, 5)]
COUNTS = st.dictionaries(st.sampled_from(TOPIC_IDS), st.integers(0, 7))
ASSIGNMENTS = st.dictionaries(st.sampled_from(TOPIC_IDS), st.frozensets(st.integers(0, 9))).map(Assignment.of)


@settings(deadline=None)
@given(ASSIGNMENTS, ASSIGNMENTS)
def test_an_assignment_is_a_set_of_partitions(a: Assignment, b: Assignment) -> None:
    assert _pairs(a | b) == _pairs(a) | _pairs(b)
    assert _pairs(a & b) == _pairs(a) & _pairs(b)
    assert _pairs(a - b) == _pairs(a) - _pairs(b)
    assert (a <= b) == (_pairs(a) <= _pairs(b))
    assert a.isdisjoint(b) == _pairs(a).isdisjoint(_pairs(b))
    assert (a == b) == (_pairs(a) == _pairs(b))
    assert (a - a) == NOTHING
    assert not NOTHING
    assert Assignment.union_of((a, b, a)) == a | b == b | a
    assert Assignment.read(a.stored()) == a == Assignment.read(a.answered().topic_partitions)


def _subscribers(draw: Any, *, alike: bool) -> list[Subscriber]:
    topic_sets = st.frozensets(st.sampled_from(TOPIC_IDS))
    common = draw(topic_sets)
    return [
        Subscriber(name, name, common if alike else draw(topic_sets), draw(ASSIGNMENTS))
        for name in draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1))
    ]


def _loads(result: dict[str, Assignment]) -> list[int]:
    return [len(_pairs(assignment)) for assignment in result.values()]


@settings(max_examples=150, deadline=None)
@given(st.data(), COUNTS, st.booleans(), st.sampled_from(sorted(ASSIGNORS)))
def test_an_assignor_gives_every_partition_to_one_subscriber(
    data: Any, counts: dict[bytes, int], alike: bool, name: str
) -> None:
    members = _subscribers(data.draw, alike=alike)
    result = ASSIGNORS[name](members, counts)
    given_out = [pair for assignment in result.values() for pair in _pairs(assignment)]
    wanted = {(t, p) for member in members for t in member.topic_ids if t in counts for p in range(counts[t])}
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == wanted
    assert all({topic_id for topic_id, _ in result[member.member_id]} <= member.topic_ids for member in members)


@settings(max_examples=150, deadline=None)
@given(st.data(), COUNTS, st.booleans())
def test_uniform_is_even_and_moves_nothing_that_is_even_already(
    data: Any, counts: dict[bytes, int], alike: bool
) -> None:
    members = _subscribers(data.draw, alike=alike)
    result = assign_uniform(members, counts)
    if alike:
        assert max(_loads(result)) - min(_loads(result)) <= 1
    subscribers = [Subscriber(m.member_id, m.order, m.topic_ids, result[m.member_id]) for m in members]
    assert assign_uniform(subscribers, counts) == result


@settings(max_examples=60, deadline=None)
@given(st.data(), COUNTS)
def test_uniform_moves_as_little_as_it_can_when_a_member_comes(data: Any, counts: dict[bytes, int]) -> None:
    members = _subscribers(data.draw, alike=True)
    before = assign_uniform(members, counts)
    subscribers = [Subscriber(m.member_id, m.order, m.topic_ids, before[m.member_id]) for m in members]
    newcomer = Subscriber("z", "z", members[0].topic_ids, NOTHING)
    after = assign_uniform([*subscribers, newcomer], counts)
    for member_id, assignment in before.items():
        assert after[member_id] <= assignment, "only the newcomer gets anything"
