"""Records sent at a steady pace, whether or not they are acknowledged, and the moments of their acknowledgements and
reads.

One thread: readers wait at brokers with long polls, the producer sends when the next time has come.
"""

import selectors
import time
from collections.abc import Sequence

from benchmarks.wire import FETCH_VERSION, PRODUCE_VERSION, Wire, fetch_frame, produce_frame
from tailrace.protocol.headers import decode_response
from tailrace.protocol.messages.fetch import FetchResponse
from tailrace.protocol.messages.produce import ProduceResponse
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import iter_batches

_MAX_BYTES = 1_048_576
_TIMEOUT_S = 60.0


class RefusedRecord(Exception):
    """A broker answers with an error, or gives a reader another offset than the next offset."""


class Reader:
    """A consumer of one partition at one broker, from an offset on. It fetches by names of topics and without a
    session."""

    def __init__(self, wire: Wire, topic: str, partition: int, offset: int) -> None:
        self.wire = wire
        self.read_at: list[float] = []
        """The moment at which each record came, in seconds of the performance counter."""
        self._topic = topic
        self._partition = partition
        self._next = offset
        self._ask()

    def take(self) -> None:
        """Read the answer that has come, and fetch the records behind it."""
        answer = decode_response(FetchResponse, FETCH_VERSION, self.wire.receive())[1]
        now = time.perf_counter()
        ((found,),) = (topic.partitions for topic in answer.responses)
        if found.error_code:
            raise RefusedRecord(f"a fetch is answered with error {found.error_code}")
        for _, header in iter_batches(found.records or b""):
            if header.base_offset != self._next:
                raise RefusedRecord(f"offset {header.base_offset} after {self._next - 1}")
            self._next += header.last_offset_delta + 1
            self.read_at += [now] * (header.last_offset_delta + 1)
        self._ask()

    def _ask(self) -> None:
        self.wire.socket.sendall(fetch_frame(self._topic, self._partition, self._next, _MAX_BYTES))


class Paced:
    """The moments of the sending, the acknowledgement and the reads of each record, in seconds of the performance
    counter."""

    def __init__(self, count: int) -> None:
        self.sent_at: list[float] = []
        self.acknowledged_at: list[float] = []
        self.count = count


def send_paced(producer: Wire, readers: Sequence[Reader], frames: Sequence[bytes], *, interval_s: float) -> Paced:
    """Send each frame at its time. Returns when every record is acknowledged and every reader has read every record."""
    paced = Paced(len(frames))
    with selectors.DefaultSelector() as selector:
        selector.register(producer.socket, selectors.EVENT_READ)
        for reader in readers:
            selector.register(reader.wire.socket, selectors.EVENT_READ, reader)
        began = time.perf_counter()
        while len(paced.acknowledged_at) < paced.count or any(len(each.read_at) < paced.count for each in readers):
            due_s = began + len(paced.sent_at) * interval_s - time.perf_counter()
            if len(paced.sent_at) < paced.count and due_s <= 0:
                paced.sent_at.append(time.perf_counter())
                producer.socket.sendall(frames[len(paced.sent_at) - 1])
                continue
            ready = selector.select(due_s if len(paced.sent_at) < paced.count else _TIMEOUT_S)
            if not ready and len(paced.sent_at) == paced.count:
                raise TimeoutError(f"records are missing after {_TIMEOUT_S:g} s")
            for key, _ in ready:
                if key.data is None:
                    _acknowledge(producer, paced)
                else:
                    key.data.take()
    return paced


def _acknowledge(producer: Wire, paced: Paced) -> None:
    answer = decode_response(ProduceResponse, PRODUCE_VERSION, producer.receive())[1]
    paced.acknowledged_at.append(time.perf_counter())
    ((found,),) = (topic.partition_responses for topic in answer.responses)
    if found.error_code:
        raise RefusedRecord(f"a record is refused with error {found.error_code}")


def frames_of(topic: str, partition: int, records: Buffer, count: int) -> list[bytes]:
    """The same record so many times."""
    return [produce_frame(topic, partition, records)] * count
