"""The servers that are compared: a server has a process of its own, on 127.0.0.1, with a directory of its own."""

import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.process import Process
from benchmarks.wire import Wire, end_offsets
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin
from tailrace.protocol.messages.api_versions import ApiVersionsRequest

READY_TIMEOUT_S = 120
CREATE_TIMEOUT_MS = 600_000
_OWN_PORTS = range(20_000, 32_000)
"""The ports of servers. They are below the ports that kernels give out, so that no other program gets a port before its
server listens."""
TAILRACE = "tailrace"
MOCK = "librdkafka mock"

_MOCK = """
import sys, confluent_kafka
producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
broker = producer.list_topics(timeout=10).brokers[1]
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""


class Absent(Exception):
    """Raised for a peer that is not on this machine; the text says how to install the peer."""


class NotReady(Exception):
    """Raised for a server that has ended or does not answer; the text has its last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server: its process, its address, and the settings of its topics."""

    name: str
    process: Process
    address: str
    topic_configs: Mapping[str, str] = field(default_factory=dict)

    def wait_until_ready(self) -> None:
        """Return as soon as the server answers a request."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline and self.process.is_running:
            try:
                with Wire(self.address) as wire:
                    wire.ask(ApiVersionsRequest(), 0)
                return
            except OSError:
                time.sleep(0.002)
        tail = "\n".join(self.process.output().splitlines()[-20:])
        raise NotReady(f"{self.name} does not answer at {self.address}\n{tail}")

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics with these names and numbers of partitions; the mock makes a topic at the first request of a
        client."""
        if self.name == MOCK:
            return
        with Admin(self.address) as admin:
            admin.create_topics(
                [NewTopic(name=name, partitions=count, configs=self.topic_configs) for name, count in topics.items()],
                timeout_ms=CREATE_TIMEOUT_MS,
            )

    def wait_for_leaders(self, topics: Mapping[str, int]) -> None:
        """Return when every partition takes requests: Kafka's metadata names a leader before that broker leads."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        with Wire(self.address) as wire:
            for name, count in topics.items():
                while -1 in end_offsets(wire, name, count):
                    if time.monotonic() > deadline:
                        raise NotReady(f"{self.name} does not lead all partitions of {name}")
                    time.sleep(0.01)

    def delete_topics(self, topics: Mapping[str, int]) -> None:
        if self.name == MOCK:
            return
        with Admin(self.address) as admin:
            admin.delete_topics(topics)


def free_addresses(count: int) -> list[str]:
    """`count` different addresses `127.0.0.1:PORT` on which no program listens at this moment."""
    with ExitStack() as stack:
        servers = [stack.enter_context(_listening()) for _ in range(count)]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def _listening() -> socket.socket:
    for port in random.SystemRandom().sample(_OWN_PORTS, 100):
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:  # the port is in use
            continue
    return socket.create_server(("127.0.0.1", 0))


@contextmanager
def directory() -> Iterator[Path]:
    """A directory for one server, which is removed with its content."""
    path = Path(tempfile.mkdtemp(prefix="tailrace-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def running(server: AbstractContextManager[Peer]) -> Iterator[Peer]:
    """Start the server, wait until it answers, and kill it at the end of the block."""
    with server as peer:
        peer.process.start()
        try:
            peer.wait_until_ready()
            yield peer
        finally:
            peer.process.kill()


@contextmanager
def tailrace(durability: str = "flushed", *, settings: Mapping[str, str] | None = None) -> Iterator[Peer]:
    """A node of Tailrace that is not started yet, with `log.durability`, these settings, and else its defaults."""
    with directory() as home:
        (address,) = free_addresses(1)
        command = [sys.executable, "-m", "tailrace", "serve", "--until-stdin-closes", "--listen", address]
        command += ["--data-dir", str(home / "data")]
        for name, value in {"log.durability": durability, **(settings or {})}.items():
            command += ["--set", f"{name}={value}"]
        yield Peer(name=TAILRACE, process=Process(command, output=home / "output"), address=address)


@contextmanager
def mock_cluster() -> Iterator[Peer]:
    """librdkafka's own mock of one broker, in C, running: keeps records in memory only and checks no checksum."""
    with directory() as home:
        process = Process([sys.executable, "-c", _MOCK], output=home / "output")
        process.start()
        try:
            yield Peer(name=MOCK, process=process, address=_first_line(process))
        finally:
            process.kill()


def _first_line(process: Process) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.is_running:
        first, newline, _ = process.output().partition("\n")
        if newline:
            return first.strip()
        time.sleep(0.01)
    raise NotReady(f"{MOCK} has not said where it listens\n{process.output()}")


def touch_pages(megabytes: int) -> None:
    """Make the machine's memory ready for that much new page cache, for every peer alike.

    On a virtual machine the first touch of a page costs up to ten times as much as a write to that page, and the first
    peer would pay for that. Files written and removed just before leave touched pages behind.
    """
    with tempfile.NamedTemporaryFile() as scratch:
        block = bytes(1_000_000)
        for _ in range(megabytes):
            scratch.write(block)


def version_of(*command: str) -> str:
    """The first line of a program's output about its version. Raises Absent without the program."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError as missing:
        raise Absent(f"{command[0]} is not installed: apt-get install {command[0]}") from missing
    return (done.stdout or done.stderr).splitlines()[0]
