"""Small quorums for the exhaustive search: nodes, messages under way, and a budget of faults.

The possible events, in any order:

- a message under way arrives, or never does; any message may overtake any other, and a request may arrive twice as
  often as the budget says. Two equal messages count once.
- a disk does the oldest of what it owes its node, separate from everything else;
- a crash loses what the disk owes; the node is back at once;
- time passes for one node, until it stands for election, or until a leader without answers resigns;
- a leader is asked to write, or to remove a voter, itself or another; a node writes a snapshot of everything committed,
  and counts no replica as live then, so that a leader's log starts there.

Time passes in no other way: no request is given up for its age, and announcements are made once. A follower's pause
before it asks its leader again may end at any moment.

Messages that can change nothing any more are left out: an answer without a waiting node, and a request without a
waiting node, of an epoch that its destination has left.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from simulation.raft.bench import voter_set
from simulation.raft.scope.laws import PastEvents, View, learn
from simulation.raft.scope.node import CONFIG, EventOutcome, Facts, Happening, ScopeBench, ScopeNodes, split
from simulation.raft.scope.state import Names, Value, value_of
from simulation.raft.state import key_of
from tailrace.raft.rpc import (
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    EndEpochReply,
    FetchRecords,
    FetchSnapshot,
    Request,
    Response,
    Vote,
)
from tailrace.raft.voters import ReplicaKey

STALE, LIVE, ANSWER = range(3)
"""A request whose answer is ignored by now; a request whose answer is heeded; the answer."""


class QuorumMessage(NamedTuple):
    """A message on its way: sender, destination, the number of its content, and its kind."""

    source: int
    destination: int
    content: int
    kind: int


class Question(NamedTuple):
    """A request that has not been answered: receiver, request, sender, and whether the sender still waits."""

    holder: int
    slot: int
    source: int
    is_live: bool = True


class QuorumBudget(NamedTuple):
    """The numbers of events that may still happen."""

    writes: int = 0
    crashes: int = 0
    timeouts: int = 0
    snapshots: int = 0
    voter_changes: int = 0
    duplicates: int = 0


class QuorumWorld(NamedTuple):
    """The state of the whole world. Nodes, messages and past events are numbers of `RaftScope`."""

    nodes: tuple[int, ...]
    messages: frozenset[int]
    questions: frozenset[Question]
    budget: QuorumBudget
    known: int


class QuorumAction(NamedTuple):
    """Something that may happen to the node of this index."""

    node: int
    kind: str
    message: int = -1
    key: ReplicaKey | None = None


class RaftScope:
    """Worlds of so many voters with ids from 1 on: a `harness.small_scope.Model`."""

    def __init__(self, size: int = 3, *, instant_disk: bool = False, may_look: bool = False) -> None:
        """With an instant disk no disk has waiting work, and nothing is lost: there are far fewer worlds, so that the
        budget may be larger.

        Without `may_look`, fetch requests of a node that does not know the leader are lost: the node learns the leader
        from the leader's own messages.
        """
        self._ids = tuple(range(1, size + 1))
        others = permutations(self._ids[1:])
        # Node 1 leads when a search begins, and no other node is special.
        namings = [{1: 1, **dict(zip(self._ids[1:], order, strict=True))} for order in others]
        self.nodes = ScopeNodes(namings)
        self._instant_disk = instant_disk
        self._may_look = may_look
        self._messages: list[QuorumMessage] = []
        self._message_numbers: dict[QuorumMessage, int] = {}
        self._message_digests: list[int] = []
        self._known: list[PastEvents] = []
        self._known_numbers: dict[PastEvents, int] = {}
        self._known_digests: list[int] = []
        self._question_digests: dict[Question, int] = {}
        self._budget_digests: dict[QuorumBudget, int] = {}
        self._learned: dict[tuple[int, tuple[int, ...], int, int, int], int] = {}

    @property
    def sometimes(self) -> set[str]:
        return self.nodes.sometimes

    def start(self, budget: QuorumBudget) -> QuorumWorld:
        """Node 1 leads, and all nodes have its first records."""
        voters = voter_set(*self._ids)
        numbers = []
        for node_id in self._ids:
            bench = ScopeBench(key=key_of(node_id), voters=voters, config=CONFIG, instant_disk=self._instant_disk)
            numbers.append(self.nodes.number_of(bench))
        world = QuorumWorld(tuple(numbers), frozenset(), frozenset(), budget, self._number_known(PastEvents()))
        world = self._happened(world, 0, Happening("timeout"))
        while steps := self._free_actions(world):
            world = self.take(world, steps[0])
        return world

    # Possible events

    def actions(self, world: QuorumWorld) -> Sequence[QuorumAction]:
        return [*self._free_actions(world), *self._rationed_actions(world)]

    def _free_actions(self, world: QuorumWorld) -> list[QuorumAction]:
        found = []
        for index, number in enumerate(world.nodes):
            facts = self.nodes.facts[number]
            if facts.owes:
                found.append(QuorumAction(index, "disk"))
            if facts.retries:
                found.append(QuorumAction(index, "retry"))
        under_way = sorted(world.messages, key=self._message_digests.__getitem__)
        return found + [
            QuorumAction(self._messages[message].destination - 1, "deliver", message) for message in under_way
        ]

    def _rationed_actions(self, world: QuorumWorld) -> list[QuorumAction]:
        budget, found = world.budget, []
        for index, number in enumerate(world.nodes):
            facts = self.nodes.facts[number]
            if budget.crashes:
                found.append(QuorumAction(index, "crash"))
            if budget.timeouts and facts.strikes:
                found.append(QuorumAction(index, "timeout"))
            if budget.snapshots and facts.may_snapshot:
                found.append(QuorumAction(index, "snapshot"))
            if facts.view.is_leader and budget.writes:
                found.append(QuorumAction(index, "write"))
            if facts.view.is_leader and budget.voter_changes:
                found += [QuorumAction(index, "remove", key=key) for key in facts.view.voters.keys]
        if budget.duplicates:
            for number in sorted(world.messages, key=self._message_digests.__getitem__):
                if self._messages[number].kind != ANSWER:
                    found.append(QuorumAction(self._messages[number].destination - 1, "duplicate", number))
        return found

    def name(self, action: QuorumAction) -> str:
        node_id = action.node + 1
        if action.message < 0:
            return f"{action.kind} of {node_id}" + ("" if action.key is None else f": {action.key}")
        message = self._messages[action.message]
        what = ("late, ", "", "")[message.kind] + ("again, " if action.kind == "duplicate" else "")
        return f"{message.source} -> {message.destination}: {what}{self.nodes.contents[message.content]}"

    # Effects

    def take(self, world: QuorumWorld, action: QuorumAction) -> QuorumWorld:
        index, budget = action.node, world.budget
        match action.kind:
            case "deliver":
                return self._deliver(world, action.message, keeps_copy=False)
            case "duplicate":
                world = world._replace(budget=budget._replace(duplicates=budget.duplicates - 1))
                return self._deliver(world, action.message, keeps_copy=True)
            case "disk":
                end_offset = self.nodes.facts[world.nodes[index]].installing
                voters = self._known[world.known].voters_below(end_offset) if end_offset else None
                return self._happened(world, index, Happening("disk", detail=voters))
            case "retry":
                return self._happened(world, index, Happening("retry"))
            case "crash":
                budget = budget._replace(crashes=budget.crashes - 1)
            case "timeout":
                budget = budget._replace(timeouts=budget.timeouts - 1)
            case "snapshot":
                budget = budget._replace(snapshots=budget.snapshots - 1)
            case "remove":
                budget = budget._replace(voter_changes=budget.voter_changes - 1)
            case "write":
                after = budget._replace(writes=budget.writes - 1)
                return self._happened(world._replace(budget=after), index, Happening("write", content=budget.writes))
        return self._happened(world._replace(budget=budget), index, Happening(action.kind, detail=action.key))

    def _deliver(self, world: QuorumWorld, number: int, *, keeps_copy: bool) -> QuorumWorld:
        source, destination, content, kind = self._messages[number]
        messages = world.messages - {number}
        index = destination - 1
        if kind == ANSWER:
            return self._happened(world._replace(messages=messages), index, Happening("response", source, content))
        if keeps_copy:
            messages |= {self._number_message(QuorumMessage(source, destination, content, STALE))}
        taken = self.nodes.facts[world.nodes[index]].questions
        slot = next(free for free in range(len(taken) + 1) if free not in taken)
        questions = world.questions | {Question(destination, slot, source, kind == LIVE)}
        world = world._replace(messages=messages, questions=questions)
        return self._happened(world, index, Happening("request", slot, content))

    def _happened(self, world: QuorumWorld, index: int, happening: Happening) -> QuorumWorld:
        number = world.nodes[index]
        outcome = self.nodes.take(number, happening)
        nodes = (*world.nodes[:index], outcome.node, *world.nodes[index + 1 :])
        before, after = self.nodes.facts[number], self.nodes.facts[outcome.node]
        messages, questions = world.messages, world.questions
        if outcome.forgotten or outcome.answers or outcome.requests or happening.kind in ("crash", "request"):
            messages, questions = self._exchange(world, nodes, index + 1, happening, outcome)
            nodes, questions = self._without_idle_questions(nodes, questions)
        if (before.epoch, before.has_voted, before.may_lead) != (after.epoch, after.has_voted, after.may_lead):
            messages = frozenset(message for message in messages if not self._is_dead(self._messages[message], nodes))
        known = world.known
        if before.view_number != after.view_number or outcome.led_to:
            known = self._learn(world, nodes, index, None if happening.kind == "crash" else before, outcome.led_to)
        return QuorumWorld(nodes, messages, questions, world.budget, known)

    def _exchange(
        self, world: QuorumWorld, nodes: tuple[int, ...], node_id: int, happening: Happening, outcome: EventOutcome
    ) -> tuple[frozenset[int], frozenset[Question]]:
        """The messages and questions after a node has forgotten requests, answered, and sent new requests."""
        messages, questions = set(world.messages), set(world.questions)
        if happening.kind == "crash":
            questions = {asked for asked in questions if asked.holder != node_id}
        for other in outcome.forgotten:
            self._forget(messages, questions, node_id, other)
        for slot, content in outcome.answers:
            question = next(asked for asked in questions if asked.holder == node_id and asked.slot == slot)
            questions.remove(question)
            if question.is_live and not self._is_idle(content, nodes[question.source - 1]):
                messages.add(self._number_message(QuorumMessage(node_id, question.source, content, ANSWER)))
        is_looking = not self._may_look and self.nodes.facts[nodes[node_id - 1]].is_looking
        for destination, content, is_live in outcome.requests:
            if destination <= len(nodes) and not (is_looking and self._is_fetch(content)):
                message = QuorumMessage(node_id, destination, content, LIVE if is_live else STALE)
                messages.add(self._number_message(message))
        return frozenset(sent for sent in messages if not self._is_dead(self._messages[sent], nodes)), frozenset(
            questions
        )

    def _forget(self, messages: set[int], questions: set[Question], asker: int, other: int) -> None:
        """Let the sender ignore the answers of the other node to its earlier requests."""
        for number in list(messages):
            source, destination, content, kind = self._messages[number]
            if kind == LIVE and (source, destination) == (asker, other):
                messages.remove(number)
                messages.add(self._number_message(QuorumMessage(source, destination, content, STALE)))
            elif kind == ANSWER and (source, destination) == (other, asker):
                messages.remove(number)
        for question in [
            asked for asked in questions if (asked.holder, asked.source) == (other, asker) and asked.is_live
        ]:
            questions.remove(question)
            questions.add(question._replace(is_live=False))

    def _without_idle_questions(
        self, nodes: tuple[int, ...], questions: frozenset[Question]
    ) -> tuple[tuple[int, ...], frozenset[Question]]:
        """The questions without those whose answer is ignored by now: such questions have no effect."""
        for question in questions:
            if not question.is_live:
                index = question.holder - 1
                after = self.nodes.take(nodes[index], Happening("drop", question.slot)).node
                nodes = (*nodes[:index], after, *nodes[index + 1 :])
        return nodes, frozenset(asked for asked in questions if asked.is_live)

    def _is_fetch(self, content: int) -> bool:
        return isinstance(self.nodes.contents[content], FetchRecords)

    def _is_idle(self, content: int, node: int) -> bool:
        """Whether this answer tells its receiver nothing: it answers an announcement, and has no later epoch."""
        response = self.nodes.contents[content]
        if not isinstance(response, BeginEpochReply | EndEpochReply):
            return False
        return response.leader_epoch <= self.nodes.facts[node].epoch

    def _is_dead(self, message: QuorumMessage, nodes: tuple[int, ...]) -> bool:
        """Whether the request can change nothing: its answer is ignored, and its destination has no use for it any
        more."""
        if message.kind != STALE:
            return False
        facts = self.nodes.facts[nodes[message.destination - 1]]
        request = self.nodes.contents[message.content]
        epoch = _epoch_of(request)
        if epoch != facts.epoch:
            return epoch < facts.epoch
        match request:
            case Vote():
                return request.pre_vote or facts.has_voted
            case FetchRecords() | FetchSnapshot():
                return not facts.may_lead
            case _:
                return False

    def _learn(self, world: QuorumWorld, nodes: tuple[int, ...], index: int, before: Facts | None, led_to: int) -> int:
        facts = self.nodes.facts
        view_numbers = tuple(facts[node].view_number for node in nodes)
        key = (world.known, view_numbers, index, -1 if before is None else before.view_number, led_to)
        known = self._learned.get(key)
        if known is None:
            views = [facts[node].view for node in nodes]
            learned = learn(self._known[world.known], views, index, None if before is None else before.view, led_to)
            known = self._learned[key] = self._number_known(learned)
            self._note(learned, views)
        return known

    def _note(self, known: PastEvents, views: list[View]) -> None:
        """Note the states that a search should reach somewhere."""
        sometimes = self.nodes.sometimes
        writes = [offset for offset, entry in enumerate(known.committed) if isinstance(entry.value, str)]
        if len(known.leaders) > 1:
            sometimes.add("a second leader")
        if len(known.leaders) > 2:
            sometimes.add("a third leader")
        if writes:
            sometimes.add("a write is committed")
        if writes and known.committed[-1].epoch > known.committed[writes[0]].epoch:
            sometimes.add("a write survives its leader")
        if len(writes) > 1:
            sometimes.add("two writes are committed")
        stated = known.voters_below(len(known.committed))
        if stated is not None and len(stated) < len(views):
            sometimes.add("a change of voters is committed")
        if sum(view.is_leader for view in views) > 1:
            sometimes.add("two believe that they lead")

    # Identity

    def fingerprint(self, world: QuorumWorld) -> int:
        """Worlds that differ in the names of the nodes alone have the same fingerprint."""
        facts, messages, questions = self.nodes.facts, self._message_digests, self._question_digests
        total = self._known_digests[world.known] + self._digest_budget(world.budget)
        total += sum([facts[number].digest for number in world.nodes]) + sum(
            [messages[number] for number in world.messages]
        )
        total += sum([questions.get(question) or self._digest_question(question) for question in world.questions])
        return min(split(total, len(self.nodes.namings))) or 1

    def _digest_budget(self, budget: QuorumBudget) -> int:
        digest = self._budget_digests.get(budget)
        if digest is None:
            digest = self._budget_digests[budget] = self.nodes.digest(lambda _: tuple(budget))
        return digest

    def _digest_question(self, question: Question) -> int:
        digest = self.nodes.digest(lambda names: (names[question.holder], question.slot, names[question.source]))
        self._question_digests[question] = digest
        return digest

    def _number_message(self, message: QuorumMessage) -> int:
        number = self._message_numbers.get(message)
        if number is None:
            number = self._message_numbers[message] = len(self._messages)
            self._messages.append(message)
            source, destination, content, kind = message
            body = self.nodes.contents[content]
            digest = self.nodes.digest(
                lambda names: (names[source], names[destination], kind, value_of(body, names)),
            )
            self._message_digests.append(digest)
        return number

    def _number_known(self, known: PastEvents) -> int:
        number = self._known_numbers.get(known)
        if number is None:
            number = self._known_numbers[known] = len(self._known)
            self._known.append(known)
            self._known_digests.append(self.nodes.digest(lambda names: _value_of_known(known, names)))
        return number


def _value_of_known(known: PastEvents, names: Names) -> Value:
    leaders = [(epoch, names[node_id]) for epoch, node_id in known.leaders]
    return leaders, [(entry.epoch, value_of(entry.value, names)) for entry in known.committed], known.ends


def _epoch_of(request: Request | Response) -> int:
    match request:
        case Vote():
            return request.candidate_epoch
        case BeginEpoch() | EndEpoch() | FetchRecords() | FetchSnapshot():
            return request.leader_epoch
        case _:
            raise AssertionError(request)
