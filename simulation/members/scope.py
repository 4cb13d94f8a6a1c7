"""A group of two members with two partitions as a small world, for `small_scope`.

The members are the product's, and so are the coordinator's decisions and the bytes of its records. A heartbeat is due
at any moment; a request arrives at any moment, late, or never; a session ends at any moment, at the coordinator or at a
member. Records are replicated apart from the decision where another coordinator takes over.

A member processes records of the partitions that it reads, also while a partition is released, and commits at the end
of the release. The laws are in `members.laws` and `members.reader`.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from simulation.harness.breach import Breach
from simulation.harness.small_scope import Fingerprints
from simulation.members.draft import WorldDraft, new_reader
from simulation.members.laws import SETTLES
from simulation.members.parts import (
    ANSWERED,
    NAMES,
    PLACES,
    RUNNING,
    SENT,
    GroupSize,
    MemberAction,
    MemberBudget,
    MemberWorld,
)
from simulation.members.reader import IN_GROUP
from simulation.members.requests import view_of
from tailrace.client.group.consumer_member import ConsumerEvent, ConsumerState, Partitions
from tailrace.client.group.membership import Leave, Polled, PollOverdue
from tailrace.coordinators.groups.consumer.group import ConsumerGroupState
from tailrace.model.machines import Tick

_MOST_ROUNDS = 16
"""Rounds in which every member polls and sends a heartbeat, until the group is at rest."""
_FIRST_EXPIRY = 4
"""The round from which on the sessions of members that are gone end."""

_SPENT: Mapping[str, str] = {
    "give up": "silent_answers",
    "give up commit": "lost_commits",
    "expire": "expiries",
    "fail over": "failovers",
    "close": "closes",
    "poll overdue": "overdue_polls",
    "silence": "silences",
}
"""Kind of event -> the field of the budget that has so many of these events."""
_OF_A_USER: Mapping[str, ConsumerEvent] = {
    "poll": Polled(),
    "tick": Tick(),
    "poll overdue": PollOverdue(),
    "close": Leave(),
}
_OF_A_RELEASE: Mapping[str, Callable[[WorldDraft, int, Partitions], None]] = {
    "process": WorldDraft.process,
    "commit": WorldDraft.commit,
    "deliver commit": WorldDraft.decide_commit,
    "answer commit": WorldDraft.answer_commit,
    "give up commit": WorldDraft.give_up_commit,
}
_OF_A_HEARTBEAT: Mapping[str, Callable[[WorldDraft, int], None]] = {
    "deliver": WorldDraft.decide_heartbeat,
    "answer": WorldDraft.answer,
    "give up": WorldDraft.give_up,
    "silence": WorldDraft.fall_silent,
    "expire": WorldDraft.expire,
}
_OF_THE_COORDINATOR: Mapping[str, Callable[[WorldDraft], None]] = {
    "replicate": WorldDraft.replicate,
    "fail over": WorldDraft.fail_over,
}


class MemberScope:
    """A `harness.small_scope.ScopeModel`."""

    def __init__(self, size: GroupSize) -> None:
        self.size = size
        self.sometimes: set[str] = set()
        self._fingerprints = Fingerprints(_plain)
        self._marked: tuple[MemberWorld | None, int] = (None, 0)
        """The last world whose fingerprint was made."""
        self._settling: set[int] = set()
        """Worlds between two rounds that are known to come to rest."""

    def start(self, budget: MemberBudget) -> MemberWorld:
        """Two members outside, or `a` in the group with all partitions."""
        world = MemberWorld(budget, tuple(new_reader() for _ in NAMES))
        if not self.size.is_a_there:
            return world
        draft = self._draft(world)
        for _ in range(3):
            self._round_of(draft, 0)
        assert draft.readers[0].reader.reading == frozenset(PLACES)
        return draft.frozen()

    def _draft(self, world: MemberWorld) -> WorldDraft:
        return WorldDraft(world, self.sometimes, self.size)

    def name(self, action: MemberAction) -> str:
        who = f" {NAMES[action.who]}" if action.who >= 0 else ""
        numbers = f" {sorted(place.partition for place in action.partitions)}" if action.partitions else ""
        return f"{action.kind}{who}{numbers}{'' if action.late is None else f' {action.late}'}"

    def fingerprint(self, world: MemberWorld) -> int:
        if world is not self._marked[0]:
            self._marked = (world, self._mark(world))
        return self._marked[1]

    def _mark(self, world: MemberWorld) -> int:
        return self._fingerprints.of(
            (
                world.budget,
                *world.readers,
                world.log,
                *world.staged,
                world.late,
                world.overtaken,
                world.done,
                world.promised,
                world.is_disordered,
            )
        )

    # events

    def actions(self, world: MemberWorld) -> Sequence[MemberAction]:
        budget, found = world.budget, list[MemberAction]()
        draft = self._draft(world)
        for who in range(len(NAMES)):
            found += self._actions_of(draft, who)
        for late in sorted(world.late | world.overtaken, key=repr):
            found.append(MemberAction("late", NAMES.index(late.member), late=late))
        if world.staged:
            found.append(MemberAction("replicate"))
        if budget.failovers:
            found.append(MemberAction("fail over"))
        return found

    def _actions_of(self, draft: WorldDraft, who: int) -> list[MemberAction]:
        budget, member = draft.budget, draft.readers[who]
        reader, flight, found = member.reader, member.heartbeat, list[MemberAction]()
        if reader.state in (ConsumerState.OUTSIDE, ConsumerState.JOINED):
            found.append(MemberAction("poll", who))
        if reader.state in IN_GROUP:
            found.append(MemberAction("tick", who))
            if budget.silences:
                found.append(MemberAction("silence", who))
        if reader.state is ConsumerState.JOINED and budget.overdue_polls:
            found.append(MemberAction("poll overdue", who))
        if reader.state is not ConsumerState.LEFT and budget.closes:
            found.append(MemberAction("close", who))
        if flight is not None:
            if flight.stage == SENT:
                found.append(MemberAction("deliver", who))
            elif flight.stage == ANSWERED:
                found.append(MemberAction("answer", who))
            if budget.silent_answers:
                found.append(MemberAction("give up", who))
        if budget.expiries and NAMES[who] in view_of(draft.latest).members:
            found.append(MemberAction("expire", who))
        return found + self._reading_of(draft, who)

    def _reading_of(self, draft: WorldDraft, who: int) -> list[MemberAction]:
        """The records and the releases of a member."""
        member, found = draft.readers[who], list[MemberAction]()
        for task in member.releases:
            kind = {RUNNING: "commit", SENT: "deliver commit", ANSWERED: "answer commit"}.get(task.stage)
            if kind is not None:
                found.append(MemberAction(kind, who, task.partitions))
            if draft.budget.lost_commits and task.stage != RUNNING:
                found.append(MemberAction("give up commit", who, task.partitions))
        committing = [task.partitions for task in member.releases if task.stage != RUNNING]
        for place, position in sorted(member.reader.positions.items()):
            if position < self.size.records and not any(place in partitions for partitions in committing):
                found.append(MemberAction("process", who, frozenset((place,))))
        return found

    def take(self, world: MemberWorld, action: MemberAction) -> MemberWorld:
        draft = self._draft(world)
        self._carry_out(draft, action)
        draft.check()
        after = draft.frozen()
        if not after.is_disordered and self.fingerprint(after) // 2 % self.size.settles_every == 0:
            self._settle(after)
        return after

    def _carry_out(self, draft: WorldDraft, action: MemberAction) -> None:
        kind, who, partitions, late = action
        if kind in _SPENT:
            name = _SPENT[kind]
            draft.budget = draft.budget._replace(**{name: getattr(draft.budget, name) - 1})
        if late is not None:
            draft.decide_late(late)
        elif kind in _OF_A_USER:
            draft.step(who, _OF_A_USER[kind])
        elif kind in _OF_A_RELEASE:
            _OF_A_RELEASE[kind](draft, who, partitions)
        elif kind in _OF_A_HEARTBEAT:
            _OF_A_HEARTBEAT[kind](draft, who)
        else:
            _OF_THE_COORDINATOR[kind](draft)

    # the end

    def _settle(self, world: MemberWorld) -> None:
        """Lead the world to its rest, without further faults. Heartbeats that were overtaken never come."""
        ways: list[int] = []
        for number in range(_MOST_ROUNDS):
            mark = self.fingerprint(world)
            if mark in self._settling:
                break
            ways.append(mark)
            draft = self._draft(world)
            self._round(draft, may_expire=number >= _FIRST_EXPIRY)
            after = draft.frozen()
            if after == world and self._is_at_rest(draft):
                break
            world = after
        else:
            raise Breach(SETTLES, "; ".join(draft.reader.told for draft in self._draft(world).readers))
        self._settling.update(ways)

    def _round(self, draft: WorldDraft, *, may_expire: bool) -> None:
        while draft.staged:
            draft.replicate()
        draft.overtaken.clear()
        for late in sorted(draft.late, key=repr):
            draft.decide_late(late)
        for who in range(len(NAMES)):
            self._round_of(draft, who)
        members = view_of(draft.latest).members
        for who, member in enumerate(draft.readers):
            if may_expire and member.reader.state is ConsumerState.LEFT and NAMES[who] in members:
                draft.expire(who)
        while draft.staged:
            draft.replicate()
        draft.check()

    @staticmethod
    def _round_of(draft: WorldDraft, who: int) -> None:
        """A poll, the ends of all releases, a heartbeat, and their answers."""
        member = draft.readers[who]
        if member.reader.state in (ConsumerState.OUTSIDE, ConsumerState.JOINED):
            draft.step(who, Polled())
        for task in tuple(member.releases):
            if task.stage == RUNNING:
                draft.commit(who, task.partitions)
            if draft.task(who, task.partitions).stage == SENT:
                draft.decide_commit(who, task.partitions)
            while draft.staged:
                draft.replicate()
            draft.answer_commit(who, task.partitions)
        draft.step(who, Tick())
        if member.heartbeat is not None and member.heartbeat.stage == SENT:
            draft.decide_heartbeat(who)
        while draft.staged:
            draft.replicate()
        if member.heartbeat is not None:
            draft.answer(who)

    @staticmethod
    def _is_at_rest(draft: WorldDraft) -> bool:
        readers = [member.reader for member in draft.readers if member.reader.state is not ConsumerState.LEFT]
        view = view_of(draft.latest)
        if {reader.name for reader in readers} != view.members:
            return False
        if not readers:
            return True
        group = view.group
        assert group is not None, "it has members"
        return (
            group.state is ConsumerGroupState.STABLE
            and all(reader.machine.member_epoch == group.epoch for reader in readers)
            and all(reader.reading == view.holds[reader.name] and not reader.leaving for reader in readers)
            and sorted(place for reader in readers for place in reader.reading) == sorted(PLACES)
        )


def _plain(part: object) -> object:
    """Sorts the sets in a part of a world."""
    if isinstance(part, Enum):
        return part.name
    if isinstance(part, tuple):
        return tuple(map(_plain, part))
    return sorted(map(repr, part)) if isinstance(part, frozenset) else part
