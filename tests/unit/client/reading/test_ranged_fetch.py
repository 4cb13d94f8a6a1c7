"""Ranges of logs with gaps, markers and near replicas. The node here is scripted."""

import asyncio
import contextlib
import dataclasses
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.client.reader_settings import RangedFetchSettings
from tailrace.client.reading import ranged_fetch
from tailrace.client.reading.ranged_fetch import AsyncRangedFetch
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange, hash_of
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.declaration import replace
from tailrace.protocol.headers import encode_response
from tailrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tailrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.protocol.request_headers import decode_request_header
from tailrace.protocol.schema import decode
from testkit.clients.scripted_nodes import ScriptedNodes, ScriptedReplica

PARTITION = TopicPartition("orders", 0)
TOPIC_ID = b"1" * 16
APIS = {1: 13, 2: 6, 3: 12, 18: 3}

Fetch = Callable[[int, str], PartitionData]
"""(offset, rack) -> answer."""


class ScriptedLeader:
    """Leader of one partition; a script answers its fetches."""

    def __init__(self, fetch: Fetch, is_unknown: Callable[[list[int]], bool]) -> None:
        self._fetch = fetch
        self._is_unknown = is_unknown
        self.port = 0
        self.offsets: list[int] = []
        self.waits: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(length)
                header, position = decode_request_header(frame)
                response = self._answer(header.api_key, header.api_version, frame, position)
                body = b"".join(encode_response(response, header.api_version, header.correlation_id))
                writer.write(struct.pack(">i", len(body)) + body)

    def _answer(self, key: int, version: int, frame: bytes, position: int) -> object:
        if key == 18:
            keys = tuple(ApiVersion(api_key=api, min_version=0, max_version=newest) for api, newest in APIS.items())
            return ApiVersionsResponse(error_code=0, api_keys=keys)
        if key == 3:
            return self._metadata()
        if key == 2:
            return self._no_offsets()
        request = decode(FetchRequest, version, frame, position)
        offset = request.topics[0].partitions[0].fetch_offset
        self.offsets.append(offset)
        self.waits.append(request.max_wait_ms)
        answer = self._fetch(offset, request.rack_id if version >= 11 else "")
        if version < 11:
            answer = replace(answer, preferred_read_replica=-1)
        elif answer.preferred_read_replica >= 0:
            answer = replace(answer, records=None)
        return FetchResponse(
            responses=(FetchableTopicResponse(topic=PARTITION.topic, topic_id=TOPIC_ID, partitions=(answer,)),)
        )

    @staticmethod
    def _no_offsets() -> ListOffsetsResponse:
        """The node does not have the requested partition, though metadata may."""
        refused = ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name=PARTITION.topic, partitions=(refused,)),))

    def _metadata(self) -> MetadataResponse:
        brokers = (MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port),)
        if self._is_unknown(self.offsets):
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            gone = MetadataResponseTopic(name=PARTITION.topic, error_code=unknown, partitions=())
            return MetadataResponse(brokers=brokers, controller_id=1, topics=(gone,))
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=1, leader_epoch=0, replica_nodes=(1, 2), isr_nodes=(1, 2)
        )
        return MetadataResponse(
            brokers=brokers,
            controller_id=1,
            topics=(MetadataResponseTopic(name=PARTITION.topic, topic_id=TOPIC_ID, partitions=(partition,)),),
        )


def _read(
    fetch: Fetch,
    start: int,
    end: int,
    *,
    is_unknown: Callable[[list[int]], bool] = lambda asked: False,
    **settings: object,
) -> tuple[list[int], list[int]]:
    """The offsets of the range's records, and the offsets that were asked for.

    `is_unknown` tells from the offsets asked for so far whether the cluster says that there is no such topic.
    """

    async def run() -> tuple[list[int], list[int]]:
        node = ScriptedLeader(fetch, is_unknown)
        server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
        node.port = server.sockets[0].getsockname()[1]
        async with server, AsyncRangedFetch(f"127.0.0.1:{node.port}", **settings) as reader:  # type: ignore[arg-type]
            offsets = [
                record.offset
                async for chunk in reader.fetch_range(PARTITION, start, end)
                for buffer in chunk.buffers
                for position, _ in iter_batches(buffer)
                for record in read_records(buffer, position)
            ]
        return [offset for offset in offsets if start <= offset < end], node.offsets

    return asyncio.run(run())


