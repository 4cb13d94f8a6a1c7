"""Commits of one partition as a small world, for `small_scope`: ranges, plain commits, resets and deletions (KIP-X).

Two committers share the key hashes, half and half, and do their records in order. Their commits and the commits of a
member and of a tool arrive at any moment, late, or twice; the coordinator decides on its appended records, which are
replicated record by record, or are lost when another broker takes over. The new broker has the bytes of the log. The
decisions, and the encoding and decoding of records, are the product's code. Beside this code there is a model: a plain
set of (offset, half), and the history of each record, see `_check`.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from simulation.commits.world import NEVER, CommitBudget, CommitEntry, CommitSize, Committer, CommitWorld, Flight, Pairs
from simulation.harness.breach import Breach
from simulation.harness.small_scope import Fingerprints
from tailrace.coordinators.groups.commands import CommitOffsets, DeleteOffsets, OffsetToCommit, RangesToCommit
from tailrace.coordinators.groups.offset_commits import OffsetCommits
from tailrace.coordinators.groups.ranged_offsets import RangedOffsets
from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    OffsetCommitValue,
    OffsetRecord,
    decode_record,
    encode_record,
)
from tailrace.coordinators.groups.removals import GroupRemovals
from tailrace.coordinators.groups.store import GroupStore, LatestGroups
from tailrace.model.committed_progress import CommittedProgress, Rectangle
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.model.partitions import TopicPartition

GROUP: Final = "g"
PLACE: Final = TopicPartition("orders", 0)
TOPIC_ID: Final = TopicId(bytes(15) + b"\1")
HALF: Final = HASH_SPACE // 2
HASHES: Final = (0, HALF)
"""A hash of each half of the hashes."""


class CommitAction(NamedTuple):
    """A possible event, and what it concerns."""

    kind: str
    which: int = 0
    offset: int = 0


_EMPTY: Final = CommitEntry(None, "", frozenset(), frozenset(), 0, 0)


class CommitScope:
    """A `harness.small_scope.Model`."""

    def __init__(self, kind: CommitSize) -> None:
        self.kind = kind
        self.sometimes: set[str] = set()
        self._fingerprints = Fingerprints(_plain)

    def start(self, budget: CommitBudget) -> CommitWorld:
        """Two committers that have not looked yet."""
        committed = _EMPTY
        if self.kind.has_offset:
            value = OffsetCommitValue(offset=0, metadata="", commit_timestamp=0, topic_id=TOPIC_ID)
            record = OffsetRecord(group_id=GROUP, topic=PLACE.topic, partition=PLACE.partition, value=value)
            committed = _EMPTY._replace(value=encode_record(record))
        return CommitWorld(budget, committed, (), (Committer(), Committer()), (), frozenset())

    def _offsets(self) -> RangedOffsets:
        """Offsets with nothing decoded yet: each record is read from its bytes."""
        return RangedOffsets(max_rectangles=self.kind.max_rectangles)

    def name(self, action: CommitAction) -> str:
        return f"{action.kind} {action.which} at {action.offset}"

    def fingerprint(self, world: CommitWorld) -> int:
        parts: tuple[Hashable, ...] = (
            world.budget,
            world.committed,
            *world.staged,
            world.committers,
            *world.flights,
            world.done,
        )
        return self._fingerprints.of(parts)

    # Events

    def actions(self, world: CommitWorld) -> Sequence[CommitAction]:
        budget = world.budget
        found: list[CommitAction] = []
        for who, committer in enumerate(world.committers):
            if committer.fetches < budget.fetches:
                found.append(CommitAction("fetch", who))
            if committer.fetches and committer.position < self.kind.offsets:
                found.append(CommitAction("do", who, committer.position))
            if committer.position > committer.first and committer.commits < budget.commits:
                found.append(CommitAction("commit", who))
            if committer.state_epoch >= 0 and budget.cuts:
                found += (CommitAction("cut", who, offset) for offset in range(self.kind.offsets + 1))
        for index, flight in enumerate(world.flights):
            found.append(CommitAction("deliver", index))
            if budget.duplicates and flight.copies == 1:
                found.append(CommitAction("duplicate", index))
        offsets = range(self.kind.offsets + 1)
        if budget.plain_commits:
            found += (CommitAction("plain commit", 0, offset) for offset in offsets)
        if budget.resets:
            found += (CommitAction("reset", 0, offset) for offset in offsets)
        if budget.deletions:
            found.append(CommitAction("delete"))
        if world.staged:
            found.append(CommitAction("replicate"))
        if budget.failovers and world.staged:
            found.append(CommitAction("fail over"))
        return found

    def take(self, world: CommitWorld, action: CommitAction) -> CommitWorld:
        match action.kind:
            case "fetch":
                return self._fetch(world, action.which)
            case "do":
                return self._do(world, action.which)
            case "commit":
                return self._commit(world, action.which)
            case "deliver":
                return self._deliver(world, action.which)
            case "duplicate":
                flights = list(world.flights)
                flights[action.which] = flights[action.which]._replace(copies=2)
                return _spent(world, "duplicates")._replace(flights=tuple(flights))
            case "plain commit":
                return self._sent(_spent(world, "plain_commits"), Flight("member", offset=action.offset))
            case "reset":
                return self._sent(_spent(world, "resets"), Flight("reset", offset=action.offset))
            case "cut":
                epoch = world.committers[action.which].state_epoch
                return self._sent(_spent(world, "cuts"), Flight("cut", action.which, action.offset, epoch))
            case "delete":
                return self._sent(_spent(world, "deletions"), Flight("deletion"))
            case "replicate":
                return self._replicate(world)
            case _:
                self.sometimes.add("records are lost with the coordinator")
                return _spent(world, "failovers")._replace(staged=())

    def _fetch(self, world: CommitWorld, who: int) -> CommitWorld:
        """The committer starts over from its frontier, as the replicated records state it."""
        entry = world.committed
        record = _record(entry)
        before = world.committers[who]
        if record is None or record.value is None:
            after = Committer(fetches=before.fetches + 1, commits=before.commits)
        else:
            committed, state_epoch = self._offsets().progress(record.value)
            first = min(committed.frontier(HASHES[who]), self.kind.offsets)
            after = Committer(
                state_epoch, entry.resets, committed.stable_offset, first, first, before.fetches + 1, before.commits
            )
        return world._replace(committers=_changed(world.committers, who, after))

    @staticmethod
    def _do(world: CommitWorld, who: int) -> CommitWorld:
        committer = world.committers[who]
        return world._replace(
            committers=_changed(world.committers, who, committer._replace(position=committer.position + 1)),
            done=world.done | {(committer.position, who, committer.seen_reset)},
        )

    def _commit(self, world: CommitWorld, who: int) -> CommitWorld:
        committer = world.committers[who]
        pairs = frozenset((offset, who) for offset in range(committer.first, committer.position))
        flight = Flight("ranges", who, committer.stable_offset, committer.state_epoch, pairs)
        after = committer._replace(commits=committer.commits + 1)
        return self._sent(world._replace(committers=_changed(world.committers, who, after)), flight)

    @staticmethod
    def _sent(world: CommitWorld, flight: Flight) -> CommitWorld:
        flights = sorted((*world.flights, flight), key=lambda sent: (*sent[:4], sorted(sent.pairs), sent.copies))
        return world._replace(flights=tuple(flights))

    # The coordinator

    def _deliver(self, world: CommitWorld, index: int) -> CommitWorld:
        flight = world.flights[index]
        flights = list(world.flights)
        if flight.copies > 1:
            flights[index] = flight._replace(copies=flight.copies - 1)
        else:
            del flights[index]
        world = world._replace(flights=tuple(flights))
        record = self._decided(world, flight)
        if record is None:
            self.sometimes.add(f"a commit is refused: {flight.kind}")
            return world
        before = world.staged[-1] if world.staged else world.committed
        entry = self._entry(before, flight, record)
        self._check(entry, before, world)
        return world._replace(staged=(*world.staged, entry))

    def _decided(self, world: CommitWorld, flight: Flight) -> OffsetRecord | None:
        """The record of the product's decision, None for a refusal."""
        store = GroupStore()
        latest = LatestGroups(store)
        committed = _record(world.committed)
        if committed is not None and committed.value is not None:
            store.apply(committed)
        latest.stage([record for entry in world.staged if (record := _record(entry)) is not None])
        if flight.kind == "deletion":
            removals = GroupRemovals(latest, {}, retention_ms=0)
            command = DeleteOffsets(group_id=GROUP, partitions=(PLACE,))
            return None if latest.get(GROUP) is None else _only(removals.decide(command, 1_000).records)
        commits = OffsetCommits(latest, {}, self._offsets(), max_metadata=10)
        decision = commits.commit(self._command(flight), 1_000)
        if decision.response == (ErrorCode.FENCED_STATE_EPOCH,):
            self.sometimes.add("a commit is fenced")
        return _only(decision.records)

    def _command(self, flight: Flight) -> CommitOffsets:
        rectangles = tuple(
            Rectangle(offset, offset, HASHES[half], HASHES[half] + HALF - 1) for offset, half in sorted(flight.pairs)
        )
        ranges = RangesToCommit(rectangles=rectangles, state_epoch=flight.state_epoch, end_offset=self.kind.offsets)
        return CommitOffsets(
            group_id=GROUP,
            generation_id=1 if flight.kind == "member" else -1,
            member_id="",
            group_instance_id=None,
            knows_epochs=True,
            retention_time_ms=-1,
            offsets=(
                OffsetToCommit(
                    topic=PLACE.topic,
                    topic_id=TOPIC_ID,
                    partition=PLACE.partition,
                    offset=flight.offset,
                    leader_epoch=-1,
                    metadata="",
                    ranges=ranges if flight.kind in ("ranges", "cut") else None,
                ),
            ),
        )

    def _replicate(self, world: CommitWorld) -> CommitWorld:
        entry, *staged = world.staged
        if entry.kind == "ranges" and len(entry.cover) == 2 * self.kind.offsets:
            self.sometimes.add("everything is done")
        return world._replace(committed=entry, staged=tuple(staged))

    # Laws

    def _entry(self, before: CommitEntry, flight: Flight, record: OffsetRecord) -> CommitEntry:
        """The truth of the model at this record, from the truth at the record before."""
        encoded = encode_record(record)
        below = frozenset((offset, half) for offset in range(flight.offset) for half in (0, 1))
        stable_offset = _stable(before.cover, self.kind.offsets)
        match flight.kind:
            case "ranges":
                return before._replace(
                    value=encoded,
                    kind="ranges",
                    cover=before.cover | flight.pairs,
                    promised=before.promised | flight.pairs,
                )
            case "cut":
                return CommitEntry(
                    encoded,
                    "cut",
                    before.cover & below,
                    before.promised & below,
                    min(before.stated, flight.offset),
                    before.resets + 1,
                    (*before.since, (flight.offset, before.resets + 1)),
                    before.is_forgiven,
                )
            case "member" if flight.offset >= stable_offset:
                return CommitEntry(
                    encoded,
                    "forward",
                    before.cover | below,
                    before.promised | below,
                    max(before.stated, flight.offset),
                    before.resets,
                    before.since,
                    before.is_forgiven,
                )
            case "member" | "reset":
                lowers = not before.cover <= below
                self.sometimes.add("a frontier is lowered" if lowers else "a reset lowers nothing")
                resets = before.resets + lowers
                since = (*before.since, (flight.offset, resets))
                return CommitEntry(encoded, "reset", below, below, flight.offset, resets, since, before.is_forgiven)
            case _:
                return CommitEntry(encoded, "deletion", frozenset(), frozenset(), 0, before.resets, is_forgiven=True)

    def _check(self, entry: CommitEntry, before: CommitEntry, world: CommitWorld) -> None:
        """1. The progress in a record covers the pairs of the model, and no more.
        2. Every acknowledged record that was not reset since stays covered.
        3. Every covered record was done by a reader that knew of all resets, or was stated by a plain commit.
        4. The stable offset is the lowest frontier, and only a reset lowers it.
        """
        record = _record(entry)
        assert record is not None, "a record was written"
        progress = CommittedProgress(0) if record.value is None else self._offsets().progress(record.value).committed
        cover = frozenset(
            (offset, half)
            for offset in range(self.kind.offsets)
            for half in (0, 1)
            if progress.is_committed(offset, HASHES[half])
        )
        if not entry.promised <= cover:
            raise Breach("what is acknowledged stays covered", f"{sorted(entry.promised - cover)} of {progress}")
        for offset, half in sorted(cover):
            seen = {reset for done, of, reset in world.done if (done, of) == (offset, half)}
            needed = max((number for first, number in entry.since if first <= offset), default=0)
            is_known = bool(seen) if entry.is_forgiven else NEVER in seen or max(seen, default=NEVER) >= needed
            if offset >= entry.stated and not is_known:
                raise Breach("nothing undone is covered", f"{(offset, half)} was done under {seen}, not {needed}")
        if cover != entry.cover:
            raise Breach("commits unite", f"covered are {sorted(cover)}, by the model {sorted(entry.cover)}")
        if entry.kind in ("ranges", "forward") and _stable(before.cover, self.kind.offsets) > progress.stable_offset:
            raise Breach("the stable offset rises", f"{progress} after {sorted(before.cover)}")
        if entry.kind != "deletion" and progress.stable_offset != _stable(cover, self.kind.offsets):
            raise Breach("the stable offset is the lowest frontier", f"{progress}, covered are {sorted(cover)}")
        if progress.rectangle_count > self.kind.max_rectangles:
            raise Breach("the state is bounded", f"{progress}")


