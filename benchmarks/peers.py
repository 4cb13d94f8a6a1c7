"""The servers that are compared, each in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace.testing import Cluster

_MOCK = """
import sys, confluent_kafka
producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
broker = producer.list_topics(timeout=10).brokers[1]
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""

TICKS_PER_SECOND = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server that is running."""

    name: str
    bootstrap: str
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time of the process so far, in steps of 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


@contextmanager
def mock_cluster() -> Iterator[Peer]:
    """librdkafka's own mock of one broker, in C: keeps records in memory only and checks no checksum."""
    with subprocess.Popen(
        [sys.executable, "-c", _MOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        bootstrap = process.stdout.readline().strip()
        try:
            yield Peer(name="librdkafka mock", bootstrap=bootstrap, pid=process.pid)
        finally:
            process.terminate()


@contextmanager
def tailrace(durability: str) -> Iterator[Peer]:
    """One node of ours."""
    with Cluster(brokers=1, config={"log.durability": durability}) as cluster:
        yield Peer(name=f"tailrace {durability}", bootstrap=cluster.bootstrap_servers, pid=cluster.process_id(0))
