"""A 1-record Produce without a socket: the product beside a flat loop that does the same work in one function.

Both take the same frame, read and check the whole frame, append the batch to a real file with one `writev`, note the
facts that an index, a reader and retention need, and make the answer's bytes. There is one request per turn; under
page-cache durability no fsync hides the difference. The flat loop is right for every Produce of version 9 without
producer ids: several topics and partitions, any order. It lacks the features that the product pays for: other versions,
errors as answers, layers, objects. So the ratio is the price of the architecture.

A producer of single batches sends requests that are alike up to the partition; the product reads those by comparison
(`ProduceForm`). The verdict is on single batches; the cost of full decoding is shown beside the verdict.

    python -m benchmarks.hot_path [--check] [--rounds 5] [--requests 20000]
"""

import argparse
import gc
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path

from crc32c import crc32c

from tailrace.model.identity import ClientIdentity
from tailrace.model.ids import TopicId
from tailrace.protocol.headers import encode_request
from tailrace.protocol.messages.produce import MAX_FORMS, PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.kernels import KERNEL
from tailrace.storage import OsFiles
from testkit.nodes.data_path import DataPath, batch_of

LIMIT = 2.0
"""The most time of the product, as a multiple of the time of the flat loop (decision 0041)."""
VERSION = 9


class Sink:
    """A connection that forgets its answers."""

    is_open = True
    identity = ClientIdentity("PLAINTEXT", "127.0.0.1")

    last: Sequence[Buffer] = ()

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        self.last = chunks or ()

    def awaits_answer(self, slot: int) -> bool:
        return True

    def suspend(self) -> None:
        pass

    def go_on(self) -> None:
        pass

    def throttle(self, throttle_ms: int) -> None:
        pass

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_close(self, callback: Callable[[], None]) -> None:
        pass


def make_frame(*, timeout_ms: int = 30_000) -> bytes:
    request = ProduceRequest(
        acks=1,
        timeout_ms=timeout_ms,
        topic_data=(
            TopicProduceData(
                name="orders", partition_data=(PartitionProduceData(index=0, records=batch_of(b"v" * 100)),)
            ),
        ),
    )
    return b"".join(encode_request(request, VERSION, correlation_id=1, client_id="bench"))


class FlatLog:
    """A log in the form that a flat loop needs: numbers without methods."""

    __slots__ = (
        "base_offset",
        "bytes_since_entry",
        "descriptor",
        "end_offset",
        "first_timestamp",
        "high_watermark",
        "index",
        "leader_epoch",
        "max_timestamp",
        "max_timestamp_offset",
        "size_bytes",
    )

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.base_offset = self.end_offset = self.high_watermark = self.leader_epoch = 0
        self.size_bytes = self.bytes_since_entry = 0
        self.first_timestamp = self.max_timestamp = self.max_timestamp_offset = -1
        self.index: list[tuple[int, int]] = []


