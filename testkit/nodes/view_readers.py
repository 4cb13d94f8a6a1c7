"""A node with a topic whose views are read, and readers of these views that know nothing of key ranges."""

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import contains, hash_of
from tailrace.model.views import folded_id, key_range_of, parse_view
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import Exchange, verified_by
from testkit.nodes.ports import ScriptedVerifier

FIRST_WITH_IDS = 13
LATEST = -1


class ViewNode(AdminPath):
    """A node with the topic `orders`, which takes transactional batches without a coordinator."""

    def __init__(
        self, *, partitions: int = 1, settings: Mapping[str, str] | None = None, clock: ManualClock | None = None
    ) -> None:
        super().__init__("/data", files=SimulatedDisk(), settings=settings, clock=clock)
        self.serve({**self.broker.handlers, **verified_by(ScriptedVerifier(), is_verified=False)(self.broker)})
        self.create_topics("orders", partitions=partitions)

    def write(self, *keys: bytes | None, partition: int = 0, **options: Any) -> None:
        """Write one batch of records with these keys."""
        transactional_id, value = options.pop("transactional_id", None), options.pop("value", b"value")
        records = [Record(number, 1_000 + number, key, value, ()) for number, key in enumerate(keys)]
        batch = bytes(build_batch(records, **options))
        self.produce("orders", records=batch, partition=partition, transactional_id=transactional_id)

    def view_id(self, view: str) -> TopicId:
        """The id of a view of a topic that exists."""
        parsed = parse_view(view)
        assert parsed is not None
        return folded_id(self.topic_id(parsed.topic), parsed.fan_out)

    def fetch_views(
        self,
        view: str,
        offsets: Mapping[int, int],
        *,
        version: int = 17,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        isolation: int = 0,
        same_turn: bool = False,
    ) -> Exchange:
        """Send a full fetch of these view partitions."""
        wanted = tuple(
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=max_bytes)
            for number, offset in offsets.items()
        )
        by_id = version >= FIRST_WITH_IDS
        topic = FetchTopic(
            topic="" if by_id else view, topic_id=self.view_id(view) if by_id else bytes(16), partitions=wanted
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            topics=(topic,),
        )
        return self.send(request, version, same_turn=same_turn)

    def ends(
        self,
        view: str,
        *partitions: int,
        timestamp: int = LATEST,
        isolation: int = 0,
        version: int = 9,
        count_from: int = -1,
    ) -> list[ListOffsetsPartitionResponse]:
        """The answers to ListOffsets for these partitions of a view or a topic."""
        wanted = tuple(
            ListOffsetsPartition(partition_index=number, timestamp=timestamp, count_from=count_from)
            for number in partitions
        )
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=isolation, topics=(ListOffsetsTopic(name=view, partitions=wanted),)
        )
        response = self.send(request, version).response
        return list(response.topics[0].partitions)

    def end(self, view: str, partition: int, **options: Any) -> int:
        """The end offset of one view partition."""
        (answer,) = self.ends(view, partition, **options)
        assert answer.error_code == 0
        return answer.offset


class ViewReader:
    """A reader of one view partition that goes on behind the last batch, as Kafka's consumer does."""

    def __init__(self, node: ViewNode, view: str, partition: int, **options: Any) -> None:
        """`options` are the options of `ViewNode.fetch_views`."""
        self.node = node
        self.view = view
        self.partition = partition
        self.position = 0
        self.records: list[Record] = []
        self.fetches = 0
        self._options = options

    def fetch(self, **options: Any) -> PartitionData:
        """Fetch once, and take what there is."""
        exchange = self.node.fetch_views(self.view, {self.partition: self.position}, **{**self._options, **options})
        data = exchange.fetched
        self.take(data)
        return data

    def take(self, data: PartitionData) -> None:
        """Take the records of an answer."""
        assert data.error_code == 0, data.error_code
        assert (data.applied_key_ranges, data.scanned_to) == ((), -1), "a client knows nothing of these"
        self.fetches += 1
        for header, records in batches_of(data):
            assert records, "no client gets a batch of no records"
            self.records += [record for record in records if record.offset >= self.position and not header.is_control]
            self.position = header.end_offset

    def read_on(self, *, until: int, most: int = 1_000) -> None:
        """Fetch until the position is at this offset."""
        for _ in range(most):
            if self.position >= until:
                return
            self.fetch()
        raise AssertionError(f"{self.position} after {most} fetches, not {until}")

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]


def batches_of(data: PartitionData) -> list[Any]:
    """The batches of an answer, with their headers and records."""
    view = bytes(data.records or b"")
    return [
        (header, read_records(view[position : position + header.size_bytes])) for position, header in iter_batches(view)
    ]


def offsets_of(keys: Sequence[bytes | None], number: int, fan_out: int, *, first: int = 0) -> list[int]:
    """The offsets of the records in a view partition, for records with these keys from offset `first` on."""
    wanted = [key_range_of(number, fan_out)]
    return [offset for offset, key in enumerate(keys, start=first) if contains(wanted, hash_of(key, offset))]
