"""The coordinators of this node, one for each partition of an internal topic that it leads, as the image says.

    loading --log replayed--> active --leadership gone--> closed
    loading --the log cannot be read--> failed

Nobody is served but by an active one. A partition that is led again, in another epoch, gets another coordinator.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.key_hash import coordinator_partition
from tailrace.model.partitions import TopicPartition
from tailrace.replication.partition import Partition


class HostState(Enum):
    """Where a coordinator partition stands on this node."""

    LOADING = auto()
    ACTIVE = auto()
    FAILED = auto()
    CLOSED = auto()

    def check_active(self, partition: TopicPartition) -> None:
        """Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS (14), COORDINATOR_NOT_AVAILABLE (15), NOT_COORDINATOR (16)."""
        if self is not HostState.ACTIVE:
            code, why = _REFUSALS[self]
            raise KafkaError(code, f"{partition}: {why}")


_REFUSALS = {
    HostState.LOADING: (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "its log is being read"),
    HostState.FAILED: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "its log cannot be read"),
    HostState.CLOSED: (ErrorCode.NOT_COORDINATOR, "another broker leads it now"),
}


class CoordinatorHost(Protocol):
    """The coordinator of one partition, from the moment this node leads it until it no longer does."""

    @property
    def partition(self) -> Partition: ...

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """In which the partition was led when it was taken over."""
        ...

    def close(self) -> None:
        """The leadership is gone: whoever waits is told."""
        ...


H = TypeVar("H", bound=CoordinatorHost)


class LedCoordinators(Generic[H]):
    """The coordinators by partition of `topic`. None until the first `on_image`."""

    def __init__(
        self,
        topic: str,
        *,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        take_over: Callable[[Partition], H],
    ) -> None:
        """`take_over` makes a coordinator, and starts it."""
        self._topic = topic
        self._broker_id = broker_id
        self._image = EMPTY_IMAGE
        self._find_partition = find_partition
        self._take_over = take_over
        self._hosts: dict[int, H] = {}
        self._is_closed = False

    @property
    def by_number(self) -> Mapping[int, H]:
        return self._hosts

    @property
    def image(self) -> ClusterImage:
        """The last one."""
        return self._image

    def on_image(self, image: ClusterImage) -> None:
        """Take over and give up partitions as the image says. To be called when the partitions have their roles."""
        self._image = image
        if self._is_closed:
            return
        led = {partition.topic_partition.partition: partition for partition in self._led_partitions()}
        for number, host in tuple(self._hosts.items()):
            if led.get(number) is not host.partition or host.leader_epoch != host.partition.leader_epoch:
                host.close()
                del self._hosts[number]
        for number in led.keys() - self._hosts.keys():
            self._hosts[number] = self._take_over(led[number])

    def _led_partitions(self) -> Iterator[Partition]:
        topic = self._image.topics.get(self._topic)
        for number, state in topic.partitions.items() if topic is not None else ():
            if state.leader == self._broker_id:
                partition = self._find_partition(self._topic, number)
                if partition is not None and partition.is_leader:
                    yield partition

    def of_key(self, key: str) -> H | None:
        """The coordinator of this group or transactional id, in whatever state; None if it is not here."""
        topic = self._image.topics.get(self._topic)
        return None if topic is None else self.of_partition(coordinator_partition(key, len(topic.partitions)))

    def of_partition(self, number: int) -> H | None:
        """The coordinator of this partition, in whatever state; None if it is not here."""
        if number not in self._hosts and self._topic in self._image.topics and not self._is_closed:
            # A partition may come later than the image that speaks of it: its predecessor has to be flushed first.
            partition = self._find_partition(self._topic, number)
            if partition is not None and partition.is_leader:
                self._hosts[number] = self._take_over(partition)
        return self._hosts.get(number)

    def close(self) -> None:
        """The node stops: whoever waits is sent elsewhere."""
        self._is_closed = True
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
