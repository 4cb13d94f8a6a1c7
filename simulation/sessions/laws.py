"""Laws of fetch sessions (KIP-227), checked at each event of a `sessions.scope`.

- "both ends agree": when a fetch of a session has been taken, its two ends have the same partitions at the same
  offsets; an answer has no other partition, and the answer to a full fetch has every partition.
- "a partition that is left out has no news": the reader of an incremental answer has every record of the other
  partitions, and knows their high watermarks and log starts of the moment when it left.
- "each partition has its turn": if an answer has no room for all partitions with records, the partitions that it leaves
  out had their last turn later than those in the answer.
- "an incremental answer has news alone": records, errors, or a high watermark or log start that is new to its reader.
- "a wrong epoch changes nothing": an incremental fetch is accepted if the session has the id and epoch of the fetch,
  and refused otherwise; a session that refuses a fetch stays as it was, a session that takes a fetch expects the next
  epoch.
- "a session serves its owner alone": a fetch of another reader finds no session, and closes none.
- "a full fetch ends the session that it names".
- "a consumer evicts no follower", unless the follower has been inactive for long.
- "only open sessions watch": a partition has no watcher of a session, or of a member, that is gone.
- "a fetch waits only without news": no record is readable, and a follower knows the high watermark.
- "a fetch that waits in vain is answered": if its session has ended, or another fetch of the session has come.
- "caught up is true": a follower is caught up as of a time at which it had everything that the leader had, by a fetch
  of the registration that the leader knew.
- "an acknowledgement is true": an end offset or high watermark that a leader counts is there, in that registration.
- "when faults end the reader learns everything": in `sessions.scope`.
"""

from typing import Any, Final

from simulation.harness.breach import Breach
from simulation.sessions.broker import Answer
from simulation.sessions.partition import RECORD_BYTES, Registration
from simulation.sessions.parts import Parts, SessionMessage
from simulation.sessions.plain import stated
from simulation.sessions.reader import ScopeReader
from tailrace.fetch_session.epochs import is_full, next_epoch
from tailrace.fetch_session.session import FetchSession, SessionOwner
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import FetchRequest, PartitionData

_AGREE: Final = "both ends agree"


