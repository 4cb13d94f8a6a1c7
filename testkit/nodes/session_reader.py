"""A reader with a fetch session whose requests a test decides."""

from collections.abc import Iterable, Mapping
from typing import Any

from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from testkit.nodes.data_path import DataPath, Exchange, topic_id_of
from testkit.nodes.ports import RecordingConnection


class SessionReader:
    """A consumer with one session whose requests a test decides."""

    def __init__(
        self,
        node: DataPath,
        *,
        version: int = 17,
        topic: str = "orders",
        connection: RecordingConnection | None = None,
    ) -> None:
        self.node = node
        self.version = version
        self.topic = topic
        self.session_id = 0
        self.epoch = 0
        self.connection = connection or RecordingConnection()

    def send(
        self,
        offsets: Mapping[int, int] | None = None,
        *,
        forgotten: Iterable[int] = (),
        max_wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        isolation: int = 0,
        rack_id: str = "",
        same_turn: bool = False,
    ) -> Exchange:
        """Send a fetch with the present id and epoch, which do not change. `offsets` names partitions."""
        topic_id = topic_id_of(self.topic)
        partitions = tuple(
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
            for number, offset in (offsets or {}).items()
        )
        named = (FetchTopic(topic=self.topic, topic_id=topic_id, partitions=partitions),) if partitions else ()
        gone = tuple(forgotten)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=named,
            rack_id=rack_id,
            forgotten_topics_data=(
                (ForgottenTopic(topic=self.topic, topic_id=topic_id, partitions=gone),) if gone else ()
            ),
        )
        return self.node.send(request, self.version, connection=self.connection, same_turn=same_turn)

    def open(self, offsets: Mapping[int, int], **options: Any) -> list[PartitionData]:
        """Begin a session with a full fetch of these partitions."""
        response: FetchResponse = self.send(offsets, **options).response
        assert response.error_code == 0
        assert response.session_id > 0, "no session"
        self.session_id, self.epoch = response.session_id, 1
        return answers(response)

    def next(self, offsets: Mapping[int, int] | None = None, **options: Any) -> list[PartitionData]:
        """Send the next incremental fetch; returns the answer."""
        exchange = self.send(offsets, **options)
        self.epoch += 1
        assert exchange.response.session_id == self.session_id
        return answers(exchange.response)


def answers(response: FetchResponse) -> list[PartitionData]:
    """The partitions of an answer, in their order in it."""
    assert response.error_code == 0
    return [data for topic in response.responses for data in topic.partitions]


def numbers(found: Iterable[PartitionData]) -> list[int]:
    """The numbers of these partitions."""
    return [data.partition_index for data in found]
