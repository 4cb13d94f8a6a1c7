"""Requests on a socket at the least cost for the client: frames are made before, answers are counted, not decoded.

They measure the limit of a server where a whole client would itself be the limit. Connections are blocking, without
threads.
"""

import selectors
import socket
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from struct import Struct
from typing import Any

from tailrace.protocol.headers import decode_response, encode_request, frame_prefix
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.record import Record, build_batch
from tailrace.protocol.registry import api_of

PRODUCE_VERSION = 9
FETCH_VERSION = 12
LIST_OFFSETS_VERSION = 7
TIMEOUT_S = 60
LATEST = -1

_LENGTH = Struct(">i")
_PREFIX_BYTES = 4


class Wire:
    """A connection to one broker. Raises OSError, also when no answer comes within a minute."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = memoryview(bytearray(1 << 16))

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Any, version: int) -> Any:
        """Send one request; returns the decoded answer."""
        self.socket.sendall(framed(request, version))
        return decode_response(api_of(type(request)).response, version, self.receive())[1]

    def receive(self) -> memoryview:
        """The next answer without its length; valid until the next call."""
        self._fill(self._room[:_PREFIX_BYTES])
        (length,) = _LENGTH.unpack_from(self._room)
        if length > len(self._room):
            self._room = memoryview(bytearray(length))
        answer = self._room[:length]
        self._fill(answer)
        return answer

    def _fill(self, room: memoryview) -> None:
        while room:
            count = self.socket.recv_into(room, 0, socket.MSG_WAITALL)
            if not count:
                raise ConnectionResetError("the server has closed the connection")
            room = room[count:]


def framed(request: Any, version: int) -> bytes:
    """The request in its form on the socket, behind its length."""
    chunks = encode_request(request, version, correlation_id=1, client_id="bench")
    return frame_prefix(chunks) + b"".join(chunks)


def batch(values: int, value_bytes: int) -> bytes:
    """A batch of this number of records of this size, with the present time: a server may refuse timestamps in the
    future."""
    now_ms = time.time_ns() // 1_000_000
    value = (bytes(range(256)) * (value_bytes // 256 + 1))[:value_bytes]
    return bytes(build_batch([Record(0, now_ms, None, value)] * values))


def produce_request(topic: str, partition: int, records: Buffer, *, acks: int = -1) -> ProduceRequest:
    """A Produce request with a batch for one partition; by default acks=all."""
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=(TopicProduceData(name=topic, partition_data=(data,)),)
    )


def produce_frame(topic: str, partition: int, records: Buffer, *, acks: int = -1) -> bytes:
    return framed(produce_request(topic, partition, records, acks=acks), PRODUCE_VERSION)


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=max_bytes, topics=(FetchTopic(topic=topic, partitions=(wanted,)),)
    )
    return framed(request, FETCH_VERSION)


def end_offsets(wire: Wire, topic: str, partitions: int) -> list[int]:
    """The next offset of each partition; -1 if this broker does not lead the partition, or not yet."""
    wanted = tuple(ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in range(partitions))
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=wanted),))
    (answer,) = wire.ask(request, LIST_OFFSETS_VERSION).topics
    return [found.offset for found in sorted(answer.partitions, key=lambda found: found.partition_index)]


def stream(wire: Wire, frames: Iterable[bytes], *, in_flight: int) -> int:
    """Send all frames, with at most this number unanswered; returns the bytes of all answers."""
    rest = iter(frames)
    waiting = 0
    for frame in islice(rest, in_flight):
        wire.socket.sendall(frame)
        waiting += 1
    received = 0
    while waiting:
        received += len(wire.receive())
        waiting -= 1
        for frame in islice(rest, 1):
            wire.socket.sendall(frame)
            waiting += 1
    return received


def flood(wires: Sequence[Wire], frames: Sequence[bytes], *, in_flight: int, seconds: float) -> int:
    """Send the one frame of each connection again and again, with this number unanswered; returns the number of answers
    after so many seconds.

    All answers of a connection must have the same size, as answers to Produce of one record have.
    """
    sizes = []
    for wire, frame in zip(wires, frames, strict=True):
        wire.socket.sendall(frame)
        sizes.append(len(wire.receive()) + _PREFIX_BYTES)
    answers = len(wires)
    room = bytearray(1 << 16)
    waiting = [in_flight] * len(wires)
    partial = [0] * len(wires)
    is_over = False
    with selectors.DefaultSelector() as selector:
        for index, (wire, frame) in enumerate(zip(wires, frames, strict=True)):
            selector.register(wire.socket, selectors.EVENT_READ, index)
            wire.socket.sendall(frame * in_flight)
        deadline = time.perf_counter() + seconds
        while any(waiting):
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"no answer for {TIMEOUT_S} s, {sum(waiting)} requests wait")
            is_over = is_over or time.perf_counter() >= deadline
            for key, _ in ready:
                index = key.data
                connection = wires[index].socket
                count = connection.recv_into(room)
                if not count:
                    raise ConnectionResetError("the server has closed the connection")
                done, partial[index] = divmod(partial[index] + count, sizes[index])
                answers += done
                if is_over:
                    waiting[index] -= done
                elif done:
                    connection.sendall(frames[index] * done)
    return answers