def _batch(base_offset: int, count: int = 1, *, is_control: bool = False) -> bytes:
    record = Record(0, 1, b"\0\0\0\1" if is_control else None, b"v")
    transaction = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True, "is_control": True}
    return bytes(build_batch([record] * count, base_offset=base_offset, **(transaction if is_control else {})))  # type: ignore[arg-type]


def _log(*batches: tuple[int, bytes], end: int) -> Fetch:
    """A log of (last offset, batch), from which a fetch gets one batch at a time."""

    def fetch(offset: int, rack: str) -> PartitionData:
        found = next((batch for last_offset, batch in batches if last_offset >= offset), None)
        return _data(found, end=end)

    return fetch


def _data(records: bytes | None, *, end: int = 100, replica: int = -1, error: int = 0) -> PartitionData:
    return PartitionData(
        partition_index=0,
        error_code=error,
        high_watermark=end,
        last_stable_offset=end,
        log_start_offset=0,
        aborted_transactions=None,
        preferred_read_replica=replica,
        records=records,
    )


def test_a_range_that_ends_in_a_gap_of_compaction_ends_with_the_batch_behind_it() -> None:
    fetch = _log((2, _batch(0, 3)), (9, _batch(9)), end=10)
    assert _read(fetch, 0, 7) == ([0, 1, 2], [0, 3])


def test_a_range_that_ends_with_a_marker_needs_no_record_behind_it() -> None:
    fetch = _log((2, _batch(0, 3)), (3, _batch(3, is_control=True)), end=4)
    assert _read(fetch, 0, 4) == ([0, 1, 2], [0, 3])


def test_a_range_of_markers_only_is_empty() -> None:
    assert _read(_log((3, _batch(3, is_control=True)), end=4), 3, 4) == ([], [3])


@pytest.mark.parametrize("replica_fails", ["is not in the cluster", "is not a follower any more"])
def test_the_leader_serves_where_a_near_replica_cannot(replica_fails: str) -> None:
    """KIP-392: the leader names a replica in the reader's rack; once that replica has failed the leader is to serve."""
    gone, replica = 2, 1
    named = gone if replica_fails == "is not in the cluster" else replica
    asked_for_rack = []

    def fetch(offset: int, rack: str) -> PartitionData:
        asked_for_rack.append(rack)
        if not rack:
            return _data(_batch(0, 3), end=3)
        if len(asked_for_rack) == 2:
            return _data(None, error=ErrorCode.INVALID_REQUEST)
        return _data(None, replica=named)

    assert _read(fetch, 0, 3, rack="a", timeout_ms=60_000)[0] == [0, 1, 2]
    assert asked_for_rack == (["a", ""] if named == gone else ["a", "a", ""])


class TwoReplicas:
    """A partition that node 1 leads and node 2 follows, in the rack of the reader; each node has ten records."""

    def __init__(self) -> None:
        self.leader, self.follower = ScriptedReplica(), ScriptedReplica()
        for replica in (self.leader, self.follower):
            replica.epochs = [0] * 10
        self.leader.preferred = 2
        self.nodes = ScriptedNodes(self._answer, {PARTITION: 1})
        settings = RangedFetchSettings("127.0.0.1:1", rack="a", max_wait_ms=1, timeout_ms=60_000)
        self.reader = AsyncRangedFetch.of(settings, self.nodes)

    async def _answer(self, node_id: int, request: Any) -> Any:
        return await {1: self.leader, 2: self.follower}[node_id].answer(request)

    async def read(self, start: int, end: int) -> list[int]:
        """The offsets of this range."""
        return [
            record.offset
            async for chunk in self.reader.fetch_range(PARTITION, start, end)
            for buffer in chunk.buffers
            for record in read_records(buffer)
        ]

    @property
    def served(self) -> list[int]:
        """Return the nodes that were asked, and forget them."""
        nodes = [node for node, request in self.nodes.asked if isinstance(request, FetchRequest)]
        self.nodes.asked.clear()
        return nodes


