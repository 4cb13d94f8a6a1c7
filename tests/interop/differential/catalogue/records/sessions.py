"""Fetch sessions (KIP-227): made, followed, left, and refused; by names and by ids."""

from collections.abc import Callable, Sequence
from itertools import groupby
from random import Random
from typing import Any, NamedTuple

from interop.differential.catalogue.administration.topics import delete
from interop.differential.catalogue.preparation import batch, created, filled, gone, records
from interop.differential.catalogue.records.offsets import delete_records
from interop.differential.script import Answers, Ask, Build, Script, ask
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from tailrace.protocol.records.record import build_batch

TOPIC, OTHER, LATER = "sessions", "sessions-more", "sessions-later"
DRAWN, TURNS = "sessions-drawn", "sessions-turns"
NAMES, IDS = (7, 12), (13, 18)
_ALL = 1 << 20
DRAWN_STEPS, DRAWN_TURNS, DRAWN_PARTITIONS, TURNS_RECORDS = 400, 150, 5, 4


class Want(NamedTuple):
    """A partition of a fetch."""

    partition: int
    offset: int = 0
    topic: str = TOPIC
    max_bytes: int = _ALL
    leader_epoch: int = -1


class Session:
    """The steps of one session: its id is that of the node's answer, its epoch follows the rules of the text."""

    def __init__(
        self, title: str, version: int, *, connection: str = "main", replica: tuple[int, int] | None = None
    ) -> None:
        self._title = title
        self._version = version
        self._connection = connection
        self._replica = replica
        self._made = ""
        self._epoch = 0

    def make(self, what: str, *wanted: Want, **settings: Any) -> Script:
        """A full fetch that asks for a session."""
        self._made, self._epoch = f"{self._title}: {what}", 1
        yield self._ask(what, lambda _: (0, 0), wanted, settings)

    def again(self, what: str, *wanted: Want, **settings: Any) -> Script:
        """A full fetch that asks for a session in the place of this session."""
        before = self._made
        self._made, self._epoch = f"{self._title}: {what}", 1
        yield self._ask(what, lambda answers: (answers[before].session_id, 0), wanted, settings)

    def next(self, what: str, *wanted: Want, **settings: Any) -> Script:
        """The next fetch, with what changes."""
        yield from self.at(self._epoch, what, *wanted, **settings)
        self._epoch += 1

    def at(self, epoch: int, what: str, *wanted: Want, **settings: Any) -> Script:
        """A fetch with this epoch, which need not be the right epoch."""
        made = self._made
        yield self._ask(what, lambda answers: (answers[made].session_id, epoch), wanted, settings)

    def _ask(
        self,
        what: str,
        session: Callable[[Answers], tuple[int, int]],
        wanted: Sequence[Want],
        settings: dict[str, Any],
    ) -> Ask:
        version = settings.pop("version", self._version)
        connection = settings.pop("connection", self._connection)
        build = fetch_of(session, wanted, replica=self._replica, **settings)
        return Ask(f"{self._title}: {what}", version, build, connection, is_repeatable=False)


def fetch_of(
    session: Callable[[Answers], tuple[int, int]],
    wanted: Sequence[Want],
    *,
    forgotten: Sequence[Want] = (),
    max_bytes: int = _ALL,
    isolation: int = 0,
    rack: str = "",
    replica: tuple[int, int] | None = None,
) -> Build:
    """A Fetch that does not wait; `replica` is a follower's number and its broker epoch."""
    replica_id, replica_epoch = replica or (-1, -1)

    def build(answers: Answers) -> FetchRequest:
        session_id, session_epoch = session(answers)
        return FetchRequest(
            replica_id=replica_id,
            replica_state=ReplicaState(replica_id=replica_id, replica_epoch=replica_epoch),
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=session_id,
            session_epoch=session_epoch,
            rack_id=rack,
            topics=tuple(
                FetchTopic(topic=name, topic_id=_id_of(answers, name), partitions=tuple(map(_partition, group)))
                for name, group in groupby(wanted, key=lambda want: want.topic)
            ),
            forgotten_topics_data=tuple(
                ForgottenTopic(
                    topic=name, topic_id=_id_of(answers, name), partitions=tuple(want.partition for want in group)
                )
                for name, group in groupby(forgotten, key=lambda want: want.topic)
            ),
        )

    return build


