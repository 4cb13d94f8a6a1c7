"""Tailrace's own consumer as a member of a group, beside the members of foreign clients."""

from collections.abc import Sequence

from interop.librdkafka import Confluent, Message
from tailrace.client.blocking import Consumer
from tailrace.client.reader_settings import GroupProtocol


class OwnMember:
    """A consumer of ours in a group."""

    def __init__(self, bootstrap: str, topic: str, group: str, protocol: GroupProtocol) -> None:
        self._consumer = Consumer(
            bootstrap,
            group=group,
            topics=[topic],
            group_protocol=protocol,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
        )

    def poll(self) -> list[Message]:
        records = self._consumer.poll(0.1)
        return [Message(record.key, record.value, record.headers) for record in records]

    def assignment(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


class OwnClassic:
    """Our consumer by the classic protocol. Its records are produced by another client, as in any group."""

    name = "tailrace"
    protocol: GroupProtocol = "classic"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        Confluent().produce(bootstrap, topic, messages, codec)

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        return Confluent().consume(bootstrap, topic, count)

    def join(self, bootstrap: str, topic: str, group: str) -> OwnMember:
        return OwnMember(bootstrap, topic, group, self.protocol)


class OwnConsumerProtocol(OwnClassic):
    """Our consumer with group.protocol=consumer (KIP-848)."""

    name = "tailrace-kip-848"
    protocol = "consumer"
