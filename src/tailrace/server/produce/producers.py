"""DescribeProducers (61): the producers with an id that a partition's leader remembers (KIP-664)."""

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import topic_name_fault
from tailrace.protocol.messages.producers import (
    ActiveProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionProducers,
    TopicProducers,
)
from tailrace.server.context import RequestContext
from tailrace.server.partitions.table import PartitionTable
from tailrace.storage.producers.state import ProducerEntry

_NO_SEQUENCE = -1


class DescribeProducersHandler:
    """Describes the producers of partitions, each once however often it is asked for."""

    def __init__(self, *, partitions: PartitionTable) -> None:
        self._partitions = partitions

    def handle(self, request: DescribeProducersRequest, context: RequestContext) -> DescribeProducersResponse:
        asked: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        return DescribeProducersResponse(
            topics=tuple(
                TopicProducers(name=name, partitions=tuple(self._describe(name, index) for index in indexes))
                for name, indexes in asked.items()
            )
        )

    def _describe(self, topic: str, index: int) -> PartitionProducers:
        try:
            if (fault := topic_name_fault(topic)) is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
            partition = self._partitions.get(topic, index)
            partition.check_leader()
        except KafkaError as refusal:
            return PartitionProducers(
                partition_index=index, error_code=refusal.code, error_message=refusal.detail, active_producers=()
            )
        producers = partition.log.producers.producers
        return PartitionProducers(
            partition_index=index,
            active_producers=tuple(_state(producer_id, entry) for producer_id, entry in producers.items()),
        )


def _state(producer_id: int, entry: ProducerEntry) -> ActiveProducer:
    return ActiveProducer(
        producer_id=producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.batches[-1].last_sequence if entry.batches else _NO_SEQUENCE,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )
