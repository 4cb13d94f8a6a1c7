"""The topics that both formats read: small, and of every kind whose reading might differ."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.client.offsets import EARLIEST
from tailrace.model.partitions import TopicPartition
from tailrace.storage import OsFiles, checkpoints
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

TRANSACTION_TIMEOUT_MS = 86_400_000
"""A transaction stays open for as long as the tests of a process take."""
CONFIG = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "transaction.max.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
}
"""Settings of the node: a log is compacted soon."""

ORDERS, ORDERS_EU, EMPTY = "orders", "orders-eu", "empty"
CUT = "cut"
COMPACTED, STAMPED, CODECS = "compacted", "stamped", "codecs"
COMMITTED, OPEN = "committed", "open"

ORDERS_0 = 8
"""Records of its partition 0, one each second from 1 s on; partition 1 has half as many, between them."""
CUT_FROM = 4
"""The first offset that is left, of 10."""
LATE = "2026-01-31T12:00:00"

_KEYS = 5
_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
}


@contextmanager
def written(cluster: Cluster) -> Iterator[None]:
    """The topics, with a transaction that is open."""
    servers = cluster.bootstrap_servers
    with Admin(servers) as admin, Producer(servers) as producer:
        admin.create_topics({ORDERS: 2, ORDERS_EU: 1, EMPTY: 2, CUT: 1, CODECS: 1, COMMITTED: 1, OPEN: 1})
        admin.create_topics(
            [
                NewTopic(name=STAMPED, partitions=1, configs={"message.timestamp.type": "LogAppendTime"}),
                NewTopic(name=COMPACTED, partitions=1, configs=_COMPACTED),
            ]
        )
        _write_orders(producer)
        for number in range(3):
            producer.send(ORDERS_EU, b"eu %d" % number, key=b"k", timestamp=9000 + number)
            producer.send(STAMPED, b"stamped %d" % number)
        for number in range(10):
            producer.send(CUT, b"%d" % number, partition=0).result()
        admin.delete_records({TopicPartition(CUT, 0): CUT_FROM})
        _write_codecs(servers)
        _write_compacted(cluster, admin)
        with _transactions(servers):
            yield


def _write_orders(producer: Producer) -> None:
    headers = (("trace", b"1"), ("none", None), ("trace", b""))
    for number in range(ORDERS_0):
        value = None if number == 2 else b"order %d" % number
        key = None if number % 3 == 0 else b"key %d" % number
        has = headers if number % 2 else ()
        producer.send(ORDERS, value, key=key, partition=0, headers=has, timestamp=1000 * (number + 1))
        if number % 2 == 0:
            producer.send(ORDERS, b"late", key=b"", partition=1, timestamp=1000 * (number + 1) + 500)
    producer.flush()


def _write_codecs(servers: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with Producer(servers, compression=codec) as producer:
            for number in range(3):
                producer.send(CODECS, codec.encode() * 40, key=b"%d" % number, partition=0)


def _write_compacted(cluster: Cluster, admin: Admin) -> None:
    """Rounds of the same keys, of which the older ones are gone, and one key deleted."""
    servers = cluster.bootstrap_servers
    for number in range(6):
        with Producer(servers) as producer:
            for key in range(_KEYS):
                value = None if (number, key) == (5, 3) else b"round %d" % number * 8
                producer.send(COMPACTED, value, key=b"key %d" % key)
    for _ in range(2):  # too large for what is left of a segment: all before them is compacted
        with Producer(servers) as producer:
            producer.send(COMPACTED, random.Random(COMPACTED).randbytes(750).hex().encode(), key=b"end")
    (directory,) = cluster.data_dir().glob(f"**/{COMPACTED}-0")

    def is_compacted() -> bool:
        active = max(int(path.stem) for path in directory.glob("*.log"))
        offsets = checkpoints.read_offsets(OsFiles(), str(directory.parent), checkpoints.CLEANER_OFFSETS)
        return any(str(partition) == directory.name and offset == active for partition, offset in offsets.items())

    wait_until(is_compacted, f"{COMPACTED} is compacted")
    assert admin.list_offsets({TopicPartition(COMPACTED, 0): EARLIEST})


@contextmanager
def _transactions(servers: str) -> Iterator[None]:
    """In `committed`: two records, two aborted records, two more; the same in `open`, and two of a transaction."""
    with Producer(servers, transactional_id="beside", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS) as producer:
        producer.init_transactions()
        for verdict in ("committed", "aborted", "committed"):
            producer.begin_transaction()
            for topic in (COMMITTED, OPEN):
                for number in range(2):
                    producer.send(topic, b"%s %d" % (verdict.encode(), number), partition=0)
            if verdict == "committed":
                producer.commit_transaction()
            else:
                producer.flush()
                producer.abort_transaction()
        producer.begin_transaction()
        for number in range(2):
            producer.send(OPEN, b"open %d" % number, partition=0)
        producer.flush()
        yield
        producer.abort_transaction()
