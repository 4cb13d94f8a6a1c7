"""The reader's end of a fetch session in a small world: the product's requester, and what the reader has read."""

from collections.abc import Iterable
from typing import Any, Final

from simulation.sessions.broker import Answer, Sender
from simulation.sessions.partition import RECORD_BYTES, SECRET, TOPIC_ID, Truth
from tailrace.fetch_session.requester import FetchSessionRequester, SessionRequest
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

CONSUMER: Final = -1
NOT_STATED: Final = 2**63 - 1


class ScopeReader:
    """A consumer, or a follower whose log is everything that it has read."""

    def __init__(
        self,
        index: int,
        *,
        partitions: Iterable[int],
        replica_id: int,
        version: int,
        max_bytes: int,
        max_partitions: int | None,
    ) -> None:
        """`max_bytes` is the limit of an answer, `max_partitions` the limit of a request."""
        self.index = index
        self.replica_id = replica_id
        self.version = version
        self.max_bytes = max_bytes
        self.max_partitions = max_partitions
        self.broker_epoch = 0
        self.offsets: dict[int, int] = dict.fromkeys(partitions, 0)
        """The next offset of every partition, wanted or not."""
        self.last_number = 0
        self.restart()

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0

    def restart(self) -> None:
        """Start again with the records on the disk, or at the committed offsets."""
        self.requester: FetchSessionRequester[int, int] = FetchSessionRequester(max_partitions=self.max_partitions)
        self.wanted = dict.fromkeys(self.offsets)
        self.known: dict[int, tuple[int, int] | None] = dict.fromkeys(self.offsets)
        """The last high watermark and log start that the reader knows of each partition; None after an error."""
        self.marks = dict.fromkeys(self.offsets, 0)
        """The highest high watermark that the reader knows of each partition."""
        self.changed = dict.fromkeys(self.offsets)
        self.forgotten: dict[int, None] = {}
        self.turns: dict[int, int] = {}
        """The time of the last turn of each partition of its session: of the last answer with records of the partition,
        or of its entry into the session."""
        self._last_turn = 0
        self.told: set[int] = set()
        """The partitions of its session that were in an answer without an error."""
        self.awaited = 0
        """The number of the request whose answer it awaits; 0: none."""

    @property
    def is_asking(self) -> bool:
        return self.awaited != 0

    def forget(self, partition: int) -> None:
        """Pause the partition, as a consumer does."""
        del self.wanted[partition]
        self.changed.pop(partition, None)
        self.forgotten[partition] = None
        self.known[partition] = None

    def want(self, partition: int) -> None:
        self.wanted[partition] = self.changed[partition] = None

    def next_request(self) -> tuple[Sender, FetchRequest]:
        """Make the reader's next fetch; from now on the reader waits for its answer."""
        changed = [(partition, self.offsets[partition]) for partition in sorted(self.changed)]
        session = self.requester.request(changed, sorted(self.forgotten))
        self.turns = (
            {}
            if session.is_full
            else {partition: self.turns[partition] for partition in self.turns.keys() & self.held.keys()}
        )
        self.told &= self.turns.keys()
        for number, _ in session.partitions:
            if number not in self.turns:
                self._take_turn(number)
        self.changed, self.forgotten = {}, {}
        self.last_number += 1
        self.awaited = self.last_number
        return Sender(self.index, self.last_number), self.request_of(session)

    def _take_turn(self, number: int) -> None:
        self._last_turn += 1
        self.turns[number] = self._last_turn

    def close(self) -> tuple[Sender, FetchRequest] | None:
        """Make a fetch that ends the session; the reader does not wait for its answer."""
        session = self.requester.close()
        self.awaited = 0
        return None if session is None else (Sender(self.index, 0), self.request_of(session))

    def request_of(self, session: SessionRequest[int, int]) -> FetchRequest:
        named = tuple(self._partition(number, offset) for number, offset in session.partitions)
        return FetchRequest(
            replica_id=self.replica_id,
            replica_state=ReplicaState(replica_id=self.replica_id, replica_epoch=self.broker_epoch),
            secret=SECRET,
            max_wait_ms=0 if session.is_full or session.is_slice else 500,
            min_bytes=1,
            max_bytes=self.max_bytes,
            session_id=session.session_id,
            session_epoch=session.session_epoch,
            topics=(FetchTopic(topic_id=TOPIC_ID, partitions=named),) if named else (),
            forgotten_topics_data=(
                (ForgottenTopic(topic_id=TOPIC_ID, partitions=session.forgotten),) if session.forgotten else ()
            ),
        )

    def _partition(self, number: int, offset: int) -> FetchPartition:
        stated = NOT_STATED
        if self.is_follower and self.version >= 18:
            stated = min(self.marks[number], offset)
        return FetchPartition(
            partition=number,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
            current_leader_epoch=0 if self.is_follower else -1,
            log_start_offset=0,
            high_watermark=stated,
        )

    def give_up(self) -> None:
        """Stop the wait: no answer has come in time."""
        self.awaited = 0
        self.requester.failed()

    def hear(self, answer: Answer) -> dict[int, PartitionData] | None:
        """Take the answer that the reader waits for; returns the partitions of the answer if the session accepts it."""
        response = answer.response
        self.awaited = 0
        named = {data.partition_index: data for topic in response.responses for data in topic.partitions}
        if not self.requester.answered(
            error_code=response.error_code, session_id=response.session_id, keys=list(named)
        ):
            return None
        return named

    def take(self, named: dict[int, PartitionData], *, was_full: bool) -> None:
        """Use the data of an accepted answer, to a full or an incremental fetch."""
        held = self.held
        for number, data in named.items():
            if data.records and not was_full:
                self._take_turn(number)
            self.told.add(number)
            if data.error_code:
                self.told.discard(number)
            if not self.is_wanted(number):
                continue
            if data.error_code:
                self.known[number] = None
                if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.offsets[number] = data.log_start_offset
                    self.changed[number] = None
            else:
                self.known[number] = (data.high_watermark, data.log_start_offset)
                self.marks[number] = max(self.marks[number], data.high_watermark)
                # A small request may leave out a new offset: the records that the reader has come again then.
                if data.records and held[number] == self.offsets[number]:
                    self.offsets[number] += len(data.records) // RECORD_BYTES
                    self.changed[number] = None

    def is_wanted(self, number: int) -> bool:
        """Whether data of this partition may be used: it was not forgotten since the fetch."""
        return number in self.wanted and number not in self.forgotten

    def has_all(self, number: int, truth: Truth) -> bool:
        """Whether an answer could tell the reader nothing new of a partition."""
        return (
            truth.is_readable
            and self.known[number] == (truth.high_watermark, truth.log_start_offset)
            and not self.has_records(self.offsets[number], truth)
            and self.offsets[number] >= truth.log_start_offset
        )

    def has_records(self, offset: int, truth: Truth) -> bool:
        """Whether an answer could have records from this offset on."""
        return offset < self.end_of(truth) and not (self.is_follower and truth.is_held_back)

    def end_of(self, truth: Truth) -> int:
        """The end of what the reader may read."""
        return truth.log_end_offset if self.is_follower else truth.high_watermark

    @property
    def held(self) -> dict[int, int]:
        """The partitions of the session with their offsets, in the reader's view."""
        held: Any = self.requester._held
        return dict(held)