async def test_ranges_are_read_from_the_near_replica_and_the_leader_is_asked_once_a_lease() -> None:
    replicas = TwoReplicas()
    assert await replicas.read(0, 2) == [0, 1]
    assert replicas.served == [1, 2, 2]
    assert await replicas.read(2, 4) == [2, 3]
    assert replicas.served == [2, 2]
    replicas.nodes.passed_ms += 300_001
    assert await replicas.read(4, 5) == [4]
    assert replicas.served == [1, 2]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ],
)
async def test_the_leader_serves_after_a_fault_of_the_near_replica_and_names_it_again_after_a_minute(
    code: ErrorCode,
) -> None:
    replicas = TwoReplicas()
    assert await replicas.read(0, 1) == [0]
    replicas.follower.faults = [code]
    assert replicas.served == [1, 2]
    assert await replicas.read(1, 3) == [1, 2]
    assert replicas.served == [2, 1, 1]
    assert await replicas.read(3, 4) == [3]
    assert replicas.served == [1]
    replicas.nodes.passed_ms += 60_001
    assert await replicas.read(4, 5) == [4]
    assert replicas.served == [1, 2]


async def test_the_leader_serves_when_the_near_replica_is_gone() -> None:
    replicas = TwoReplicas()
    replicas.nodes.gone = {2}
    assert await replicas.read(0, 10) == list(range(10))
    assert set(replicas.served) == {1}


async def test_a_range_beyond_the_end_of_the_near_replica_waits_for_it() -> None:
    replicas = TwoReplicas()
    replicas.follower.epochs = [0] * 3
    answer, empty = replicas.follower.answer, asyncio.Event()

    async def watched(request: Any) -> Any:
        response = await answer(request)
        if response.responses[0].partitions[0].records is None:
            empty.set()
            await asyncio.sleep(0)
        return response

    replicas.follower.answer = watched  # type: ignore[method-assign]
    reading = asyncio.create_task(replicas.read(2, 4))
    async with asyncio.timeout(60):
        await empty.wait()
    replicas.follower.epochs.append(0)
    assert await reading == [2, 3]
    first, *others = replicas.served
    assert first == 1
    assert set(others) == {2}


@pytest.mark.parametrize("rack", ["", "a"])
def test_a_leader_whose_selector_goes_by_something_else_than_the_rack_serves_when_the_replica_is_gone(
    rack: str,
) -> None:
    """KIP-392: a selector may choose 'using e.g. the client address'."""

    def fetch(offset: int, rack: str) -> PartitionData:
        return _data(_batch(offset), replica=2)

    offsets, _ = _read(fetch, 0, 3, rack=rack, timeout_ms=5_000)
    assert offsets == [0, 1, 2]


async def test_the_leader_serves_where_the_near_replica_stands_still() -> None:
    replicas = TwoReplicas()
    replicas.follower.epochs = [0] * 3
    assert await replicas.read(0, 5) == [0, 1, 2, 3, 4]
    assert replicas.served == [1, 2, 2, 2, 2, 2, 2, 1, 1]


async def test_a_range_that_no_replica_has_names_the_last_that_was_asked() -> None:
    replicas = TwoReplicas()
    replicas.reader._settings = dataclasses.replace(replicas.reader._settings, timeout_ms=0)
    with pytest.raises(KafkaError, match=r"no record at or after offset 10 .* from the leader at last"):
        await replicas.read(10, 11)


def test_damaged_bytes_are_an_error_that_says_where() -> None:
    def fetch(offset: int, rack: str) -> PartitionData:
        batch = bytearray(_batch(0, 3))
        batch[16] = 1  # magic
        return _data(bytes(batch))

    with pytest.raises(KafkaError, match="orders-0"):
        _read(fetch, 0, 3, timeout_ms=300)


def _leaves_after(batch: bytes) -> Fetch:
    """A leader that gives the first batch and has no such topic from then on."""

    def fetch(offset: int, rack: str) -> PartitionData:
        return _data(batch) if offset == 0 else _data(None, error=ErrorCode.UNKNOWN_TOPIC_ID)

    return fetch


