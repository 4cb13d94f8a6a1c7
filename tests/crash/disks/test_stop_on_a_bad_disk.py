"""SIGTERM to a node whose disk fails: it ends, and does not come back when the disk is well again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import Producer

from crash.disks.orders import environment_of
from tailrace.client.blocking import Admin
from tailrace.testing.node_process import package_path

ENDS_WITHIN_S = 60

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


class BadNode:
    """A node, and the disk that it has."""

    def __init__(self, process: subprocess.Popen[str], data: Path, output: IO[str], order: Path) -> None:
        self.process = process
        self._data = data
        self._output = output
        self._order = order

    def order(self, fault: str) -> None:
        """The disk's faults from now on; none if empty."""
        written = self._order.with_suffix(".new")
        written.write_text(fault)
        written.rename(self._order)

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + ENDS_WITHIN_S
        while not condition():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)

    def ready_at(self) -> str:
        """Waits until the node is ready and has a topic. Returns the node's address."""
        self.wait_for(lambda: " dev\n" in self.output())
        servers = self.output().partition("tailrace ready: ")[2].split()[0]
        with Admin(servers) as admin:
            admin.create_topics({"orders": 1})
        return servers

    def write(self, servers: str) -> None:
        """Give the disk something to sync: a record that is in the file, and not acknowledged."""
        producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        producer.produce("orders", b"one")
        producer.poll(0)
        self.wait_for(lambda: any(file.stat().st_size for file in (self._data / "orders-0").glob("*.log")))
        producer.purge()

    def hears(self, number: signal.Signals, *, failures: int) -> bool:
        """Whether it is a process that has begun anew so often, with a handler of this signal."""
        files = Path(f"/proc/{self.process.pid}")
        is_it = (files / "cmdline").read_text().endswith(f"--disk-failures\0{failures}\0")
        return is_it and bool(_handled(files) >> (number - 1) & 1)


def _handled(files: Path) -> int:
    lines = (files / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("SigCgt:")).split()[1], 16)


@contextmanager
def serving(directory: Path) -> Iterator[BadNode]:
    data, orders, output = directory / "node-1", directory / "orders", directory / "output"
    environment = {**os.environ, **environment_of(orders, data, package_path(os.environ))}
    command = [sys.executable, "-m", "tailrace", "serve", "--dev", "--data-dir", str(data), "--listen", "127.0.0.1:0"]
    with output.open("w+") as written, output.open() as read:
        process = subprocess.Popen(
            command, stdout=written, stderr=subprocess.STDOUT, text=True, cwd=directory, env=environment
        )
        try:
            yield BadNode(process, data, read, orders / "node-1")
        finally:
            process.kill()
            process.wait()


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_a_disk_that_fails_during_a_clean_stop_ends_the_node_as_failed(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        servers = node.ready_at()
        node.order("hung")
        node.write(servers)
        node.process.send_signal(signal.SIGTERM)
        node.order("eio")
        assert node.process.wait(ENDS_WITHIN_S) == 1, node.output()
        assert "event=node-failed action=stop" in node.output()
        assert "action=wait-for-disk" not in node.output()


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_a_node_that_waits_for_its_disk_hears_signals_however_often_it_has_failed(tmp_path: Path) -> None:
    """The second time it fails in its start, where it reads signals too."""
    with serving(tmp_path) as node:
        servers = node.ready_at()
        node.order("eio-twice")
        node.write(servers)
        node.wait_for(lambda: node.hears(signal.SIGTERM, failures=2))
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(ENDS_WITHIN_S) == 0, node.output()
        assert node.output().count("tailrace ready") == 1