def _stable(cover: Pairs, end: int) -> int:
    """The first offset that is not covered in both halves."""
    return next((offset for offset in range(end) if not {(offset, 0), (offset, 1)} <= cover), end)


def _plain(part: object) -> object:
    """Sorts the sets in a part of a world."""
    if isinstance(part, CommitEntry):
        return (part.value, part.kind, sorted(part.cover), sorted(part.promised), *part[4:])
    if isinstance(part, Flight):
        return (*part[:4], sorted(part.pairs), part.copies)
    return sorted(part) if isinstance(part, frozenset) else part


def _record(entry: CommitEntry) -> OffsetRecord | None:
    """The record, from the bytes of the log."""
    if entry.value is None:
        return None
    record = decode_record(*entry.value)
    assert isinstance(record, OffsetRecord), "an offset was written"
    return record


def _only(records: Iterable[GroupLogRecord]) -> OffsetRecord | None:
    for record in records:
        assert isinstance(record, OffsetRecord), "an offset is committed"
        return record
    return None


def _changed(values: Sequence[Committer], index: int, value: Committer) -> tuple[Committer, ...]:
    return tuple(value if place == index else kept for place, kept in enumerate(values))


def _spent(world: CommitWorld, name: str) -> CommitWorld:
    return world._replace(budget=world.budget._replace(**{name: getattr(world.budget, name) - 1}))