def test_a_range_of_a_topic_deleted_meanwhile_fails_before_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read does not wait kafkaConsumer.pollTimeoutMs for a topic that stays absent from metadata."""
    monkeypatch.setattr(ranged_fetch, "UNKNOWN_WAIT_MS", 200, raising=False)
    with pytest.raises(KafkaError, match="orders-0: .* 3 to 99 ") as gone:
        _read(_leaves_after(_batch(0, 3)), 0, 100, is_unknown=lambda asked: len(asked) > 1, timeout_ms=60_000)
    assert gone.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_next_range_of_a_deleted_topic_fails_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may have a hundred partitions of the topic."""
    questions: list[int] = []

    def is_gone(_: object) -> bool:
        questions.append(1)
        return True

    monkeypatch.setattr(ranged_fetch, "UNKNOWN_WAIT_MS", 200, raising=False)
    node = ScriptedLeader(_log(end=0), is_gone)
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    node.port = server.sockets[0].getsockname()[1]
    async with server, AsyncRangedFetch(f"127.0.0.1:{node.port}", timeout_ms=60_000) as reader:
        for partition in range(20):
            with pytest.raises(KafkaError) as gone:
                await anext(reader.fetch_range(TopicPartition(PARTITION.topic, partition), 0, 100))
            assert gone.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(questions) < 19 + 10, "a question per partition, and more for the first: its absence may be a mistake"


def test_a_topic_that_metadata_leaves_out_for_a_moment_is_read_on() -> None:
    unknown_for = iter(range(3))

    def fetch(offset: int, rack: str) -> PartitionData:
        if offset == 0:
            return _data(_batch(0, 3))
        return _data(None, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if next(errors, None) else _data(_batch(3))

    errors = iter([True])
    read, asked = _read(
        fetch, 0, 4, is_unknown=lambda asked: len(asked) == 2 and next(unknown_for, None) is not None, timeout_ms=60_000
    )
    assert (read, asked) == ([0, 1, 2, 3], [0, 3, 3])


def test_a_leader_that_resigns_after_offset_out_of_range_has_lost_nothing() -> None:
    """A new leader may lack records, and may lose its leadership before it answers ListOffsets."""
    refusals = [ErrorCode.OFFSET_OUT_OF_RANGE]

    def fetch(offset: int, rack: str) -> PartitionData:
        if offset == 3 and refusals:
            return _data(None, error=refusals.pop())
        return _data(_batch(offset, 3))

    assert _read(fetch, 0, 6, timeout_ms=60_000) == ([0, 1, 2, 3, 4, 5], [0, 3, 3])


def test_a_reader_by_key_filters_itself_where_the_leader_does_not_and_waits_only_for_records() -> None:
    """A fetch of key ranges that waited would wait at the end of the log, although its range is over."""
    first, last = (build_batch([Record(0, 1, key, b"v", ()) for key in keys]) for keys in ((b"a", b"b"), (b"c", b"a")))
    last[:8] = struct.pack(">q", 2)
    answers = iter([_data(None, end=2), _data(bytes(first), end=2), _data(None, end=2), _data(bytes(last), end=4)])
    wanted = KeyRange(hash_of(b"a", 0), hash_of(b"a", 0))

    async def run() -> tuple[list[tuple[int, bytes | None]], list[int]]:
        node = ScriptedLeader(lambda offset, rack: next(answers), lambda asked: False)
        server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
        node.port = server.sockets[0].getsockname()[1]
        async with server, AsyncRangedFetch(f"127.0.0.1:{node.port}", max_wait_ms=70) as reader:
            found = [
                (record.offset, record.key)
                async for chunk in reader.fetch_range(PARTITION, 0, 4, key_ranges=(wanted,))
                for buffer in chunk.buffers
                for position, _ in iter_batches(buffer)
                for record in read_records(buffer, position)
            ]
        return found, node.waits

    assert asyncio.run(run()) == ([(0, b"a"), (3, b"a")], [0, 70, 0, 70])
