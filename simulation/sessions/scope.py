"""The two ends of fetch sessions as a small world, for `harness.small_scope` and for walks at random.

`reader` has the product's requester, `broker` the product's handler. Between them requests and answers arrive at any
moment, twice, late or never; a reader that has given up ignores later answers. A world is the state between two events,
pickled.

Laws: see `sessions.laws`.
"""

import pickle
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from simulation.harness.breach import Breach
from simulation.sessions.broker import Sender
from simulation.sessions.laws import SessionLaws
from simulation.sessions.partition import RECORD_BYTES
from simulation.sessions.parts import Parts, SessionBudget, SessionKind, SessionMessage
from simulation.sessions.plain import plain
from simulation.sessions.reader import ScopeReader
from tailrace.fetch_session.requester import FetchSessionRequester, SessionRequest
from tailrace.model.proofs import NO_SECRET
from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.protocol.schema import replace

EXCHANGES: Final = 6
"""When all faults have ended, a reader knows everything after so many exchanges: one each for the messages under way, a
refused fetch, a full fetch, the records, the high watermark that rises after them, and a fetch that waits."""


class SessionAction(NamedTuple):
    """A possible event, and what it concerns."""

    kind: str
    which: int = 0
    detail: int = 0


class SessionWorld(NamedTuple):
    """Everything between two events."""

    content: bytes
    fingerprint: int
    actions: tuple[SessionAction, ...]


