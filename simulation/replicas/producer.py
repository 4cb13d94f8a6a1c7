"""A producer of a simulated cluster: it sends each batch until the acknowledgement."""

from typing import Any, Final

from simulation.replicas.brokers import ReplicaBrokers
from simulation.replicas.requests import ask
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import Record, build_batch

CLIENT: Final = 1000
_RETRY_MS: Final = 60
_TIMEOUT_MS: Final = 400
_FATAL: Final = frozenset(
    (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR)
)
"""Error codes that a producer with one batch under way must never get."""


class Producer:
    """Sends values to one partition, one batch at a time, each batch until its acknowledgement."""

    def __init__(self, cluster: ReplicaBrokers, name: TopicPartition) -> None:
        self._cluster = cluster
        self.name = name
        self._sequence = 0
        self._sent = 0
        self._batch: bytes | None = None
        self._tries = 0
        self.acked = 0
        self.acknowledged: dict[int, int] = {}
        """Base offset -> checksum."""

    @property
    def is_busy(self) -> bool:
        return self._batch is not None

    def produce(self) -> None:
        """Send another batch, unless a batch is under way."""
        if self._batch is not None:
            return
        world = self._cluster.world
        size = world.between(1, 3, "records", self.name)
        values = [f"{self.name}/{self._sent + number}".encode() for number in range(size)]
        self._batch = bytes(
            build_batch(
                [Record(number, 1_700_000_000_000, b"k", value) for number, value in enumerate(values)],
                producer_id=100 + self.name.partition,
                producer_epoch=0,
                base_sequence=self._sequence,
            )
        )
        self._sent += size
        self._try()

    def _try(self) -> None:
        cluster = self._cluster
        batch = self._batch
        if batch is None:
            return
        self._tries += 1
        attempt = self._tries
        node = cluster.leader_of(self.name)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=_TIMEOUT_MS,
            topic_data=(
                TopicProduceData(
                    name=self.name.topic,
                    partition_data=(PartitionProduceData(index=self.name.partition, records=batch),),
                ),
            ),
        )
        if node is not None:
            ask(
                cluster.world,
                cluster.network,
                CLIENT,
                node,
                request,
                12,
                lambda response: self._answered(attempt, batch, response),
            )
        cluster.world.after(2 * _TIMEOUT_MS, lambda: self._give_up(attempt))

    def _give_up(self, attempt: int) -> None:
        if attempt == self._tries and self._batch is not None:
            self._try()

    def _answered(self, attempt: int, batch: bytes, response: Any) -> None:
        if response is None:
            self._retry(attempt)
            return
        answer = response.responses[0].partition_responses[0]
        code = ErrorCode(answer.error_code)
        if code in _FATAL and self._batch is batch:  # a late copy of a batch that is long acknowledged may hear it
            self._cluster.laws.out_of_order(self.name, code)
        if code is not ErrorCode.NONE:
            self._retry(attempt)
            return
        crc = read_header(batch).crc
        self._cluster.laws.acknowledged(self.name, answer.base_offset, crc)
        if self._batch is batch:
            self.acknowledged[answer.base_offset] = crc
            self.acked += 1
            self._sequence += read_header(batch).last_offset_delta + 1
            self._batch = None

    def _retry(self, attempt: int) -> None:
        if attempt == self._tries and self._batch is not None:
            self._cluster.world.after(_RETRY_MS, lambda: self._retry_now(attempt))

    def _retry_now(self, attempt: int) -> None:
        if attempt == self._tries:
            self._try()
