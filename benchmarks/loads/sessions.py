"""Fetches of many partitions over a raw socket: full fetches, and incremental fetches of a fetch session (KIP-227).

Frames are made before they are sent, and only the heads of answers are examined, so that the client costs the same
whatever the broker does. One connection, one request in flight.
"""

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from benchmarks.wire import Wire, framed
from tailrace.protocol.headers import decode_response
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.primitives import Buffer

NAMES_VERSION, IDS_VERSION = 12, 17
"""The versions of Fetch, by names of topics and by ids."""
METADATA_VERSION = 12
PRODUCE_VERSION = 9
MAX_BYTES = 50_000_000
PARTITION_MAX_BYTES = 1_048_576
SLICE = 10_000
"""The number of partitions that are added to a session at a time."""
MAX_EPOCH = 2**31 - 1
NO_SESSION = (0, -1)
NEW_SESSION = (0, 0)

_HEAD = Struct(">i x i h i")
"""The head of an answer from version 12 on: correlation id, no tags, throttle time, error and session."""
_PREFIX_BYTES = 4

Clock = Callable[[], float]
"""Returns the CPU seconds of the broker so far."""


class Place(NamedTuple):
    """A partition."""

    topic: str
    topic_id: bytes
    partition: int


class Exchange(NamedTuple):
    """The sizes of a request and its answer, lengths included, and the broker's CPU seconds for both."""

    request_bytes: int
    answer_bytes: int
    cpu_s: float


class RefusedFetch(Exception):
    """Raised when the broker answers a fetch with an error, or closes the session; the text says which of both."""


class Fetcher:
    """A consumer of these partitions at one broker, on a connection of its own."""

    def __init__(self, wire: Wire, places: Sequence[Place], *, version: int = IDS_VERSION, clock: Clock) -> None:
        self.places = places
        self.offsets = [0] * len(places)
        self.session_id = 0
        self._wire = wire
        self._version = version
        self._clock = clock
        self._epoch = 0
        self._idle = framed(self._request((0x7EADBEEF, 0), ()), version)
        self._session_at = self._idle.index(b"\x7e\xad\xbe\xef")
        self.answer: Buffer = b""
        """The last answer, without its length."""

    def full_frame(self, chosen: Iterable[int]) -> bytes:
        """A fetch of these places, by their numbers, without a session."""
        return framed(self._request(NO_SESSION, chosen), self._version)

    def open(self) -> None:
        """Make a session of all places. The places of a large session are added in slices."""
        count = len(self.places)
        self.take(framed(self._request(NEW_SESSION, range(min(SLICE, count))), self._version))
        self.session_id = self._answered_session()
        self._epoch = 1
        for start in range(SLICE, count, SLICE):
            self.incremental(range(start, min(start + SLICE, count)))

    def incremental_frame(self, changed: Iterable[int] = (), *, max_bytes: int = MAX_BYTES) -> bytes:
        """The session's next fetch, which names the changed places. Each frame must be sent with `take` or
        `take_row`."""
        session = (self.session_id, self._epoch)
        self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1
        if not changed and max_bytes == MAX_BYTES:
            frame = bytearray(self._idle)
            _SESSION.pack_into(frame, self._session_at, *session)
            return bytes(frame)
        return framed(self._request(session, changed, max_bytes=max_bytes), self._version)

    def incremental(self, changed: Iterable[int] = ()) -> Exchange:
        """Send a fetch of the session. Raises RefusedFetch if the broker does not have the session in the same
        state."""
        exchange = self.take(self.incremental_frame(changed))
        self.check_session()
        return exchange

    def close_session(self) -> None:
        """Have the broker forget the session."""
        self.take(framed(self._request((self.session_id, -1), ()), self._version))
        self.session_id = 0

    def take(self, frame: bytes) -> Exchange:
        """Send a frame and read its answer."""
        before = self._clock()
        self._wire.socket.sendall(frame)
        self.answer = self._wire.receive()
        return Exchange(len(frame), len(self.answer) + _PREFIX_BYTES, self._clock() - before)

    def take_row(self, frames: Sequence[bytes]) -> list[Exchange]:
        """Send frames together, and read the answers; the CPU time is divided among the answers."""
        before = self._clock()
        self._wire.socket.sendall(b"".join(frames))
        answers = []
        for _ in frames:
            self.answer = self._wire.receive()
            self.check_session()
            answers.append(len(self.answer) + _PREFIX_BYTES)
        cpu_s = (self._clock() - before) / len(frames)
        return [Exchange(len(frame), size, cpu_s) for frame, size in zip(frames, answers, strict=True)]

    def check_session(self) -> None:
        """Raises RefusedFetch if the last answer is not of this session."""
        if (session := self._answered_session()) != self.session_id:
            raise RefusedFetch(f"answered for session {session}, not {self.session_id}")

    def answered_partitions(self) -> int:
        """The number of partitions in the last answer, read in full. Raises RefusedFetch if a partition has an
        error."""
        answer = decode_response(FetchResponse, self._version, self.answer)[1]
        partitions = [partition for topic in answer.responses for partition in topic.partitions]
        errors = {partition.error_code for partition in partitions} - {0}
        if errors:
            raise RefusedFetch(f"errors {sorted(errors)} of partitions")
        return len(partitions)

    def _answered_session(self) -> int:
        _, _, error, session_id = _HEAD.unpack_from(self.answer)
        if error:
            raise RefusedFetch(f"error {error}")
        if not session_id:
            raise RefusedFetch("no session")
        return int(session_id)

    def _request(self, session: tuple[int, int], chosen: Iterable[int], *, max_bytes: int = MAX_BYTES) -> FetchRequest:
        by_topic: dict[tuple[str, bytes], list[FetchPartition]] = {}
        for number in chosen:
            topic, topic_id, partition = self.places[number]
            by_topic.setdefault((topic, topic_id), []).append(
                FetchPartition(
                    partition=partition,
                    fetch_offset=self.offsets[number],
                    partition_max_bytes=PARTITION_MAX_BYTES,
                )
            )
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            session_id=session[0],
            session_epoch=session[1],
            topics=tuple(
                FetchTopic(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in by_topic.items()
            ),
        )


_SESSION = Struct(">ii")


def places_of(wire: Wire, topics: Sequence[str]) -> list[Place]:
    """The partitions of these topics, topic by topic."""
    wanted = tuple(MetadataRequestTopic(name=name) for name in topics)
    answer = wire.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), METADATA_VERSION)
    by_name = {topic.name: topic for topic in answer.topics}
    return [
        Place(name, by_name[name].topic_id, partition)
        for name in topics
        for partition in range(len(by_name[name].partitions))
    ]


def spread(count: int, among: int) -> list[int]:
    """This number of different numbers below `among`, at equal distances."""
    return [number * among // count for number in range(count)]


def appending_frame(places: Iterable[Place], records: Buffer) -> bytes:
    """A Produce that appends the same batch to every given partition, acks=1."""
    by_topic: dict[str, list[PartitionProduceData]] = {}
    for place in places:
        by_topic.setdefault(place.topic, []).append(PartitionProduceData(index=place.partition, records=records))
    topics = tuple(TopicProduceData(name=name, partition_data=tuple(data)) for name, data in by_topic.items())
    return framed(ProduceRequest(acks=1, timeout_ms=60_000, topic_data=topics), PRODUCE_VERSION)