class SessionScope:
    """A `harness.small_scope.Model`."""

    def __init__(self, kind: SessionKind, *, converge_every: int = 1) -> None:
        """`converge_every`: one of so many worlds is followed until its readers know everything."""
        self.kind = kind
        self._converge_every = converge_every
        self.sometimes: set[str] = set()
        self._laws = SessionLaws(self.sometimes)
        self._converged: set[int] = set()

    def start(self, budget: SessionBudget) -> SessionWorld:
        """Empty logs, and no session."""
        return self._world(Parts(self.kind, budget))

    def name(self, action: SessionAction) -> str:
        return f"{action.kind} {action.which}" + (f" ({action.detail})" if action.detail else "")

    def fingerprint(self, world: SessionWorld) -> int:
        return world.fingerprint

    def actions(self, world: SessionWorld) -> Sequence[SessionAction]:
        return world.actions

    def take(self, world: SessionWorld, action: SessionAction) -> SessionWorld:
        parts = self._opened(world)
        self._do(parts, action)
        return self._world(parts)

    # Worlds

    def _world(self, parts: Parts) -> SessionWorld:
        parts.broker.sleep()
        awaited = {Sender(reader.index, reader.awaited) for reader in parts.readers if reader.is_asking}
        parts.broker.answers = [
            sent for sent in parts.broker.answers if sent.sender in awaited
        ]  # none hears the others
        self._laws.look_at(parts)
        text = plain(parts)
        content = pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)
        world = SessionWorld(content, _number(f"{parts.budget}{text}"), tuple(self._possible(parts)))
        bare = _number(text)
        if bare not in self._converged and bare % self._converge_every == 0:
            self._converged.add(bare)
            self._converge(self._opened(world))
        return world

    def _opened(self, world: SessionWorld) -> Parts:
        parts: Parts = pickle.loads(world.content)  # noqa: S301 - from this process or from its forks
        parts.broker.wake()
        return parts

    # Events

    def _possible(self, parts: Parts) -> list[SessionAction]:
        budget, broker = parts.budget, parts.broker
        found: list[SessionAction] = []
        for index, message in enumerate(parts.requests):
            found.append(SessionAction("deliver", index))
            if budget.losses:
                found.append(SessionAction("lose request", index))
            if budget.duplicates and message.sender.number:
                found.append(SessionAction("duplicate", index))
        for index, _ in enumerate(broker.answers):
            found.append(SessionAction("hear", index))
            if budget.losses:
                found.append(SessionAction("lose answer", index))
        if broker.waiting:
            found.append(SessionAction("expire"))
        for reader in parts.readers:
            found += self._of_reader(parts, reader)
        found += self._of_partitions(parts)
        if budget.broker_restarts:
            found.append(SessionAction("restart broker"))
        if budget.evictions:
            found.append(SessionAction("grow old"))
        return found

    def _of_partitions(self, parts: Parts) -> list[SessionAction]:
        budget, broker = parts.budget, parts.broker
        found: list[SessionAction] = []
        for index, partition in enumerate(broker.partitions):
            if budget.appends:
                found.append(SessionAction("append", index))
            if partition.own_end_offset > partition.high_watermark and not self.kind.is_follower:
                found.append(SessionAction("flush", index))
            if budget.log_starts and partition.log.log_start_offset < partition.high_watermark:
                found.append(SessionAction("raise log start", index))
            if budget.errors and partition.is_readable:
                found.append(SessionAction("break", index))
            if not partition.is_readable:
                found.append(SessionAction("mend", index))
            if partition.is_held_back:
                found.append(SessionAction("let go", index))
            elif budget.throttles and self.kind.is_follower:
                found.append(SessionAction("hold back", index))
        return found

    def _of_reader(self, parts: Parts, reader: ScopeReader) -> list[SessionAction]:
        budget, index = parts.budget, reader.index
        found: list[SessionAction] = []
        if not reader.is_asking:
            found.append(SessionAction("ask", index))
            if budget.closes and reader.requester.session_id:
                found.append(SessionAction("close", index))
        elif not _is_under_way(parts, reader):
            found.append(SessionAction("give up", index))
        elif budget.delays:
            found.append(SessionAction("give up early", index))
        if budget.reader_restarts:
            found.append(SessionAction("restart reader", index))
        if _is_unknown(parts, reader):
            found += [SessionAction("learn", index), SessionAction("learn", index, 1)]
        if budget.forgets:
            found += [SessionAction("forget", index, number) for number in reader.wanted if len(reader.wanted) > 1]
        if not reader.is_asking:
            found += [SessionAction("want", index, number) for number in reader.offsets if number not in reader.wanted]
        if budget.thefts:
            others = [victim for victim in parts.readers if victim is not reader and victim.requester.session_id]
            found += [SessionAction("steal", index, victim.index) for victim in others]
        return found

    def _do(self, parts: Parts, action: SessionAction) -> None:
        kind, which = action.kind, action.which
        broker = parts.broker
        match kind:
            case "deliver":
                self._laws.deliver(parts, parts.requests.pop(which))
            case "lose request":
                parts.spend("losses")
                del parts.requests[which]
            case "duplicate":
                parts.spend("duplicates")
                parts.requests.append(parts.requests[which])
            case "hear":
                self._laws.hear(parts, broker.answers.pop(which))
            case "lose answer":
                parts.spend("losses")
                del broker.answers[which]
            case "expire":
                broker.expire()
            case "append":
                parts.spend("appends")
                broker.partitions[which].append(broker.clock.now_ms)
            case "flush":
                broker.partitions[which].flush()
            case "raise log start":
                parts.spend("log_starts")
                broker.partitions[which].raise_log_start()
            case "break" | "mend":
                if kind == "break":
                    parts.spend("errors")
                broker.partitions[which].set_readable(is_readable=kind == "mend")
            case "hold back":
                parts.spend("throttles")
                broker.partitions[which].is_held_back = True
            case "let go":  # a fetch that waits is answered at its deadline
                broker.partitions[which].is_held_back = False
                broker.expire()
            case _:
                self._do_to_all(parts, action)

    def _do_to_all(self, parts: Parts, action: SessionAction) -> None:
        broker = parts.broker
        match action.kind:
            case "restart broker":
                parts.spend("broker_restarts")
                broker.restart()
            case "grow old":
                parts.spend("evictions")
                broker.grow_old()
            case _:
                self._do_of_reader(parts, parts.readers[action.which], action)

    def _do_of_reader(self, parts: Parts, reader: ScopeReader, action: SessionAction) -> None:
        match action.kind:
            case "ask":
                parts.requests.append(self._laws.ask(parts, reader))
            case "give up":
                reader.give_up()
            case "give up early":
                parts.spend("delays")
                reader.give_up()
            case "close":
                parts.spend("closes")
                closing = reader.close()
                assert closing is not None
                parts.requests.append(SessionMessage(*closing, reader.version))
            case "restart reader":
                parts.spend("reader_restarts")
                self._laws.restart(parts, reader)
            case "learn":
                self._laws.learn(parts, reader, sees_fenced=action.detail == 0)
            case "forget":
                parts.spend("forgets")
                reader.forget(action.detail)
            case "want":
                reader.want(action.detail)
            case "steal":
                parts.spend("thefts")
                self._steal(parts, reader, parts.readers[action.detail])
            case _:
                raise AssertionError(action)

    def _steal(self, parts: Parts, thief: ScopeReader, victim: ScopeReader) -> None:
        """Let the thief fetch in the victim's session as the victim would, and then try to close the session."""
        for epoch in (max(victim.requester.epoch, 1), 0):
            request = thief.request_of(_stolen(victim.requester, epoch))
            self._laws.deliver(parts, SessionMessage(Sender(thief.index, 0), request, thief.version))
        for request in _forged(parts, victim) if victim.is_follower else ():
            self._laws.deliver(parts, SessionMessage(Sender(thief.index, 0), request, thief.version))

    # When faults have ended

    def _converge(self, parts: Parts) -> None:
        """Check that every reader has everything after some exchanges without a fault."""
        for partition in parts.broker.partitions:
            partition.set_readable(is_readable=True)
            partition.is_held_back = False
            partition.flush()
        for reader in parts.readers:
            if _is_unknown(parts, reader):
                self._laws.learn(parts, reader, sees_fenced=True)
        slices = 0 if self.kind.max_partitions is None else 2 * self.kind.partitions
        turns = self.kind.partitions * max(partition.own_end_offset for partition in parts.broker.partitions)
        for _ in range(EXCHANGES + slices + (turns if self.kind.max_bytes < 2 * RECORD_BYTES else 0)):
            self._exchange(parts)
            if all(self._knows_all(parts, reader) for reader in parts.readers):
                self._laws.look_at(parts)
                return
        for reader in parts.readers:
            for number in reader.wanted:
                truth = parts.broker.partitions[number].truth
                if not reader.has_all(number, truth):
                    raise Breach(
                        "when faults end the reader learns everything",
                        f"reader {reader.index} has {reader.known[number]} and reads at {reader.offsets[number]} of"
                        f" {number}, where there is {truth}",
                    )

    @staticmethod
    def _knows_all(parts: Parts, reader: ScopeReader) -> bool:
        return all(reader.has_all(number, parts.broker.partitions[number].truth) for number in reader.wanted)

    def _exchange(self, parts: Parts) -> None:
        """Deliver every message under way, in order, and let each reader send a fetch."""
        broker = parts.broker
        while parts.requests:
            self._laws.deliver(parts, parts.requests.pop(0))
        broker.sleep()
        broker.wake()
        broker.expire()
        while broker.answers:
            self._laws.hear(parts, broker.answers.pop(0))
        for reader in parts.readers:
            if reader.is_asking:
                reader.give_up()
            parts.requests.append(self._laws.ask(parts, reader))


