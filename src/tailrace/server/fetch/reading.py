"""One pass over the partitions of a fetch, within its byte budget."""

from tailrace.model.errors import KafkaError
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchPartition, FetchTopic, PartitionData
from tailrace.replication.partition import Partition
from tailrace.server.fetch.params import FetchParams
from tailrace.server.fetch.partition_reader import PartitionReader


class Reading:
    """The result of one pass. A waiting fetch does not keep it, and makes a new one later."""

    __slots__ = ("_budget", "_is_last", "_reader", "available_bytes", "given", "is_urgent", "params", "topics")

    def __init__(self, params: FetchParams, *, is_last: bool) -> None:
        """Read every partition. `is_last`: the answer is sent now, if need be with OFFSET_NOT_AVAILABLE (78)."""
        self.params = params
        self._reader = PartitionReader(params.reader, isolation=params.isolation, version=params.version)
        self._budget = params.budget()
        self._is_last = is_last
        self.is_urgent = False
        """Whether the result of a partition is urgent: the fetch must not wait."""
        self.available_bytes = 0
        """The readable bytes within the limits, of all partitions."""
        self.given: list[tuple[Partition, int]] = []
        """The partitions that were read, with the bytes of each."""
        self.topics = tuple(
            [
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=tuple([self._read(topic, wanted) for wanted in topic.partitions]),
                )
                for topic in params.topics
            ]
        )

    @property
    def ends_wait(self) -> bool:
        """Whether the answer is sent now: it is urgent, has enough bytes, or there is no partition to wait for."""
        return self.is_urgent or not self.given or self.available_bytes >= self.params.wanted_bytes

    def _read(self, topic: FetchTopic, wanted: FetchPartition) -> PartitionData:
        try:
            partition = self.params.partition(topic, wanted)
        except KafkaError as error:
            self.is_urgent = True
            return self._reader.refuse(wanted, error).data
        result = self._reader.read(partition, wanted, self._budget, is_last=self._is_last)
        self.is_urgent = self.is_urgent or result.is_urgent
        if result.partition is not None:
            self.given.append((result.partition, result.size_bytes))
            self.available_bytes += result.available_bytes
        return result.data
