"""A world of members while an event changes it, for `scope`: the product's machines between two frozen worlds."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

from simulation.harness.breach import Breach
from simulation.members.laws import (
    FENCED,
    FENCES,
    TWO_READERS,
    check_commit,
    check_given_on,
    check_one_owner,
    check_start,
)
from simulation.members.parts import (
    ANSWERED,
    DECIDED,
    NAMES,
    PLACES,
    SENT,
    TOPICS,
    FrozenReader,
    GroupSize,
    HeartbeatFlight,
    Late,
    MemberWorld,
    ReleaseTask,
    StagedDecision,
)
from simulation.members.reader import SILENT, GroupReader
from simulation.members.requests import (
    CommitSent,
    EncodedLog,
    GroupRules,
    GroupView,
    HeartbeatAnswer,
    HeartbeatSent,
    view_of,
    with_records,
)
from tailrace.client.group.consumer_member import (
    ConsumerEffect,
    ConsumerEvent,
    ConsumerMembership,
    Partitions,
    Release,
    Released,
    SendConsumerHeartbeat,
    SendConsumerLeave,
)
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick

SESSION_MS: Final = 1_000
NOW_MS: Final = 1
"""Every event but a silence happens at this time: a heartbeat is due, and no session has ended."""
_JOINING: Final = 0
RULES: Final = GroupRules(TOPICS)
_TIMES: Final = frozenset(("_interval_ms", "_not_before_ms", "_next_heartbeat_ms", "_heard_at_ms"))
_FIELDS: Final = tuple(field.name for field in fields(ConsumerMembership) if field.name not in _TIMES)
_frozen: Final[Callable[[ConsumerMembership], tuple[Any, ...]]] = attrgetter(*_FIELDS)


def new_reader() -> FrozenReader:
    """A member outside of its group."""
    return FrozenReader(_frozen(ConsumerMembership(session_timeout_ms=SESSION_MS, retry_backoff_ms=0, is_static=False)))


@dataclass(slots=True)
class ReaderDraft:
    """A member, its requests under way, and its releases."""

    reader: GroupReader
    heartbeat: HeartbeatFlight | None
    releases: list[ReleaseTask]
    is_removed: bool

    @classmethod
    def of(cls, name: str, frozen: FrozenReader) -> "ReaderDraft":
        reader = GroupReader(
            name,
            ConsumerMembership(**dict(zip(_FIELDS, frozen.machine, strict=True))),
            frozen.reading,
            frozen.leaving,
            dict(frozen.positions),
            frozen.target,
            frozen.known_epoch,
            frozen.is_awaiting,
        )
        return cls(reader, frozen.heartbeat, list(frozen.releases), frozen.is_removed)

    def frozen(self) -> FrozenReader:
        reader = self.reader
        return FrozenReader(
            _frozen(reader.machine),
            reader.reading,
            reader.leaving,
            tuple(sorted(reader.positions.items())),
            reader.target,
            reader.known_epoch,
            reader.is_awaiting,
            self.heartbeat,
            tuple(sorted(self.releases, key=lambda task: sorted(task.partitions))),
            self.is_removed,
        )


class ReaderDrafts:
    """The members of a world. A member that no event concerns stays frozen."""

    def __init__(self, frozen: tuple[FrozenReader, ...]) -> None:
        self._frozen = frozen
        self._drafts: dict[int, ReaderDraft] = {}

    def __getitem__(self, who: int) -> ReaderDraft:
        draft = self._drafts.get(who)
        if draft is None:
            draft = self._drafts[who] = ReaderDraft.of(NAMES[who], self._frozen[who])
        return draft

    def __iter__(self) -> Iterator[ReaderDraft]:
        return (self[who] for who in range(len(NAMES)))

    def reading(self) -> tuple[Partitions, ...]:
        """The partitions that each member reads."""
        return tuple(
            self._drafts[who].reader.reading if who in self._drafts else frozen.reading
            for who, frozen in enumerate(self._frozen)
        )

    def frozen(self) -> tuple[FrozenReader, ...]:
        return tuple(
            self._drafts[who].frozen() if who in self._drafts else frozen for who, frozen in enumerate(self._frozen)
        )


class WorldDraft:
    """A world that an event changes."""

    def __init__(self, world: MemberWorld, sometimes: set[str], size: GroupSize) -> None:
        self.budget = world.budget
        self.readers = ReaderDrafts(world.readers)
        self.log = world.log
        self.staged = list(world.staged)
        self.late, self.overtaken = set(world.late), set(world.overtaken)
        self.done = dict(zip(PLACES, world.done, strict=True))
        self.promised = dict(zip(PLACES, world.promised, strict=True))
        self.is_disordered = world.is_disordered
        self._sometimes = sometimes
        self._size = size

    def frozen(self) -> MemberWorld:
        return MemberWorld(
            self.budget,
            self.readers.frozen(),
            self.log,
            tuple(self.staged),
            frozenset(self.late),
            frozenset(self.overtaken),
            tuple(self.done[place] for place in PLACES),
            tuple(self.promised[place] for place in PLACES),
            self.is_disordered,
        )

    # members

    def step(self, who: int, event: ConsumerEvent, now_ms: int = NOW_MS) -> None:
        """Pass an event to a member, and carry out the effects."""
        self._carry_out(who, self.readers[who].reader.step(event, now_ms))

    def _carry_out(self, who: int, effects: Iterable[ConsumerEffect]) -> None:
        draft = self.readers[who]
        reader = draft.reader
        for effect in effects:
            match effect:
                case SendConsumerHeartbeat(epoch, owned, is_full, is_withdrawn):
                    named = None if owned is None else tuple(sorted(owned))
                    sent = HeartbeatSent(reader.name, epoch, named, is_full, is_withdrawn)
                    draft.heartbeat = HeartbeatFlight(sent)
                case SendConsumerLeave(epoch):
                    self.late.add(HeartbeatSent(reader.name, epoch))
                case Release(partitions):
                    parts = map(frozenset, zip(partitions)) if self._size.is_apart else (partitions,)
                    draft.releases += map(ReleaseTask, parts)
        self._end_releases(who)
        view = view_of(self.log)
        for place in reader.without_position:
            start = view.offsets.get(place, 0)
            check_start(place, start, self.promised, self.done[place])
            if start < self.done[place]:
                self._sometimes.add("a record comes again")
            reader.positions[place] = start

    def _end_releases(self, who: int) -> None:
        """Cancel the releases of what was lost; their commits may still arrive."""
        draft = self.readers[who]
        for task in [task for task in draft.releases if not task.partitions <= draft.reader.leaving]:
            draft.releases.remove(task)
            self._sometimes.add("a release is cancelled")
            self._let_go(who, task.partitions)
            if task.stage == SENT and task.commit is not None:
                self.late.add(task.commit)

    def _let_go(self, who: int, partitions: Partitions | None) -> None:
        """The member does not wait for this answer any more."""
        self.staged = [
            staged._replace(who=-1) if (staged.who, staged.partitions) == (who, partitions) else staged
            for staged in self.staged
        ]

    def process(self, who: int, partitions: Partitions) -> None:
        """Process the next record of this partition."""
        (place,) = partitions
        positions = self.readers[who].reader.positions
        positions[place] += 1
        self.done[place] = max(self.done[place], positions[place])

    def answer(self, who: int) -> None:
        """The answer to its heartbeat reaches the member."""
        draft = self.readers[who]
        flight = draft.heartbeat
        assert flight is not None
        answer = flight.answer
        assert answer is not None
        draft.heartbeat = None
        if answer.code in FENCES:
            self._sometimes.add(f"a heartbeat is refused: {answer.code.name}")
        effects = draft.reader.answer(answer.code, answer.epoch, answer.assigned, 0, NOW_MS)
        self._carry_out(who, effects)

    def give_up(self, who: int) -> None:
        """The member waits for the answer no more. Its request may still come."""
        draft = self.readers[who]
        flight = draft.heartbeat
        assert flight is not None
        draft.heartbeat = None
        self._let_go(who, None)
        if flight.stage == SENT:
            self.late.add(flight.sent)
        else:
            self._sometimes.add("an answer is lost")
        self._carry_out(who, draft.reader.answer(ErrorCode.REQUEST_TIMED_OUT, 0, None, 0, NOW_MS))

    def fall_silent(self, who: int) -> None:
        """The member has heard nothing for a session timeout."""
        self.step(who, Tick(), SESSION_MS)
        reader = self.readers[who].reader
        if reader.reading:
            raise Breach(SILENT, reader.told)

    # releases

    def task(self, who: int, partitions: Partitions) -> ReleaseTask:
        """The release of these partitions."""
        return next(task for task in self.readers[who].releases if task.partitions == partitions)

    def _put(self, who: int, task: ReleaseTask) -> None:
        releases = self.readers[who].releases
        releases[releases.index(self.task(who, task.partitions))] = task

    def commit(self, who: int, partitions: Partitions) -> None:
        """Commit the positions: the handlers of the partitions have ended."""
        reader = self.readers[who].reader
        offsets = tuple((place, reader.positions[place]) for place in sorted(partitions))
        sent = CommitSent(reader.name, reader.machine.member_epoch, offsets)
        self._put(who, ReleaseTask(partitions, SENT, sent))

    def give_up_commit(self, who: int, partitions: Partitions) -> None:
        """The member waits for the answer to its commit no more, and commits again."""
        task = self.task(who, partitions)
        self._let_go(who, partitions)
        if task.stage == SENT and task.commit is not None:
            self.late.add(task.commit)
        self._put(who, ReleaseTask(partitions))

    def answer_commit(self, who: int, partitions: Partitions) -> None:
        """The answer reaches the member: it commits again, or the release has ended."""
        task, draft = self.task(who, partitions), self.readers[who]
        assert task.commit is not None
        if task.answer in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.NOT_COORDINATOR):
            self._sometimes.add(f"a commit is sent again: {ErrorCode(task.answer).name}")
            self._put(who, ReleaseTask(partitions))
            return
        if task.answer == ErrorCode.NONE:
            for place, offset in task.commit.offsets:
                self.promised[place] = max(self.promised[place], offset)
        else:
            self._sometimes.add(f"a commit is refused: {ErrorCode(task.answer).name}")
        draft.releases.remove(task)
        self.step(who, Released(partitions))

    # the coordinator

    @property
    def latest(self) -> EncodedLog:
        """The log with what is appended."""
        log = self.log
        for staged in self.staged:
            log = with_records(log, staged.records)
        return log

    def decide_heartbeat(self, who: int) -> None:
        """The coordinator has the member's heartbeat."""
        draft = self.readers[who]
        flight = draft.heartbeat
        assert flight is not None
        sent = flight.sent
        answer, records = RULES.heartbeat(self.latest, sent)
        self._look_at_refusal(who, answer.code)
        if sent.epoch == _JOINING and answer.code is ErrorCode.NONE:
            draft.is_removed = False
        former = {late for late in self.late if isinstance(late, HeartbeatSent) and late.member == sent.member}
        former = {late for late in former if late.epoch >= _JOINING}
        self.late -= former
        if self._size.is_disordered:
            self.overtaken |= former
        draft.heartbeat = flight._replace(stage=DECIDED)
        self._append(StagedDecision(records, who, answer=answer), sent)

    def decide_commit(self, who: int, partitions: Partitions) -> None:
        """The coordinator has the commit of this release."""
        task = self.task(who, partitions)
        assert task.commit is not None
        self.late -= {late for late in self.late if isinstance(late, CommitSent) and late.member == task.commit.member}
        code, records = self._decide_commit(task.commit)
        if code is not ErrorCode.STALE_MEMBER_EPOCH:  # the answer with the member's epoch is on its way
            self._look_at_refusal(who, code)
        self._put(who, task._replace(stage=DECIDED))
        self._append(StagedDecision(records, who, partitions, code=code))

    def decide_late(self, late: Late) -> None:
        """The coordinator has a request whose sender waits for no answer."""
        is_overtaken = late in self.overtaken
        self.late.discard(late)
        self.overtaken.discard(late)
        who = NAMES.index(late.member)
        if isinstance(late, CommitSent):
            code, records = self._decide_commit(late)
            self._sometimes.add("a commit comes late" if code is ErrorCode.NONE else "a late commit is refused")
            self._append(StagedDecision(records))
            return
        _, records = RULES.heartbeat(self.latest, late)
        if records and late.epoch >= _JOINING:
            self.is_disordered = self.is_disordered or is_overtaken
            self._sometimes.add("a heartbeat is overtaken" if is_overtaken else "a heartbeat comes late")
        before = late.member in view_of(self.latest).members
        self._append(StagedDecision(records), late)
        if before and late.member not in view_of(self.latest).members:
            self.readers[who].is_removed = True

    def _decide_commit(self, sent: CommitSent) -> tuple[ErrorCode, EncodedLog]:
        code, records = RULES.commit(self.latest, sent)
        if code is ErrorCode.NONE:
            check_commit(view_of(self.latest), sent)
        return code, records

    def _look_at_refusal(self, who: int, code: ErrorCode) -> None:
        draft = self.readers[who]
        if code in FENCES and not draft.is_removed and not self.is_disordered:
            raise Breach(FENCED, f"{draft.reader.told}: {code.name}")

    def expire(self, who: int) -> None:
        """The member's session ends at the coordinator."""
        self._sometimes.add("a session ends")
        records = RULES.removal(self.latest, NAMES[who])
        self.readers[who].is_removed = True
        self._append(StagedDecision(records), removed=(NAMES[who],))

    def _append(self, staged: StagedDecision, word: HeartbeatSent | None = None, removed: tuple[str, ...] = ()) -> None:
        before = view_of(self.latest)
        self.staged.append(staged)
        after = view_of(self.latest)
        check_one_owner(after)
        check_given_on(before, after, word, removed)
        # An answer without records waits for the records before.
        if not self._size.is_staged or (not staged.records and len(self.staged) == 1):
            self.replicate()

    def replicate(self) -> None:
        """The oldest records are committed, and answered."""
        staged = self.staged.pop(0)
        self.log = with_records(self.log, staged.records)
        self._reply(staged, staged.answer, staged.code)
        while self.staged and not self.staged[0].records:
            self.replicate()

    def fail_over(self) -> None:
        """Another broker coordinates the group, from the replicated records."""
        self._sometimes.add("records are lost with the coordinator" if self.staged else "a coordinator loses nothing")
        lost, self.staged = self.staged, []
        for staged in lost:
            self._reply(staged, HeartbeatAnswer(ErrorCode.NOT_COORDINATOR), ErrorCode.NOT_COORDINATOR)

    def _reply(self, staged: StagedDecision, answer: HeartbeatAnswer | None, code: int) -> None:
        if staged.who < 0:
            return
        if staged.partitions is None:
            flight = self.readers[staged.who].heartbeat
            assert flight is not None
            self.readers[staged.who].heartbeat = flight._replace(stage=ANSWERED, answer=answer)
        else:
            task = self.task(staged.who, staged.partitions)
            self._put(staged.who, task._replace(stage=ANSWERED, answer=int(code)))

    # laws

    def check(self) -> None:
        """Law 5 of `members.laws`."""
        view = view_of(self.latest)
        for who, reading in enumerate(self.readers.reading()):
            alien = reading - view.holds.get(NAMES[who], frozenset())
            if alien:
                self._check_fenced(self.readers[who].reader, alien, view)

    def _check_fenced(self, reader: GroupReader, alien: Partitions, view: GroupView) -> None:
        """The next words of a member that reads what is not its own are refused."""
        self._sometimes.add("a member reads and does not know that it is fenced")
        epoch = reader.machine.member_epoch
        word = HeartbeatSent(reader.name, epoch, tuple(sorted(reader.machine.owned)))
        commit = CommitSent(reader.name, epoch, tuple((place, 0) for place in sorted(alien)))
        codes = (RULES.heartbeat(self.latest, word).answer.code, RULES.commit(self.latest, commit).code)
        if not FENCES.issuperset(codes):
            told = f"{reader.told}, of which {sorted(alien)} is not its own in {view.holds}"
            raise Breach(TWO_READERS, f"{told}, and its words are answered with {[code.name for code in codes]}")
