"""The way of a request through the server, counted: calls of functions, files, and moves between files.

    python -m benchmarks.paths [--calls] [NAME...]

One node on the ports of the test kit, a metadata quorum of a single voter, real files. Each request is sent several
times to this node, and the last time, which is warm, counts: from the frame to the bytes of the answer, with the flush.
The client, the sockets (`net`) and the test kit do not count.

Calls: functions of src/tailrace; a generator counts at each resumption, a comprehension with its function. Moves: calls
of a file that is not the file of the call before. Moves back: moves to a file that had calls earlier. The figures say
how far a reader has to walk. The figures are no times: `hot_path` and `make bench` have times.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import tailrace
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    WireRectangle,
)
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.sinks import CommitSinkRequest
from tailrace.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from testkit.coordinators.sink_path import SinkWriter, find_sink
from testkit.coordinators.transaction_path import TransactionPath
from testkit.nodes.data_path import batch_of
from testkit.nodes.ports import RecordingConnection

TOPIC: Final = "orders"
PARTITIONS: Final = 10
ROUNDS: Final = 4
"""The number of rounds of each request. From the third round on the figures stay the same."""
TIMEOUT_MS: Final = 30_000
PRODUCE_VERSION, FETCH_VERSION, COMMIT_VERSION, CREATE_TOPICS_VERSION, COMMIT_SINK_VERSION = 9, 17, 9, 7, 0

_SOURCE: Final = f"{Path(tailrace.__file__).parent}/"
_CLOCK: Final = "testing/"
"""The directory of the manual clock, which stands in for the event loop."""


class Call(NamedTuple):
    """A call of a function of the product, or a resumption of a generator."""

    file: str
    """Relative to src/tailrace."""
    function: str


class RequestPath(NamedTuple):
    """The calls that carried a request out, in their order."""

    calls: tuple[Call, ...]

    @property
    def files(self) -> int:
        return len({call.file for call in self.calls})

    @property
    def moves(self) -> int:
        return sum(before.file != after.file for before, after in zip(self.calls, self.calls[1:], strict=False))

    @property
    def moves_back(self) -> int:
        return self.moves - self.files + 1


@contextmanager
def noted(calls: list[Call]) -> Iterator[None]:
    """Append the calls of this thread to `calls`."""

    def on_event(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_SOURCE):
            return
        file = code.co_filename[len(_SOURCE) :]
        is_comprehension = code.co_name.startswith("<") and code.co_name != "<lambda>"
        if not is_comprehension and not file.startswith(_CLOCK):
            calls.append(Call(file, code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(before)


class PathNode:
    """A node with a topic, and the frames that a client sends to this node."""

    def __init__(self, directory: str) -> None:
        self.path = TransactionPath(directory)
        self.path.create_topics(TOPIC, partitions=PARTITIONS)
        self.topic_id = self.path.topic_id(TOPIC)
        self.connection = RecordingConnection()

    def carry_out(self, *frames: bytes) -> RequestPath:
        """The path of these requests; every request is answered."""
        calls: list[Call] = []
        errors_before = self.path.dispatcher.errors.counts.copy()
        slots = [self.connection.next_slot() for _ in frames]
        for slot, frame in zip(slots, frames, strict=True):
            received = memoryview(bytearray(frame))
            with noted(calls):
                self.path.dispatcher.on_frame(self.connection, slot, received)
                self.path.end_turn()
        missing = [slot for slot in slots if slot not in self.connection.answers]
        assert not missing, f"no answer to {missing}"
        errors = self.path.dispatcher.errors.counts - errors_before
        assert not errors, f"refused: {errors}"
        return RequestPath(tuple(calls))

    def end_offset(self, partition: int = 0) -> int:
        return self.path.table.get(TOPIC, partition).log.log_end_offset

    def produce(self) -> bytes:
        """Produce of one record to the first partition, acks=all."""
        data = PartitionProduceData(index=0, records=batch_of(b"v" * 100, now=self.path.clock.now_ms))
        topic = TopicProduceData(name=TOPIC, partition_data=(data,))
        return _frame(ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=(topic,)), PRODUCE_VERSION)

    def fetch(self, offsets: Mapping[int, int], *, max_wait_ms: int = 0, session: tuple[int, int] = (0, -1)) -> bytes:
        """Fetch from these offsets by partition, with this id and epoch of a session; by default without a session."""
        partitions = tuple(
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in offsets.items()
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=session[0],
            session_epoch=session[1],
            topics=(FetchTopic(topic_id=self.topic_id, partitions=partitions),) if offsets else (),
        )
        return _frame(request, FETCH_VERSION)

    def open_session(self) -> int:
        """The id of a new fetch session that has read all partitions to their ends; the next epoch is 1."""
        ends = {number: self.end_offset(number) for number in range(PARTITIONS)}
        self.carry_out(self.fetch(ends, session=(0, 0)))
        answer = self.connection.answers[max(self.connection.answers)]
        assert answer is not None
        session_id = decode_response(FetchResponse, FETCH_VERSION, answer)[1].session_id
        assert session_id
        return session_id


def _frame(request: Any, version: int) -> bytes:
    return b"".join(encode_request(request, version, correlation_id=1, client_id="paths"))


def _produce(node: PathNode) -> Iterator[RequestPath]:
    while True:
        yield node.carry_out(node.produce())


def _full_fetch(node: PathNode) -> Iterator[RequestPath]:
    node.carry_out(node.produce())
    while True:
        yield node.carry_out(node.fetch({0: 0}))


def _woken_long_poll(node: PathNode) -> Iterator[RequestPath]:
    while True:
        yield node.carry_out(node.fetch({0: node.end_offset()}, max_wait_ms=500), node.produce())


def _idle_incremental_fetch(node: PathNode) -> Iterator[RequestPath]:
    session_id, epoch = node.open_session(), 1
    while True:
        yield node.carry_out(node.fetch({}, session=(session_id, epoch)))
        epoch += 1


def _incremental_fetch_of_a_change(node: PathNode) -> Iterator[RequestPath]:
    """A fetch of a reader that goes on at its new offset, where there is a record."""
    session_id, epoch = node.open_session(), 1
    while True:
        offset = node.end_offset()
        node.carry_out(node.produce())
        yield node.carry_out(node.fetch({0: offset}, session=(session_id, epoch)))
        epoch += 1


def _offset_commits(node: PathNode, group_id: str, *, has_ranges: bool) -> Iterator[RequestPath]:
    node.path.find_coordinator(group_id)
    while True:
        offset = node.end_offset()
        node.carry_out(node.produce())
        rectangle = WireRectangle(first_offset=0, last_offset=offset, first_hash=0, last_hash=1_000)
        partition = OffsetCommitRequestPartition(
            partition_index=0,
            committed_offset=-1 if has_ranges else offset,
            committed_metadata="",
            ranges=(rectangle,) if has_ranges else (),
        )
        topic = OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,))
        request = OffsetCommitRequest(group_id=group_id, member_id="", topics=(topic,))
        yield node.carry_out(_frame(request, COMMIT_VERSION))


def _create_topics(node: PathNode) -> Iterator[RequestPath]:
    number = 0
    while True:
        number += 1
        topic = CreatableTopic(
            name=f"created-{number}", num_partitions=1, replication_factor=1, assignments=(), configs=()
        )
        request = CreateTopicsRequest(timeout_ms=TIMEOUT_MS, topics=(topic,))
        yield node.carry_out(_frame(request, CREATE_TOPICS_VERSION))


def _commit_sink(node: PathNode) -> Iterator[RequestPath]:
    find_sink(node.path)
    writer, batch = SinkWriter(node.path, "run"), 0
    while True:
        members = tuple(writer.write(batch, b"value", task=task, topic=TOPIC) for task in range(2))
        request = CommitSinkRequest(
            sink_id=writer.sink,
            run=writer.run,
            batch=batch,
            origin=None,
            takes_over=False,
            timeout_ms=TIMEOUT_MS,
            members=members,
        )
        yield node.carry_out(_frame(request, COMMIT_SINK_VERSION))
        batch += 1


PATHS: Final[Mapping[str, Callable[[PathNode], Iterator[RequestPath]]]] = {
    "produce": _produce,
    "full-fetch": _full_fetch,
    "woken-long-poll": _woken_long_poll,
    "idle-fetch": _idle_incremental_fetch,
    "changed-fetch": _incremental_fetch_of_a_change,
    "offset-commit": lambda node: _offset_commits(node, "offsets", has_ranges=False),
    "range-commit": lambda node: _offset_commits(node, "ranges", has_ranges=True),
    "create-topics": _create_topics,
    "commit-sink": _commit_sink,
}
"""The rounds of each request by its name. The two fetches in sessions are incremental, with ten partitions; a sink's
batch has two members."""


def measure(name: str) -> RequestPath:
    """The path of this request on a warm node."""
    with tempfile.TemporaryDirectory(prefix="tailrace-paths-") as directory:
        node = PathNode(directory)
        rounds = PATHS[name](node)
        for _ in range(ROUNDS - 1):
            next(rounds)
        path = next(rounds)
        node.path.stop()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(PATHS)}")
    parser.add_argument("--calls", action="store_true", help="print the calls too")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PATHS]
    if unknown:
        parser.error(f"no such request: {', '.join(unknown)}")
    print(f"{'request':16} {'calls':>6} {'files':>6} {'moves':>6} {'moves back':>11}")
    for name in options.names or PATHS:
        path = measure(name)
        print(f"{name:16} {len(path.calls):>6} {path.files:>6} {path.moves:>6} {path.moves_back:>11}")
        if options.calls:
            for call in path.calls:
                print(f"    {call.file:44} {call.function}")


if __name__ == "__main__":
    main()
