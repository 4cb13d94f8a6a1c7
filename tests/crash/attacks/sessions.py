"""Attacks by fetches of a large session: partitions that exist and partitions that do not."""

import struct
import threading
from collections import deque
from typing import NamedTuple

from crash.attacks.connection import connected, framed
from tailrace.protocol.headers import decode_response
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

VERSION = 12


class Attack(NamedTuple):
    """A session, and its fetches."""

    name: str
    existing: int
    """Partitions that exist, without records."""
    missing: int
    """Partitions that do not exist."""
    in_flight: int
    changes_isolation: bool
    """Whether each fetch has another isolation level than the one before: all partitions are looked at."""

    @property
    def idle_topics(self) -> list[tuple[str, int]]:
        """Topics with the partitions that exist."""
        return [(f"idle-{first}", min(600, self.existing - first)) for first in range(0, self.existing, 600)]


FEW = Attack("600 idle partitions, another isolation level each time", 600, 0, 64, changes_isolation=True)
ATTACKS = [
    Attack("100,000 missing partitions, a single fetch in flight", 0, 100_000, 1, changes_isolation=False),
    Attack("100,000 missing partitions", 0, 100_000, 16, changes_isolation=False),
    Attack("10,000 missing partitions", 0, 10_000, 64, changes_isolation=False),
    Attack("4,000 missing partitions", 0, 4_000, 64, changes_isolation=True),
    FEW._replace(name="3,000 idle partitions, another isolation level each time", existing=3_000),
]


class Attacker:
    """A connection, and a thread that keeps its fetches in flight."""

    def __init__(self, address: str, attack: Attack) -> None:
        self._attack = attack
        self._socket = connected(address)
        self._thread = threading.Thread(target=self._run)
        self._stops = threading.Event()
        self.session_id = 0
        self.served = 0
        """The fetches that were answered."""

    def open(self) -> None:
        """Begin the session."""
        attack = self._attack
        topics = [_topic(name, partitions) for name, partitions in attack.idle_topics]
        topics += [_topic(f"missing-{number}", attack.missing // 10) for number in range(10) if attack.missing]
        self._send(FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=tuple(topics)))
        response: FetchResponse = decode_response(FetchResponse, VERSION, self._receive())[1]
        assert response.error_code == 0
        assert response.session_id, "no session"
        self.session_id = response.session_id

    def start(self) -> None:
        """Begin the attack."""
        self._thread.start()

    def stop(self) -> None:
        """End the attack, and the connection."""
        self._stops.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        epoch, waiting = 1, deque[int]()
        while not self._stops.is_set():
            while len(waiting) < self._attack.in_flight:
                isolation = epoch % 2 if self._attack.changes_isolation else 0
                self._send(
                    FetchRequest(
                        max_wait_ms=0,
                        min_bytes=0,
                        isolation_level=isolation,
                        session_id=self.session_id,
                        session_epoch=epoch,
                        topics=(),
                    )
                )
                waiting.append(epoch)
                epoch += 1
            self._receive()
            waiting.popleft()
            self.served += 1

    def _send(self, request: FetchRequest) -> None:
        self._socket.sendall(framed(request, VERSION))

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            assert piece, "the node has closed the connection"
            found += piece
        return bytes(found)


def _topic(name: str, partitions: int) -> FetchTopic:
    return FetchTopic(
        topic=name,
        partitions=tuple(
            FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1) for number in range(partitions)
        ),
    )
