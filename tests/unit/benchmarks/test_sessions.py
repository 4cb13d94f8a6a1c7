"""Frames of the session driver say what the protocol's own codec reads in them."""

import struct
from collections.abc import Sequence
from typing import cast
from uuid import uuid4

import pytest

from benchmarks.loads.sessions import (
    IDS_VERSION,
    MAX_EPOCH,
    NAMES_VERSION,
    PRODUCE_VERSION,
    Fetcher,
    Place,
    RefusedFetch,
    appending_frame,
    places_of,
    spread,
)
from benchmarks.wire import Wire, batch
from tailrace.client.blocking import Admin
from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.protocol.messages.produce import ProduceRequest
from tailrace.protocol.request_headers import decode_request_header
from tailrace.protocol.schema import decode
from tailrace.testing import Cluster

PLACES = [Place("one", b"1" * 16, 0), Place("one", b"1" * 16, 1), Place("two", b"2" * 16, 0)]


class _Wire:
    """Takes frames, and gives the answers that were put into it."""

    def __init__(self, answers: Sequence[bytes] = ()) -> None:
        self.sent: list[bytes] = []
        self._answers = list(answers)
        self.socket = self

    def sendall(self, frame: bytes) -> None:
        self.sent.append(frame)

    def receive(self) -> bytes:
        return self._answers.pop(0)


def read(frame: bytes, version: int) -> FetchRequest:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, position = decode_request_header(frame[4:])
    assert header.api_version == version
    return decode(FetchRequest, version, frame[4 + position :])


def answer(session_id: int, error: int = 0) -> bytes:
    """The head of an answer of version 12 or later, and no topics."""
    return struct.pack(">ixihibx", 1, 0, error, session_id, 1)


def fetcher(answers: Sequence[bytes] = (), version: int = IDS_VERSION) -> tuple[Fetcher, _Wire]:
    wire = _Wire(answers)
    return Fetcher(cast(Wire, wire), PLACES, version=version, clock=lambda: 0.0), wire


@pytest.mark.parametrize("version", [NAMES_VERSION, IDS_VERSION])
def test_a_full_frame_names_partitions_by_topic_with_their_offsets_and_no_session(version: int) -> None:
    reader, _ = fetcher(version=version)
    reader.offsets[1] = 7
    request = read(reader.full_frame((0, 1, 2)), version)
    assert (request.session_id, request.session_epoch) == (0, -1)
    found = [
        (topic.topic or topic.topic_id[:1], [p.fetch_offset for p in topic.partitions]) for topic in request.topics
    ]
    assert found in ([("one", [0, 7]), ("two", [0])], [(b"1", [0, 7]), (b"2", [0])])


@pytest.mark.parametrize("version", [NAMES_VERSION, IDS_VERSION])
def test_fetches_of_a_session_count_its_epoch_and_name_only_changes(version: int) -> None:
    reader, wire = fetcher([answer(4711)] * 4, version)
    reader.open()
    reader.incremental()
    reader.incremental([2])
    reader.close_session()
    requests = [read(frame, version) for frame in wire.sent]
    assert [(each.session_id, each.session_epoch) for each in requests] == [(0, 0), (4711, 1), (4711, 2), (4711, -1)]
    assert [sum(len(topic.partitions) for topic in each.topics) for each in requests] == [3, 0, 1, 0]


def test_the_epoch_after_the_largest_is_1() -> None:
    reader, wire = fetcher([answer(1)] * 3)
    reader.open()
    reader._epoch = MAX_EPOCH
    reader.incremental()
    reader.incremental()
    assert [read(frame, IDS_VERSION).session_epoch for frame in wire.sent] == [0, MAX_EPOCH, 1]


def test_bytes_are_those_of_whole_frames() -> None:
    reader, wire = fetcher([answer(1)] * 2)
    reader.open()
    exchange = reader.incremental([1])
    assert (exchange.request_bytes, exchange.answer_bytes) == (len(wire.sent[1]), len(answer(1)) + 4)


@pytest.mark.parametrize(
    ("found", "why"), [(answer(0, 70), "error 70"), (answer(0), "no session"), (answer(5), "session 5")]
)
def test_an_answer_of_no_or_another_session_is_refused(found: bytes, why: str) -> None:
    reader, _ = fetcher([answer(4711), found])
    reader.open()
    with pytest.raises(RefusedFetch, match=why):
        reader.incremental()


def test_an_append_has_the_batch_for_each_partition() -> None:
    records = batch(1, 10)
    frame = appending_frame(PLACES, records)
    _, position = decode_request_header(frame[4:])
    request = decode(ProduceRequest, PRODUCE_VERSION, frame[4 + position :])
    found = [
        (topic.name, p.index, bytes(p.records or b"")) for topic in request.topic_data for p in topic.partition_data
    ]
    assert found == [("one", 0, records), ("one", 1, records), ("two", 0, records)]


@pytest.mark.parametrize(("count", "among"), [(0, 5), (1, 5), (3, 10), (10, 10)])
def test_spread_numbers_are_different_and_below_the_limit(count: int, among: int) -> None:
    numbers = spread(count, among)
    assert len(set(numbers)) == count
    assert all(0 <= number < among for number in numbers)


@pytest.mark.parametrize("version", [NAMES_VERSION, IDS_VERSION])
def test_a_node_keeps_a_session_of_slices_and_answers_with_changes_alone(
    tailrace_cluster: Cluster, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.loads.sessions.SLICE", 4)
    topics = [f"sessions-{uuid4()}" for _ in range(2)]
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics(dict.fromkeys(topics, 5))
    with Wire(tailrace_cluster.bootstrap_servers) as wire:
        places = places_of(wire, topics)
        reader = Fetcher(wire, places, version=version, clock=lambda: 0.0)
        reader.take(reader.full_frame(range(10)))
        assert reader.answered_partitions() == 10
        reader.open()
        reader.incremental()
        idle = reader.incremental()
        assert reader.answered_partitions() == 0
        assert max(idle.request_bytes, idle.answer_bytes) < 60
        wire.socket.sendall(appending_frame([places[2], places[7]], batch(1, 10)))
        wire.receive()
        found = 0
        while found < 2:  # acks=1 does not wait until they can be read
            reader.incremental()
            found = reader.answered_partitions()
        assert found == 2
        reader.offsets[2] = reader.offsets[7] = 1
        reader.incremental([2, 7])
        assert reader.answered_partitions() == 0
        reader.close_session()