def _id_of(answers: Answers, topic: str) -> bytes:
    return answers.topic_ids.get(topic, b"no such topic id")


def _partition(want: Want) -> FetchPartition:
    return FetchPartition(
        partition=want.partition,
        current_leader_epoch=want.leader_epoch,
        fetch_offset=want.offset,
        partition_max_bytes=want.max_bytes,
    )


def sessions() -> Script:
    yield from created(TOPIC, 4)
    yield from created(OTHER, 2)
    for partition in range(3):
        yield from filled(TOPIC, *_batches_of(2), partition=partition)
    for version in (*NAMES, *IDS):
        yield from _followed(version)
        yield from _epochs(version)
        yield from _left(version)
        yield from _grown(version)
        yield from _turns(version)
        yield from _faults(version)
        yield from _replaced(version)
        yield from _ended(version)
        yield from _topics_that_come_and_go(version)
    yield from _modes()


def _batches_of(count: int) -> list[bytes]:
    return [bytes(build_batch(records(1, bytes_each=200))) for _ in range(count)]


def _followed(version: int) -> Script:
    """News come once, and only what is new; partition 3 gets two records more in each version."""
    end = 2 * (*NAMES, *IDS).index(version)
    session = Session(f"a session followed in v{version}", version)
    yield from session.make("is made", Want(0, 0), Want(1, 2), Want(3, end))
    yield from session.next("records that were not taken come again")
    yield from session.next("a position moves", Want(0, 1))
    yield from session.next("a position moves to the end", Want(0, 2))
    yield from session.next("nothing is new")
    yield from filled(TOPIC, batch(1), partition=3)
    yield from session.next("a record is new")
    yield from session.next("the record was not taken")
    yield from session.next("the record is taken", Want(3, end + 1))
    yield from session.next("nothing is new again")
    yield from session.next("nothing is new, read committed", isolation=1)
    yield from session.next("nothing is new, with a rack", rack="a")
    yield from filled(TOPIC, batch(1), partition=3)
    yield from ask(f"records before {end + 1} are deleted", delete_records((3, end + 1), topic=TOPIC), 2)
    yield from session.next("the log start moves too", Want(3, end + 2))
    yield from session.next("the log start is known")
    yield from session.next("a position moves back", Want(1, 0))
    yield from session.next("on another connection", connection="another")
    yield from session.at(-1, "is closed")


def _epochs(version: int) -> Script:
    session = Session(f"epochs in v{version}", version)
    yield from session.make("a session", Want(0, 2), Want(1, 2))
    for epoch in (2, 7, 2**31 - 1, -2, -(2**31)):
        yield from session.at(epoch, f"epoch {epoch} for 1", Want(2, 0))
    yield from session.next("the right epoch, and partition 2 is not in the session")
    yield from session.at(1, "epoch 1 again", Want(2, 0))
    yield from session.next("the next epoch")
    yield from session.at(-1, "closed, with a partition", Want(0, 0))
    yield from session.at(3, "after the end")
    unknown = Session(f"ids in v{version}", version)
    for session_id in (0, 1, -1, -(2**31), 2**31 - 1):
        for epoch in (1, -1, 0):
            name = f"id {session_id}, epoch {epoch}"
            build = fetch_of(lambda _, at=(session_id, epoch): at, (Want(0, 2),))  # type: ignore[misc]
            yield Ask(f"{unknown._title}: {name}", version, build, is_repeatable=False)


def _left(version: int) -> Script:
    session = Session(f"partitions that leave in v{version}", version)
    yield from session.make("a session", Want(0, 0), Want(1, 0), Want(2, 0))
    yield from session.next("a partition leaves", forgotten=[Want(1)])
    yield from session.next("it is gone")
    yield from session.next("a partition leaves that is not there", forgotten=[Want(1), Want(77)])
    yield from session.next("a partition of an unknown topic leaves", forgotten=[Want(0, topic="nowhere")])
    yield from session.next("a partition leaves and comes", Want(0, 1), forgotten=[Want(0)])
    yield from session.next("after that")
    yield from session.next("a partition comes back", Want(1, 1))
    yield from session.next("all leave", forgotten=[Want(0), Want(1), Want(2)])
    yield from session.next("after all have left", Want(0, 0))
    two = Session(f"partitions forgotten at once in v{version}", version)
    yield from two.make("a session", Want(0, 0), Want(1, 0), forgotten=[Want(1)])
    yield from two.next("after that")
    three = Session(f"a session of nothing in v{version}", version)
    yield from three.make("is asked for")
    yield from three.next("is asked for more", Want(0, 0))


