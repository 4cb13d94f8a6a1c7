"""Clients of a node under load: their open requests, and producers that repeat what was not answered."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.protocol.records.record import Record, build_batch
from testkit.nodes.data_path import Exchange

ORDERS, COMPACTED, TRIMMED, SETTINGS = "orders", "last-value", "trimmed", "settings"
KEYS = 7


def key_of(value: str) -> str:
    """The key of a record of the compacted topic."""
    return str(int(value.partition(":")[2]) % KEYS)


@dataclass
class OpenRequest:
    """A request, and the action to take when it is answered, or when no answer comes."""

    then: Callable[[Any], None]
    unknown: Callable[[], None]
    exchange: Exchange | None = None


class LoadClient:
    """The requests of all clients that are not answered yet, in their order."""

    def __init__(self) -> None:
        self.asked: deque[OpenRequest] = deque()

    def ask(self, send: Callable[[], Exchange], then: Callable[[Any], None], unknown: Callable[[], None]) -> None:
        asked = OpenRequest(then, unknown)
        self.asked.append(asked)  # first: sending may be the last that this node does
        asked.exchange = send()

    def hear(self) -> None:
        while self.asked and (exchange := self.asked[0].exchange) is not None and exchange.is_answered:
            self.asked.popleft().then(exchange.response)

    def lose_connection(self) -> None:
        self.hear()  # an answer that left before the end has arrived
        while self.asked:
            self.asked.popleft().unknown()


class LoadProducer(LoadClient):
    """Sends numbered records to one partition; an idempotent producer repeats batches that were not answered."""

    def __init__(self, name: str, topic: str = ORDERS, partition: int = 0) -> None:
        super().__init__()
        self.name = name
        self.topic = topic
        self.partition = partition
        self.is_idempotent = not name.startswith("p")
        self.sent = 0
        self.producer_id = -1
        self.repeated: list[tuple[int, int]] = []
        """Batches to send again: first number and count of each batch."""

    def batch(self, first: int, count: int, now_ms: int) -> bytes:
        records = [
            Record(
                offset=number - first,
                timestamp=now_ms,
                key=key_of(value).encode() if self.topic == COMPACTED else None,
                value=value.encode(),
            )
            for number in range(first, first + count)
            for value in [f"{self.name}:{number}"]
        ]
        if not self.is_idempotent:
            return bytes(build_batch(records))
        return bytes(build_batch(records, producer_id=self.producer_id, producer_epoch=0, base_sequence=first))
