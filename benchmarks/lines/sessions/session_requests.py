"""CPU of the requester's end of a fetch session: building a request and taking its answer (KIP-227)."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.downloads.kafka_jars import JARS, absent
from benchmarks.lines.sessions.fetch_sessions import CHANGES, PER_TOPIC, SIZES
from benchmarks.loads.sessions import IDS_VERSION, spread
from benchmarks.peers.peer import TAILRACE
from benchmarks.results.figures import Chart, Column, Section
from benchmarks.results.rounds import Rounds
from benchmarks.wire import framed
from tailrace.fetch_session.requester import FetchSessionRequester, SessionRequest
from tailrace.protocol.headers import decode_response, encode_response
from tailrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

NAME = "session-requests"
DEFAULT = SIZES[-1]
SESSION_ID = 4711
FULL = -1
JAVA = "Kafka's Java client"
PROGRAM = Path(__file__).parent / "FetchSessions.java"
PARTITIONS_OF_A_ROUND = 400_000
"""The number of partitions that all fetches of a round together name or examine."""
MOST_FETCHES, LEAST_FETCHES = 2_000, 3
JAVA_TIMEOUT_S = 300

CONDITIONS = (
    f"The requester alone, without a socket: topics of {PER_TOPIC:,} partitions, Fetch v17. Request: the session takes "
    "the new offsets of so many partitions, and the request is built and encoded. Answer: an answer with so many "
    f"partitions, without records, is decoded and taken. Full: all partitions, in a new session. {JAVA} is measured by "
    "its FetchSessionHandler with its own codec; it is given all partitions each time, as by its consumer, and has "
    "made as many fetches to warm up as are measured. CPU time of the thread."
)


class Place(NamedTuple):
    """A partition, the key of a session."""

    topic_id: bytes
    partition: int


def measure(rounds: Rounds, most: int) -> Section:
    why = absent()
    if why:
        rounds.miss(JAVA, why)
    for size in (size for size in SIZES if size <= most):
        for changed in (FULL, *(count for count in CHANGES if count <= size)):
            fetches = min(max(PARTITIONS_OF_A_ROUND // size, LEAST_FETCHES), MOST_FETCHES)
            for _ in rounds:
                _record(rounds, size, changed, TAILRACE, _Session(size).measure(changed, fetches))
                if not why:
                    _record(rounds, size, changed, JAVA, _java(size, changed, fetches))
    columns = (
        Column("request_us", "request, CPU us", digits=1, beside=(JAVA,)),
        Column("answer_us", "answer, CPU us", digits=1, beside=(JAVA,)),
        Column("cpu_us", "both, CPU us", digits=1, beside=(JAVA,), shows_rounds=True),
    )
    return rounds.section(
        NAME,
        "The requester's end of one fetch",
        CONDITIONS,
        columns,
        chart=Chart(
            "cpu_us",
            "CPU microseconds of request and answer, median; points are rounds; logarithmic",
            is_logarithmic=True,
        ),
    )


class Cost(NamedTuple):
    """CPU microseconds for one fetch."""

    request_us: float
    answer_us: float


def _record(rounds: Rounds, size: int, changed: int, server: str, cost: Cost) -> None:
    test = f"{size:,} partitions, " + ("full" if changed == FULL else f"{changed:,} changed")
    rounds.record(test, server, **cost._asdict(), cpu_us=sum(cost))


class _Session:
    """Our requester with these partitions, the offset of each as its value."""

    def __init__(self, partitions: int) -> None:
        self._places = [
            Place((number // PER_TOPIC).to_bytes(16, "big"), number % PER_TOPIC) for number in range(partitions)
        ]
        self._offsets = [0] * partitions
        self._requester: FetchSessionRequester[Place, int] = FetchSessionRequester()

    def measure(self, changed: int, fetches: int) -> Cost:
        everything = range(len(self._places))
        chosen = everything if changed == FULL else spread(changed, len(self._places))
        answer = self._answer(chosen)
        if changed != FULL:
            self._fetch(everything, self._answer(everything))
        request_s = answer_s = 0.0
        for _ in range(fetches):
            if changed == FULL:
                self._requester = FetchSessionRequester()
            for number in chosen:
                self._offsets[number] += 1
            fetch = self._fetch(chosen, answer)
            request_s += fetch[0]
            answer_s += fetch[1]
        return Cost(request_s / fetches * 1e6, answer_s / fetches * 1e6)

    def _fetch(self, chosen: Sequence[int], answer: bytes) -> tuple[float, float]:
        """CPU seconds of the request and of the answer."""
        places, offsets = self._places, self._offsets
        began = time.thread_time()
        request = self._requester.request([(places[number], offsets[number]) for number in chosen], ())
        framed(_message(request), IDS_VERSION)
        sent = time.thread_time()
        found = decode_response(FetchResponse, IDS_VERSION, answer)[1]
        keys = [
            Place(topic.topic_id, partition.partition_index)
            for topic in found.responses
            for partition in topic.partitions
        ]
        counts = self._requester.answered(error_code=found.error_code, session_id=found.session_id, keys=keys)
        taken = time.thread_time()
        assert counts, "the answer fits its request"
        return sent - began, taken - sent

    def _answer(self, chosen: Sequence[int]) -> bytes:
        by_topic: dict[bytes, list[PartitionData]] = {}
        for number in chosen:
            place = self._places[number]
            data = PartitionData(
                partition_index=place.partition,
                high_watermark=7,
                last_stable_offset=7,
                log_start_offset=0,
                aborted_transactions=None,
                records=b"",
            )
            by_topic.setdefault(place.topic_id, []).append(data)
        topics = tuple(
            FetchableTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic.items()
        )
        response = FetchResponse(session_id=SESSION_ID, responses=topics)
        return b"".join(encode_response(response, IDS_VERSION, 1))


def _message(request: SessionRequest[Place, int]) -> FetchRequest:
    by_topic: dict[bytes, list[FetchPartition]] = {}
    for (topic_id, partition), offset in request.partitions:
        by_topic.setdefault(topic_id, []).append(
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1_048_576)
        )
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=tuple(FetchTopic(topic_id=topic_id, partitions=parts) for topic_id, parts in by_topic.items()),
    )


def _java(size: int, changed: int, fetches: int) -> Cost:
    command = ["java", "-cp", f"{JARS}/*", str(PROGRAM), *map(str, (size, PER_TOPIC, changed, fetches, fetches))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=True)
    request_ns, answer_ns = map(int, done.stdout.split())
    return Cost(request_ns / 1000, answer_ns / 1000)
