"""The admin path of one node behind a real socket, for clients: with other brokers that are only registered.

with AdminServer() as server:
    server.register(BrokerId(2))
    Admin(server.bootstrap_servers).list_brokers()
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from tailrace.metadata.broker_commands import BrokerRegistered, RegisterBroker, UnfenceBroker
from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.image import Endpoint
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import ENDPOINT, AdminPath
from testkit.nodes.ports import RecordingConnection

_LENGTH = struct.Struct(">i")
_PATIENCE_S = 10


class _Node(AdminPath):
    def __init__(self, port: int, settings: Mapping[str, str] | None) -> None:
        self._port = port
        super().__init__("/data", files=SimulatedDisk(), settings=settings)

    def _endpoint(self) -> Endpoint:
        return replace(ENDPOINT, port=self._port)


class AdminServer:
    """Serves connections, a thread per connection; requests are carried out one after the other."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]
        self._connections: list[socket.socket] = []
        self.node = _Node(self._port, settings)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def submit(self, command: ControllerCommand) -> ControllerResponse:
        """Give the controller a command. Raises KafkaError if the controller refuses."""
        with self._lock:
            answers = self.node.submit(command)
            self.node.end_turn()
        (answer,) = answers
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    @property
    def lock(self) -> threading.Lock:
        """The lock that is held while the node does something."""
        return self._lock

    def state(self, topic: str, partition: int = 0) -> PartitionState:
        """The state of this partition that the cluster has agreed on."""
        with self._lock:
            state = self.node.controller.image.partition(topic, partition)
        assert state is not None, f"there is no {topic}-{partition}"
        return state

    def register(self, broker_id: BrokerId) -> int:
        """Register another broker, which stays fenced; returns its epoch."""
        command = RegisterBroker(
            broker_id=broker_id,
            incarnation_id=broker_id.to_bytes(16, "big"),
            endpoints=(replace(ENDPOINT, port=self._port),),
        )
        registered = self.submit(command)
        assert isinstance(registered, BrokerRegistered)
        return registered.broker_epoch

    def start(self, broker_id: BrokerId) -> int:
        """Register another broker and let it lead; returns its epoch."""
        broker_epoch = self.register(broker_id)
        self.submit(UnfenceBroker(broker_id=broker_id, broker_epoch=broker_epoch))
        return broker_epoch

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        known = RecordingConnection()
        with connection, contextlib.suppress(OSError):
            while head := _receive(connection, _LENGTH.size):
                frame = memoryview(bytearray(_receive(connection, *_LENGTH.unpack(head))))
                with self._lock:
                    slot = known.next_slot()
                    self.node.dispatcher.on_frame(known, slot, frame)
                    self.node.end_turn()
                answer = known.answers[slot]
                assert answer is not None
                connection.sendall(_LENGTH.pack(len(answer)) + answer)


def _receive(connection: socket.socket, length: int) -> bytes:
    """This number of received bytes; fewer if the client has gone."""
    received = b""
    while len(received) < length and (chunk := connection.recv(length - len(received))):
        received += chunk
    return received