def _grown(version: int) -> Script:
    session = Session(f"partitions that come in v{version}", version)
    yield from session.make("a session", Want(0, 2))
    yield from session.next("a partition comes at the end", Want(1, 2))
    yield from session.next("a partition comes with records", Want(2, 0))
    yield from session.next("a partition of another topic", Want(0, 0, OTHER))
    yield from session.next("two topics at once", Want(1, 0, OTHER), Want(2, 2))
    yield from session.next("a partition twice", Want(1, 0), Want(1, 1))
    yield from session.next("after that")
    two = Session(f"a session with a partition named twice in v{version}", version)
    yield from two.make("is made", Want(1, 0), Want(1, 2))
    yield from two.next("goes on")


def _turns(version: int) -> Script:
    """With room for one message each time, the partitions take turns."""
    session = Session(f"turns in v{version}", version)
    yield from session.make("all", Want(0, 0), Want(1, 0), Want(2, 0), max_bytes=1)
    for turn in range(7):
        yield from session.next(f"turn {turn}", max_bytes=1)
    yield from session.next("a position moves", Want(1, 1), max_bytes=1)
    for turn in range(4):
        yield from session.next(f"turn {turn} after that", max_bytes=1)
    yield from session.next("a newcomer has no room", Want(0, 0, OTHER), max_bytes=1)
    yield from session.next("there is room for it", max_bytes=_ALL)
    yield from session.next("it leaves", forgotten=[Want(0, topic=OTHER)])
    yield from session.next("room for two", max_bytes=600)
    yield from session.next("room for two again", max_bytes=600)
    yield from session.next("the first has little room", Want(0, 0, max_bytes=1), Want(1, 2), Want(2, 2))
    yield from session.next("it has it still")
    yield from session.next("no room at all", max_bytes=0)


def _faults(version: int) -> Script:
    session = Session(f"faults in v{version}", version)
    yield from session.make("out of range", Want(0, 99), Want(1, 2))
    yield from session.next("still out of range")
    yield from session.next("in range", Want(0, 2))
    yield from session.next("nothing is new")
    yield from session.next("an unknown partition", Want(9, 0))
    yield from session.next("it is unknown still")
    yield from session.next("it leaves", forgotten=[Want(9)])
    if version >= 9:
        yield from session.next("in an epoch to come", Want(0, 2, leader_epoch=5))
        yield from session.next("in that epoch still")
        yield from session.next("in this epoch", Want(0, 2, leader_epoch=0))
        yield from session.next("nothing is new in it")
    two = Session(f"a session of faults alone in v{version}", version)
    yield from two.make("is made", Want(9, 0), Want(8, 0))
    yield from two.next("goes on")
    yield from two.at(-1, "is closed")


def _replaced(version: int) -> Script:
    second = Session(f"a session replaced in v{version}", version)
    first = Session(f"a session replaced in v{version}", version)
    yield from second.make("the first", Want(0, 2))
    first._made = second._made
    yield from second.again("the second", Want(1, 2))
    yield from first.at(1, "the first is gone")
    yield from second.next("the second goes on", Want(0, 0))
    two, three = (Session(f"session {number} of two in v{version}", version) for number in (1, 2))
    yield from two.make("is made", Want(0, 0))
    yield from three.make("is made", Want(1, 0))
    yield from two.next("its own partition")
    yield from three.next("its own partition")


def _ended(version: int) -> Script:
    session = Session(f"a session closed in v{version}", version)
    yield from session.make("a session", Want(0, 0))
    yield from session.at(-1, "closed")
    yield from session.at(1, "after that", Want(0, 0))
    yield from session.at(-1, "closed again")


def _topics_that_come_and_go(version: int) -> Script:
    session = Session(f"a topic to come in v{version}", version)
    yield from session.make("a session", Want(0, 2), Want(0, 0, LATER))
    yield from session.next("it is unknown still")
    yield from created(LATER, 1)
    yield from filled(LATER, batch(1))
    yield from session.next("it has come")
    two = Session(f"a topic to go in v{version}", version)
    yield from two.make("a session", Want(0, 2), Want(0, 0, LATER))
    yield from ask(f"{LATER} is deleted", delete(LATER), 5)
    yield from gone(LATER)
    yield from two.next("it has gone")
    yield from two.next("it has gone for good")
    yield from created(LATER, 1)
    yield from filled(LATER, batch(2))
    yield from two.next("another topic has come")
    yield from ask(f"{LATER} is deleted again", delete(LATER), 5)
    yield from gone(LATER)
    yield from two.next("the other topic has gone")
    yield from two.next("it leaves", forgotten=[Want(0, topic=LATER)])


