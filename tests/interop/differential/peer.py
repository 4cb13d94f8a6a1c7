"""A node, or the brokers of a cluster, as the script sees them: connections by name, requests out, answers in."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any

from interop.differential.script import CLIENT_ID, Answers, Build
from tailrace.protocol.headers import decode_response, encode_request, frame_prefix
from tailrace.protocol.registry import api_of
from testkit.records.framing import FrameSplitter

CLOSED = "the connection is closed"
NO_ANSWER = "no answer is due"
_TIMEOUT_S = 30


class _Connection:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._splitter = FrameSplitter()
        self._frames: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> bytes | None:
        """The next answer's frame; None if the node has closed the connection."""
        while not self._frames:
            try:
                data = self._socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames += self._splitter.feed(data)
        return self._frames.pop(0)

    def close(self) -> None:
        self._socket.close()


class Peer:
    """A node or cluster of the two, with all that it has answered. Brokers have the numbers from 1 on.

    Connections with `@controller` in their name go to `controller`, by default the first of the addresses.
    """

    def __init__(self, name: str, addresses: Sequence[str], controller: str | None = None) -> None:
        self.name = name
        self.addresses = addresses
        self._controller = addresses[0] if controller is None else controller
        self.answers = Answers()
        self._connections: dict[str, _Connection] = {}
        self._awaited: dict[str, tuple[str, type[Any], int]] = {}
        self._correlation_id = 0

    def ask(self, connection: str, version: int, build: Build, *, expect_answer: bool) -> Any:
        """The answer as a message, or CLOSED, or NO_ANSWER."""
        request = build(self.answers)
        try:
            self._send(connection, request, version)
        except (BrokenPipeError, ConnectionResetError):
            self.hang_up(connection)
            return CLOSED
        return self._receive(connection, api_of(type(request)).response, version) if expect_answer else NO_ANSWER

    def repeat(self, connection: str, version: int, builds: Mapping[str, Build], times: int) -> dict[str, Any]:
        """The last answer to each request of so many rounds, by name; CLOSED once the connection is.

        A round is the same bytes each time: nothing is encoded or decoded 30,000 times.
        """
        requests = {name: build(self.answers) for name, build in builds.items()}
        round_of_frames = b"".join(self._frame(request, version) for request in requests.values())
        channel = self._connection(connection)
        for _ in range(times):
            channel.send(round_of_frames)
            frames = [channel.receive() for _ in requests]
        return {
            name: CLOSED if frame is None else decode_response(api_of(type(request)).response, version, frame)[1]
            for (name, request), frame in zip(requests.items(), frames, strict=True)
        }

    def send(self, name: str, connection: str, version: int, build: Build) -> None:
        """Send what will be answered later."""
        request = build(self.answers)
        self._send(connection, request, version)
        self._awaited[name] = connection, api_of(type(request)).response, version

    def receive(self, name: str) -> Any:
        """The answer to what was sent under this name."""
        return self._receive(*self._awaited.pop(name))

    def send_bytes(self, connection: str, payload: bytes) -> bytes | str:
        """The bytes of the answer, or CLOSED."""
        channel = self._connection(connection)
        channel.send(frame_prefix([payload]) + payload)
        frame = channel.receive()
        if frame is None:
            self.hang_up(connection)
            return CLOSED
        return frame

    def hang_up(self, connection: str) -> None:
        """Close a connection; the next use opens a new connection."""
        if (channel := self._connections.pop(connection, None)) is not None:
            channel.close()

    def close(self) -> None:
        for name in list(self._connections):
            self.hang_up(name)

    def _connection(self, name: str) -> _Connection:
        if name not in self._connections:
            self._connections[name] = _Connection(self._address(name.partition("@")[2] or "1"))
        return self._connections[name]

    def _address(self, place: str) -> str:
        return self._controller if place == "controller" else self.addresses[int(place) - 1]

    def _send(self, connection: str, request: Any, version: int) -> None:
        self._connection(connection).send(self._frame(request, version))

    def _frame(self, request: Any, version: int) -> bytes:
        self._correlation_id += 1
        chunks = encode_request(request, version, self._correlation_id, CLIENT_ID)
        return frame_prefix(chunks) + b"".join(map(bytes, chunks))

    def _receive(self, connection: str, response: type[Any], version: int) -> Any:
        try:
            frame = self._connection(connection).receive()
        except TimeoutError as silence:
            raise AssertionError(f"{self.name} does not answer within {_TIMEOUT_S} s") from silence
        if frame is None:
            self.hang_up(connection)
            return CLOSED
        return decode_response(response, version, frame)[1]
