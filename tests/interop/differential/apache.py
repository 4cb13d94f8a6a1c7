"""Apache Kafka as one node, broker and controller, from the jars of `interop.kafka_tools`."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers import free_addresses
from interop.kafka_tools import JARS

_START_S = 60
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
_JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m", "-Xmx320m", "-cp", f"{JARS}/*")
# The shell reads a pipe that we hold and ends Kafka when it closes: not even a killed test leaves a broker behind.
_UNTIL_STDIN_CLOSES = '"$@" & broker=$!; cat >/dev/null; kill -9 $broker; wait $broker'


class ApacheKafka:
    """A node with an empty directory of its own. Gone with its files when the `with` block ends."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._directory = tempfile.TemporaryDirectory(prefix="apache-kafka-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        self.address, controller = free_addresses(2)
        properties = self._write_properties(controller)
        form = [*_JAVA, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)]
        subprocess.run(form, check=True, capture_output=True, timeout=_START_S)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _UNTIL_STDIN_CLOSES, "sh", *_JAVA, "kafka.Kafka", str(properties)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_it_listens()

    @property
    def _log(self) -> Path:
        return Path(self._directory.name, "kafka.log")

    def _write_properties(self, controller: str) -> Path:
        settings = {
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"{self._settings['node.id']}@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": f"{self._directory.name}/data",
            "log.cleaner.dedupe.buffer.size": "2097152",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            **self._settings,
        }
        path = Path(self._directory.name, "server.properties")
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path

    def _wait_until_it_listens(self) -> None:
        assert self._process is not None
        host, _, port = self.address.rpartition(":")
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection((host, int(port))).close()
            except ConnectionRefusedError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError(f"Apache Kafka does not listen at {self.address}:\n{self._log.read_text()[-2000:]}")

    def close(self) -> None:
        """Kill the broker and remove its files."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_START_S)
        self._directory.cleanup()
