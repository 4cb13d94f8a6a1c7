"""Kafka Connect, distributed, copies a file into a topic exactly once and out of it, while the worker is killed."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from benchmarks.downloads.kafka_jars import programs_absent
from benchmarks.peers.peer import free_addresses
from crash.transactions.committed_reads import committed_values
from interop.programs.java_program import JavaProgram, java_program
from interop.programs.waiting import wait_for
from tailrace.client.blocking import Admin
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.soak, pytest.mark.timeout(1200)]

LINES = TopicPartition("lines", 0)
CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
WORKER = {
    "group.id": "connect",
    "key.converter": CONVERTER,
    "value.converter": CONVERTER,
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "offset.flush.interval.ms": "500",
    "exactly.once.source.support": "enabled",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
}
_REST_TIMEOUT_S = 20


@pytest.fixture(scope="module", autouse=True)
def _connect() -> None:
    if why := programs_absent():
        pytest.skip(why)


class ConnectWorker:
    """The settings of a worker, and its REST interface."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        (self._address,) = free_addresses(1)
        self._properties = directory / "worker.properties"
        self._log = directory / "connect.log"
        settings = {**WORKER, "bootstrap.servers": bootstrap, "listeners": f"http://{self._address}"}
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def start(self, stack: ExitStack) -> JavaProgram:
        words = ("org.apache.kafka.connect.cli.ConnectDistributed", str(self._properties))
        return stack.enter_context(java_program(words, self._log))

    def put(self, program: JavaProgram, connector: str, **settings: str) -> None:
        """Make the connector, as soon as the worker takes connectors."""
        body = json.dumps({name.replace("_", "."): value for name, value in settings.items()})
        path = f"/connectors/{connector}/config"
        wait_for(lambda: self._ask("PUT", path, body) in (200, 201), f"the connector {connector}", program.log)

    def is_running(self, connector: str) -> bool:
        """Whether the connector has one task, and the task runs."""
        path = f"/connectors/{connector}/status"
        told: list[bytes] = []
        if self._ask("GET", path, None, told.append) != 200:
            return False
        return [task["state"] for task in json.loads(told[0])["tasks"]] == ["RUNNING"]

    def _ask(self, verb: str, path: str, body: str | None, tell: Callable[[bytes], None] = lambda _: None) -> int:
        connection = HTTPConnection(self._address, timeout=_REST_TIMEOUT_S)
        try:
            connection.request(verb, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            tell(answer.read())
        except (OSError, HTTPException):  # the worker does not listen yet
            return 0
        else:
            return answer.status
        finally:
            connection.close()


def write_lines(file: Path, numbers: range) -> None:
    with file.open("a") as lines:
        lines.writelines(f"line {number}\n" for number in numbers)


def test_a_file_is_copied_exactly_once_though_the_worker_is_killed(tmp_path: Path) -> None:
    source, copy = tmp_path / "source.txt", tmp_path / "copy.txt"
    write_lines(source, range(2_000))
    with Cluster() as cluster, ExitStack() as stack:
        bootstrap = cluster.bootstrap_servers
        with Admin(bootstrap) as admin:
            admin.create_topics({LINES.topic: 1})
        worker = ConnectWorker(bootstrap, tmp_path)
        program = worker.start(stack)
        worker.put(
            program,
            "source",
            connector_class="org.apache.kafka.connect.file.FileStreamSourceConnector",
            file=str(source),
            topic=LINES.topic,
            batch_size="100",
            exactly_once_support="required",
        )
        worker.put(
            program,
            "sink",
            connector_class="org.apache.kafka.connect.file.FileStreamSinkConnector",
            file=str(copy),
            topics=LINES.topic,
        )
        wait_for(lambda: len(committed_values(bootstrap, LINES)) > 0, "the first lines", program.log)
        program.kill()

        write_lines(source, range(2_000, 4_000))
        program = worker.start(stack)
        wait_for(lambda: worker.is_running("source") and worker.is_running("sink"), "tasks that run again", program.log)
        write_lines(source, range(4_000, 5_000))
        wait_for(lambda: len(committed_values(bootstrap, LINES)) >= 5_000, "all lines", program.log)
        expected = [f"line {number}" for number in range(5_000)]
        assert [value.decode() for value in committed_values(bootstrap, LINES)] == expected
        # A file has no transactions: the sink may write a line again after the kill, and may miss none.
        wait_for(
            lambda: copy.exists() and set(copy.read_text().splitlines()) == set(expected), "a whole copy", program.log
        )
        program.kill()
