"""Makes tests/golden/record_batches: batches of every codec, written by other people's libraries.

    python tests/golden/make_record_batches.py

The file name says library and codec. `kafka-python` and `aiokafka` are the record builders of the clients of these
names (the former has no snappy without one more package), `kio` is its `records.writers`, `librdkafka` is what a real
producer sent to librdkafka's own mock broker, with a producer id of that broker's. All hold RECORDS. VERSIONS names the
libraries that made the stored files; another run may give other compressed bytes, never another meaning.
"""

import io
import socket
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

DIRECTORY = Path(__file__).with_name("record_batches")
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
PRODUCER = {"producer_id": 4711, "producer_epoch": 3, "base_sequence": 42}

Record = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

RECORDS: list[Record] = [
    (1_700_000_000_000, b"key", b"value", []),
    (1_700_000_000_005, None, b"a value without a key", []),
    (1_700_000_000_003, b"tombstone", None, []),
    (1_700_000_000_003, None, None, []),
    (1_700_000_000_004, b"", b"", [("trace", b"\x00\xff"), ("empty", b""), ("null", None), ("trace", b"again")]),
    (1_700_000_300_000, "clé".encode(), b"x" * 5000, [("clé", "é".encode())]),
    *[(1_700_000_300_001 + i, b"k%d" % (i % 7), b'{"n": %d}' % i, []) for i in range(200)],
]
"""Timestamp, key, value, headers."""


def by_kafka_python(codec: int) -> bytes:
    from kafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=True, batch_size=1 << 20, **PRODUCER
    )
    for offset, (timestamp, key, value, headers) in enumerate(RECORDS):
        builder.append(offset, timestamp, key, value, headers)
    return bytes(builder.build())


def by_aiokafka(codec: int) -> bytes:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=1, batch_size=1 << 20, **PRODUCER
    )
    for offset, (timestamp, key, value, headers) in enumerate(RECORDS):
        builder.append(offset, timestamp, key, value, headers)
    return bytes(builder.build())


def by_kio() -> bytes:
    from kio.records.schema import NewRecordBatch, Record, RecordHeader
    from kio.records.writers import write_batch

    records = tuple(
        Record(
            attributes=0,
            timestamp=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp),
            offset=offset,
            key=key,
            value=value,
            headers=tuple(RecordHeader(key=name.encode(), value=content) for name, content in headers),
        )
        for offset, (timestamp, key, value, headers) in enumerate(RECORDS)
    )
    buffer = io.BytesIO()
    write_batch(buffer, NewRecordBatch(records=records, attributes=16, **PRODUCER))
    return buffer.getvalue()


def by_librdkafka(codec: str) -> bytes:
    from confluent_kafka import Producer

    settings = {"test.mock.num.brokers": 1, "compression.type": codec, "linger.ms": 500, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": "unused:1", **settings})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    for timestamp, key, value, headers in RECORDS:
        producer.produce("golden", value=value, key=key, partition=0, timestamp=timestamp, headers=headers)
    assert producer.flush(10) == 0
    return fetched(broker.host, broker.port)


def fetched(host: str, port: int) -> bytes:
    """Everything that partition 0 of the topic `golden` holds, by Fetch v4."""
    topic = b"golden"
    body = (
        b"".join(n.to_bytes(4, "big", signed=True) for n in (-1, 1000, 1, 1 << 24))
        + b"\0"
        + (1).to_bytes(4, "big") + len(topic).to_bytes(2, "big") + topic
        + (1).to_bytes(4, "big") + bytes(4) + bytes(8) + (1 << 24).to_bytes(4, "big")
    )  # fmt: skip
    header = (1).to_bytes(2, "big") + (4).to_bytes(2, "big") + (7).to_bytes(4, "big") + b"\xff\xff"
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(len(header + body).to_bytes(4, "big") + header + body)
        with connection.makefile("rb") as stream:
            answer = stream.read(int.from_bytes(stream.read(4), "big"))
    # Correlation id, throttle time, one topic, one partition: index, error, high watermark, last stable offset, aborted
    position = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
    error = int.from_bytes(answer[position : position + 2], "big")
    assert error == 0, error
    position += 2 + 8 + 8
    aborted = int.from_bytes(answer[position : position + 4], "big", signed=True)
    position += 4 + 16 * max(aborted, 0)
    size = int.from_bytes(answer[position : position + 4], "big")
    return answer[position + 4 : position + 4 + size]


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, codec in CODECS.items():
        if name != "snappy":
            (DIRECTORY / f"kafka-python-{name}.bin").write_bytes(by_kafka_python(codec))
        (DIRECTORY / f"librdkafka-{name}.bin").write_bytes(by_librdkafka(name))
        (DIRECTORY / f"aiokafka-{name}.bin").write_bytes(by_aiokafka(codec))
    (DIRECTORY / "kio-none.bin").write_bytes(by_kio())
    versions = [f"{name} {version(name)}\n" for name in ("kafka-python", "aiokafka", "kio", "confluent-kafka")]
    (DIRECTORY / "VERSIONS").write_text("".join(versions))


if __name__ == "__main__":
    main()