def _modes() -> Script:
    """A session is kept by names or by ids; the versions of one kind may change."""
    for made, other, same in ((7, 13, 12), (12, 18, 7), (13, 12, 18), (18, 7, 13)):
        session = Session(f"a session of v{made}", made)
        yield from session.make("is made", Want(0, 0), Want(1, 2))
        yield from session.at(1, f"in v{other}", Want(1, 0), version=other)
        yield from session.at(9, f"in v{other} with a wrong epoch", version=other)
        yield from session.next(f"in v{same}", Want(1, 1), version=same)
        yield from session.next("goes on")
        yield from session.at(-1, f"is closed in v{other}", version=other)
        yield from session.next("is closed")


def drawn_sessions(seed: int) -> Script:
    """Sessions of all kinds beside each other, with changes by lot, while records come and go."""
    chance = Random(seed)
    yield from created(DRAWN, DRAWN_PARTITIONS)
    ends = [0] * DRAWN_PARTITIONS
    kept = {Session(f"seeded session of v{version}", version): set[int]() for version in (*NAMES, *IDS)}
    for session, members in kept.items():
        yield from session.make("is made", *_drawn_wants(chance, ends, members, least=1))
    for number in range(DRAWN_STEPS):
        session, members = chance.choice(list(kept.items()))
        match chance.randrange(12):
            case 0 | 1 | 2:
                partition = chance.randrange(DRAWN_PARTITIONS)
                ends[partition] += 1
                yield from filled(DRAWN, *_batches_of(1), partition=partition)
            case 3:
                partition = chance.randrange(DRAWN_PARTITIONS)
                deleted = delete_records((partition, chance.randint(0, ends[partition])), topic=DRAWN)
                yield from ask(f"seeded {number}: records are deleted", deleted, 2)
            case 4:
                wants = _drawn_wants(chance, ends, set())
                yield from session.at(chance.choice((-7, 1_000_000)), f"a wrong epoch, {number}", *wants)
            case 5:
                members.clear()
                yield from session.again(f"is made again, {number}", *_drawn_wants(chance, ends, members, least=1))
            case _:
                wants = _drawn_wants(chance, ends, members)
                leaving = chance.sample(sorted(members), chance.choice((0, 0, 0, 1)))
                if members == set(leaving):
                    leaving = []  # a session without partitions ends
                members.difference_update(leaving)
                forgotten = [Want(partition, topic=DRAWN) for partition in leaving]
                yield from session.next(f"goes on, {number}", *wants, forgotten=forgotten)


def _drawn_wants(chance: Random, ends: Sequence[int], members: set[int], *, least: int = 0) -> list[Want]:
    chosen = chance.sample(range(DRAWN_PARTITIONS), max(chance.choice((0, 1, 1, 2, 5)), least))
    members.update(chosen)
    return [Want(partition, chance.randint(0, ends[partition] + 1), DRAWN) for partition in chosen]


def drawn_turns(seed: int) -> Script:
    """Sessions with room for one message in each answer, whose positions move by lot: whose turn is it?"""
    chance = Random(seed)
    yield from created(TURNS, DRAWN_PARTITIONS)
    everything = range(DRAWN_PARTITIONS)
    for partition in everything:
        yield from filled(TURNS, *_batches_of(TURNS_RECORDS), partition=partition)
    kept = [Session(f"seeded turns of v{version}", version) for version in (*NAMES, *IDS)]
    for session in kept:
        order = chance.sample(everything, DRAWN_PARTITIONS)
        yield from session.make("a session", *(Want(partition, 0, TURNS) for partition in order), max_bytes=1)
    for number in range(DRAWN_TURNS):
        moving = chance.sample(everything, chance.choice((0, 0, 1, 2)))
        wants = [Want(partition, chance.randint(0, TURNS_RECORDS), TURNS) for partition in moving]
        yield from chance.choice(kept).next(f"turn {number}", *wants, max_bytes=1)