def _stolen(requester: FetchSessionRequester[int, int], epoch: int) -> SessionRequest[int, int]:
    """A fetch in this session that forgets a partition of the session."""
    return SessionRequest(
        session_id=requester.session_id,
        session_epoch=epoch,
        partitions=((0, 0),),
        forgotten=(1,) if epoch else (),
        is_slice=False,
    )


def _forged(parts: Parts, victim: ScopeReader) -> Iterator[FetchRequest]:
    """Fetches in a follower's name without its secret, which acknowledge every record: an incremental fetch and a full
    fetch."""
    ends = tuple((number, partition.own_end_offset) for number, partition in enumerate(parts.broker.partitions))
    for session_id, epoch in ((victim.requester.session_id, max(victim.requester.epoch, 1)), (0, -1)):
        session = SessionRequest(
            session_id=session_id, session_epoch=epoch, partitions=ends, forgotten=(), is_slice=False
        )
        yield replace(victim.request_of(session), secret=NO_SECRET, max_wait_ms=0)


def _is_under_way(parts: Parts, reader: ScopeReader) -> bool:
    wanted = Sender(reader.index, reader.awaited)
    senders = (
        message.sender for group in (parts.requests, parts.broker.answers, parts.broker.waiting) for message in group
    )
    return wanted in senders


def _is_unknown(parts: Parts, reader: ScopeReader) -> bool:
    """Whether the leader does not know the follower's present registration yet."""
    return reader.is_follower and parts.broker.image.brokers[reader.replica_id].broker_epoch != reader.broker_epoch


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") or 1