def flat_loop(frame: bytes, path: Path, requests: int) -> tuple[float, bytes]:  # noqa: C901 - flat on purpose
    """The CPU seconds of the flat loop for this many requests, and the last answer."""
    head, pair, batch_head = struct.Struct(">hhih"), struct.Struct(">hi"), struct.Struct(">qiibIhiqqqhii")
    int64, int32, answer_head = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">ixB")
    answer_part = struct.Struct(">ihqqqBBB")
    log = FlatLog(path)
    logs = {("orders", 0): log}
    received = bytearray(frame)
    writev, now = os.writev, time.time_ns
    max_message_bytes, segment_bytes, segment_ms, after_ms, index_interval = (
        1048588,
        1 << 30,
        604_800_000,
        3_600_000,
        4096,
    )
    start = time.process_time()
    for _ in range(requests):
        received[:] = frame
        view = memoryview(received)
        api_key, version, correlation_id, length = head.unpack_from(view)
        if api_key != 0 or version != VERSION:
            raise ValueError
        position = 10
        if length >= 0:
            position += length
            client_id = str(view[10:position], "utf-8")
        if view[position] or view[position + 1]:
            raise ValueError  # tags, a transactional id
        acks, timeout_ms = pair.unpack_from(view, position + 2)
        if not -1 <= acks <= 1 or timeout_ms < 0 or client_id == "__admin_client":
            raise ValueError
        now_ms = now() // 1_000_000
        topics = view[position + 8] - 1
        position += 9
        staged: dict[FlatLog, list[tuple[memoryview, int, int, int]]] = {}
        answers: list[tuple[bytes, list[tuple[int, int, int]]]] = []
        for _ in range(topics):
            length = view[position] - 1
            position += 1
            raw_name = bytes(view[position : position + length])
            name = raw_name.decode()
            position += length
            partitions = view[position] - 1
            position += 1
            if length > 126 or partitions > 126:
                raise ValueError
            parts: list[tuple[int, int, int]] = []
            answers.append((raw_name, parts))
            for _ in range(partitions):
                (partition,) = int32.unpack_from(view, position)
                size = view[position + 4]
                position += 5
                if size > 127:
                    size &= 127
                    shift = 7
                    while True:
                        byte = view[position]
                        position += 1
                        size |= (byte & 127) << shift
                        if byte < 128:
                            break
                        shift += 7
                size -= 1
                batch = view[position : position + size]
                position += size
                if view[position] or len(batch) != size or size < 61:
                    raise ValueError
                position += 1
                log = logs[name, partition]
                (
                    base,
                    batch_length,
                    _,
                    magic,
                    crc,
                    attributes,
                    last_delta,
                    _,
                    max_timestamp,
                    producer_id,
                    _,
                    _,
                    count,
                ) = batch_head.unpack_from(batch)
                codec = attributes & 7
                if magic != 2 or batch_length + 12 != size or codec > 4 or crc32c(batch[21:]) != crc:
                    raise ValueError
                if base or last_delta < 0 or last_delta + 1 != count or count > 100_000 or attributes & ~0x17:
                    raise ValueError
                if producer_id >= 0 or (not codec and count * 7 > size - 61):
                    raise ValueError
                if size > max_message_bytes or size > segment_bytes or max_timestamp - now_ms > after_ms:
                    raise ValueError
                batches = staged.get(log)
                if batches is None:
                    batches = staged[log] = []
                    base_offset = log.end_offset
                else:
                    base_offset = batches[-1][1] + 1
                int64.pack_into(batch, 0, base_offset)
                int32.pack_into(batch, 12, log.leader_epoch)
                batches.append((batch, base_offset + last_delta, max_timestamp, size))
                parts.append((partition, base_offset, log.base_offset))
            if view[position]:
                raise ValueError
            position += 1
        if view[position] or position + 1 != len(view):
            raise ValueError
        for log, batches in staged.items():
            total = 0
            for batch, _, _, _ in batches:
                total += len(batch)
            size_bytes = log.size_bytes
            if size_bytes + total > segment_bytes or batches[-1][2] - log.first_timestamp > segment_ms > 0 < size_bytes:
                raise ValueError
            if writev(log.descriptor, [batch for batch, _, _, _ in batches]) != total:
                os.ftruncate(log.descriptor, size_bytes)
                raise OSError
            for _, last_offset, max_timestamp, size in batches:
                if not size_bytes:
                    log.first_timestamp = max_timestamp
                if max_timestamp > log.max_timestamp:
                    log.max_timestamp, log.max_timestamp_offset = max_timestamp, last_offset
                if log.bytes_since_entry > index_interval:
                    log.index.append((last_offset, size_bytes))
                    log.bytes_since_entry = 0
                log.bytes_since_entry += size
                size_bytes += size
            log.size_bytes = size_bytes
            log.end_offset = log.high_watermark = last_offset + 1
        if acks:
            pieces = [answer_head.pack(correlation_id, len(answers) + 1)]
            for raw_name, parts in answers:
                pieces.append(bytes((len(raw_name) + 1,)))
                pieces.append(raw_name)
                pieces.append(bytes((len(parts) + 1,)))
                for partition, base_offset, log_start_offset in parts:
                    pieces.append(answer_part.pack(partition, 0, base_offset, -1, log_start_offset, 1, 0, 0))
                pieces.append(b"\0")
            pieces.append(b"\0\0\0\0\0")
            answer = b"".join(pieces)
    elapsed = time.process_time() - start
    assert log.end_offset == requests
    os.close(log.descriptor)
    return elapsed, answer


def product_loop(frames: Sequence[bytes], directory: Path, requests: int) -> tuple[float, bytes]:
    """CPU seconds for this many requests, from frame to answer through the dispatcher, and the last answer.

    The frames are sent in turn. If there are more frames than a connection remembers forms, and each has another form,
    every frame has to be decoded.
    """
    node = DataPath(str(directory), files=OsFiles(), settings={"log.durability": "page-cache"})
    node.create("orders", topic_id=TopicId(bytes(15) + b"\x01"))
    received = bytearray(frames[0])
    on_frame, on_turn_end = node.dispatcher.on_frame, node.table.write_staged
    connection = Sink()
    start = time.process_time()
    for frame in islice(cycle(frames), requests):
        received[:] = frame
        on_frame(connection, 0, memoryview(received))
        on_turn_end()
    elapsed = time.process_time() - start
    partition = node.table.get("orders", 0)
    assert partition.log.log_end_offset == requests, "every request must have been appended"
    node.table.close()
    return elapsed, b"".join(connection.last)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"exit with 1 above {LIMIT} x")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    options = parser.parse_args()
    frame = make_frame()
    different = [make_frame(timeout_ms=20_000 + number) for number in range(2 * MAX_FORMS)]
    print(
        f"1-record Produce v{VERSION}, {len(frame)} bytes, page cache (no fsync), one writev each; record kernels: "
        f"{KERNEL}"
    )
    print("CPU us per request; 'alike': as one before, the verdict; 'decoded': read in full by the codec")
    ratios: list[float] = []
    gc.freeze()
    for number in range(options.rounds + 1):
        with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
            runs = (
                flat_loop(frame, Path(directory, "flat.log"), options.requests),
                product_loop((frame,), Path(directory, "alike"), options.requests),
                product_loop(different, Path(directory, "decoded"), options.requests),
            )
        assert len({answer for _, answer in runs}) == 1, "all must have done the same"
        flat, alike, decoded = (seconds / options.requests * 1e6 for seconds, _ in runs)
        if number == 0:
            continue  # codecs are compiled and pages touched
        ratios.append(alike / flat)
        print(
            f"round {number}: flat {flat:5.2f}   product, alike {alike:5.2f} ({alike / flat:.2f} x)"
            f"   product, decoded {decoded:5.2f} ({decoded / flat:.2f} x)"
        )
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.2f} (limit {LIMIT})")
    return 1 if options.check and ratio > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