class SessionLaws:
    """Carries out the events that the laws concern."""

    def __init__(self, sometimes: set[str]) -> None:
        self._sometimes = sometimes

    # Requests

    def deliver(self, parts: Parts, message: SessionMessage) -> None:
        """A request comes to the broker. Raises Breach."""
        broker, (sender, request, version) = parts.broker, message
        owner = SessionOwner(f"User:{sender.reader}", "PLAINTEXT", parts.readers[sender.reader].replica_id)
        sessions = {cached.session_id: cached for cached in broker.sessions.cache.sessions()}
        before = {session_id: _state(cached) for session_id, cached in sessions.items()}
        named = sessions.get(request.session_id)
        is_own = named is not None and named.owner == owner
        expected = _expected_error(request, named if is_own else None)
        evictions = broker.sessions.cache.evictions
        response = broker.handle(sender, request, version)
        code = 0 if response is None else response.error_code
        if code != expected:
            law = "a wrong epoch changes nothing" if named is None or is_own else "a session serves its owner alone"
            raise Breach(law, f"{_told(request)} of {owner} gets {code} and not {expected}")
        self._sometimes |= {f"error {code}"} if code else set()
        evicted = broker.sessions.cache.evictions - evictions
        self._sometimes |= {"a session is evicted"} if evicted else set()
        for session_id, kept in sessions.items():
            if kept is named and is_own and not code:
                self._check_own(request, kept)
            elif kept.is_open and _state(kept) != before[session_id]:
                law = "a wrong epoch changes nothing" if is_own else "a session serves its owner alone"
                raise Breach(law, f"{_told(request)} of {owner} has changed session {session_id} of {kept.owner}")
            elif not kept.is_open:
                evicted -= 1
                if kept.is_privileged and kept.last_used_ms and not parts.readers[sender.reader].is_follower:
                    raise Breach("a consumer evicts no follower", f"{_told(request)} of {owner}: {kept.owner}")
        if evicted < 0:
            raise Breach("a session serves its owner alone", f"{_told(request)} of {owner} has closed another one")

    def _check_own(self, request: FetchRequest, session: FetchSession) -> None:
        if is_full(request.session_epoch):
            self._sometimes.add("a session is closed")
            if session.is_open:
                raise Breach("a full fetch ends the session that it names", _told(request))
        elif session.epoch != next_epoch(request.session_epoch):
            raise Breach("a wrong epoch changes nothing", f"{session.epoch} after {_told(request)}")

    def restart(self, parts: Parts, reader: ScopeReader) -> None:
        """Restart a reader; a follower comes back in another registration."""
        reader.restart()
        reader.broker_epoch += reader.is_follower

    @staticmethod
    def learn(parts: Parts, reader: ScopeReader, *, sees_fenced: bool) -> None:
        """Let the leader learn the follower's present registration, which is fenced at first; the leader may miss the
        fenced state."""
        brokers: Any = parts.broker.image.brokers
        brokers[reader.replica_id] = Registration(reader.broker_epoch)
        parts.broker.learned_ms = parts.broker.clock.now_ms
        for partition in parts.broker.partitions if sees_fenced else ():
            partition.in_sync.exclude((BrokerId(reader.replica_id),))

    @staticmethod
    def ask(parts: Parts, reader: ScopeReader) -> SessionMessage:
        """Make a reader's next fetch. Raises Breach."""
        message = parts.message(reader)
        wanted = {number: reader.offsets[number] for number in reader.wanted}
        # A partition that was forgotten and is wanted again leaves with this fetch, and enters with the next.
        if reader.max_partitions is None and not reader.held.items() <= wanted.items():
            raise Breach(_AGREE, f"reader {reader.index} wants {wanted}, its session has {reader.held}")
        return message

    # Answers

    def hear(self, parts: Parts, answer: Answer) -> None:
        """Deliver an answer to its reader. Raises Breach."""
        reader = parts.readers[answer.sender.reader]
        if not reader.is_asking or answer.sender.number != reader.awaited:
            return
        held, was_full = reader.held, is_full(reader.requester.epoch)
        known, told = dict(reader.known), set(reader.told)
        named = reader.hear(answer)
        if named is None:
            if not answer.response.error_code:
                raise Breach(_AGREE, f"reader {reader.index} has {held}, and the answer is {answer.response}")
            return
        if not was_full:
            self._sometimes.add("an incremental answer")
            self._check_left_out(reader, answer, held, named)
            for number, data in named.items():
                is_known = number in told and known[number] == (data.high_watermark, data.log_start_offset)
                if is_known and not (data.error_code or data.records):
                    raise Breach("an incremental answer has news alone", f"{data} for reader {reader.index}")
        reader.take(named, was_full=was_full)

    def _check_left_out(
        self, reader: ScopeReader, answer: Answer, held: dict[int, int], named: dict[int, PartitionData]
    ) -> None:
        size_bytes = sum(len(data.records or b"") for data in named.values())
        if size_bytes and size_bytes + RECORD_BYTES > reader.max_bytes:
            self._sometimes.add("an answer is full")
            self._check_turns(reader, answer, held, named)
            return
        for number in held.keys() - named.keys():
            self._sometimes.add("a partition is left out")
            if reader.is_wanted(number) and not reader.has_all(number, answer.truths[number]):
                raise Breach(
                    "a partition that is left out has no news",
                    f"reader {reader.index} knows {reader.known[number]} of {number} and reads at"
                    f" {reader.offsets[number]}, when there is {answer.truths[number]}",
                )

    @staticmethod
    def _check_turns(
        reader: ScopeReader, answer: Answer, held: dict[int, int], named: dict[int, PartitionData]
    ) -> None:
        latest = max(reader.turns[number] for number, data in named.items() if data.records)
        for number in held.keys() - named.keys():
            truth = answer.truths[number]
            if truth.is_readable and reader.has_records(held[number], truth) and reader.turns[number] < latest:
                raise Breach("each partition has its turn", f"{number} of reader {reader.index} is left out: {named}")

    # States

    def look_at(self, parts: Parts) -> None:
        """Check the laws between two events. Raises Breach."""
        self._check_watches(parts)
        self._check_waiting(parts)
        for reader in parts.readers:
            self._check_agreement(parts, reader)
            if reader.is_follower:
                self._check_follower(parts, reader)

    def _check_watches(self, parts: Parts) -> None:
        cache = parts.broker.sessions.cache
        open_sessions = {id(session) for session in cache.sessions()}
        for partition in parts.broker.partitions:
            for watcher in partition.watchers._kinds:
                member: Any = watcher
                found = member.session.find(member.topic, member.partition)
                if id(member.session) not in open_sessions or found is not member:
                    raise Breach("only open sessions watch", f"{partition.topic_partition}")
        if len(cache) > cache.slots:
            raise Breach("only so many sessions as there are slots", f"{len(cache)}")

    def _check_waiting(self, parts: Parts) -> None:
        for sender, request, _, session in parts.broker.waiting:
            reader = parts.readers[sender.reader]
            if not session.is_open or session.epoch != next_epoch(request.session_epoch):
                raise Breach("a fetch that waits in vain is answered", f"{_told(request)} of {reader.index}")
            self._sometimes.add("a fetch waits")
            for read in session:
                truth = parts.broker.partitions[read.partition].truth
                known = reader.known[read.partition] if sender.number == reader.awaited else None
                is_stale = reader.is_follower and known is not None and known[0] != truth.high_watermark
                if is_stale or not truth.is_readable or reader.has_records(read.fetch_offset, truth):
                    raise Breach(
                        "a fetch waits only without news",
                        f"reader {reader.index} at {read.fetch_offset} of {read.partition}: {truth}",
                    )

    def _check_agreement(self, parts: Parts, reader: ScopeReader) -> None:
        requester = reader.requester
        owner = SessionOwner(f"User:{reader.index}", "PLAINTEXT", reader.replica_id)
        session = parts.broker.session_of(requester.session_id, owner)
        if session is None or is_full(requester.epoch):
            return
        taken = next_epoch(requester.epoch) if reader.is_asking else requester.epoch
        if session.epoch == taken:
            self._sometimes.add("both ends agree")
            there = {read.partition: read.fetch_offset for read in session}
            if there != reader.held:
                raise Breach(_AGREE, f"reader {reader.index} has {reader.held}, the broker has {there}")

    def _check_follower(self, parts: Parts, reader: ScopeReader) -> None:
        for number, partition in enumerate(parts.broker.partitions):
            leadership: Any = partition.in_sync.leadership
            progress = leadership.replicas[reader.replica_id]
            end_offset = progress.end_offset
            if progress._visits is not None:
                self._sometimes.add("a follower rests")
            if end_offset < 0:
                continue  # the reader has not asked
            if progress.broker_epoch != reader.broker_epoch:
                is_known = parts.broker.image.brokers[reader.replica_id].broker_epoch == reader.broker_epoch
                counts_on = max(parts.broker.learned_ms, parts.broker.led_ms)
                if is_known and progress.caught_up_ms > counts_on:
                    raise Breach(
                        "caught up is true",
                        f"{number} as of {progress.caught_up_ms} in registration {progress.broker_epoch}, which is over"
                        f" since {parts.broker.learned_ms}",
                    )
                continue
            # A fetch that comes late, behind a later fetch, states less than there is.
            there = reader.offsets[number]
            if there < partition.own_end_offset and progress.caught_up_ms != parts.broker.led_ms:
                missing_ms = partition.appended_ms[there]
                if progress.caught_up_ms >= missing_ms:
                    raise Breach(
                        "caught up is true",
                        f"{number} at {there}, as of {progress.caught_up_ms}: the next record came at {missing_ms}",
                    )
            if end_offset > reader.offsets[number]:
                raise Breach("an acknowledgement is true", f"{number}: {end_offset}, not {reader.offsets[number]}")
            # Without a session, before Fetch v18, a follower is believed to have had the last answer.
            is_believed = progress.sent_high_watermark >= progress.acknowledged_high_watermark
            if progress.acknowledged_high_watermark > reader.marks[number] and not is_believed:
                raise Breach(
                    "an acknowledgement is true",
                    f"{number}: high watermark {progress.acknowledged_high_watermark}, not {reader.marks[number]}",
                )


def _expected_error(request: FetchRequest, own: FetchSession | None) -> int:
    if is_full(request.session_epoch):
        return 0
    if own is None:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    return 0 if own.epoch == request.session_epoch else ErrorCode.INVALID_FETCH_SESSION_EPOCH


def _state(session: FetchSession) -> object:
    """The part of a session that its own reader changes, and nothing else does."""
    return (
        session.epoch,
        {
            (entry.topic, entry.partition): (stated(entry), entry.known_high_watermark, entry.known_log_start_offset)
            for entry in session
        },
        len(session.unacknowledged),
    )


def _told(request: FetchRequest) -> str:
    return f"the fetch of session {request.session_id}, epoch {request.session_epoch}"
