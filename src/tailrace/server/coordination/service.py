"""All coordinators of one kind on this node: one for each partition of their internal topic that it leads.

The image says which partitions those are. A partition that is led again, in another epoch, gets another coordinator.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.key_hash import coordinator_partition
from tailrace.replication.partition import Partition
from tailrace.server.coordination.host import CoordinatorHost
from tailrace.server.ports import Clock
from tailrace.server.waiters import Deadlines

K = TypeVar("K")
H = TypeVar("H", bound=CoordinatorHost[Any, Any, Any, Any])

_LONGEST_KEY: Final = 8191
"""Characters: at most 32,764 bytes, which an int16 can count."""


class CoordinatorService(ABC, Generic[K, H]):
    """The coordinators of this node by partition of `topic`: `K` are their keys, `H` their hosts.

    Knows nothing and refuses everything until the first `on_image`.
    """

    def __init__(
        self,
        topic: str,
        *,
        noun: str,
        key_text: Callable[[K], str],
        invalid_key: ErrorCode,
        max_keys: int,
        limit: str,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        clock: Clock,
    ) -> None:
        """`noun` is a key's in error texts; the hash of `key_text` is the key's partition.

        A key that no record can have is refused with `invalid_key`, one that would be new when this node has `max_keys`
        with INVALID_REQUEST; `limit` is the setting that holds that number.
        """
        self._topic = topic
        self._noun = noun
        self._key_text = key_text
        self._invalid_key = invalid_key
        self._max_keys = max_keys
        self._limit = limit
        self._broker_id = broker_id
        self._find_partition = find_partition
        self._clock = clock
        self._deadlines = Deadlines(clock)
        self._image = EMPTY_IMAGE
        self._hosts: dict[int, H] = {}
        self._is_closed = False

    @abstractmethod
    def _host(self, partition: Partition) -> H:
        """A new coordinator, not loaded yet."""

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
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
            self._take_over(number, led[number])

    def _led_partitions(self) -> Iterator[Partition]:
        topic = self._image.topics.get(self._topic)
        for number, state in topic.partitions.items() if topic is not None else ():
            if state.leader == self._broker_id:
                partition = self._find_partition(self._topic, number)
                if partition is not None and partition.is_leader:
                    yield partition

    def _take_over(self, number: int, partition: Partition) -> None:
        host = self._hosts[number] = self._host(partition)
        host.load()

    def host_of(self, key: K, *, check_room: bool = False) -> H:
        """The coordinator of this key, ready to serve; to be asked for once in a request.

        Raises KafkaError with the code of an invalid key, NOT_COORDINATOR (16), what `CoordinatorHost.check_active`
        raises, and with `check_room` INVALID_REQUEST (42) if the key would be new and this node has its fill of them.
        """
        text = self._key_text(key)
        if not text or len(text) > _LONGEST_KEY:
            raise KafkaError(self._invalid_key, f"a {self._noun} is not empty, and not longer than a record's key")
        topic = self._image.topics.get(self._topic)
        host = None if topic is None else self._host_at(coordinator_partition(text, len(topic.partitions)))
        if host is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate {self._noun} {text!r}")
        host.check_active()
        if check_room and not host.has(key):
            self._check_room()
        return host

    def _check_room(self) -> None:
        if sum(host.key_count for host in self._hosts.values()) >= self._max_keys:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this broker has {self._max_keys} {self._noun}s, as many as it takes by {self._limit}",
            )

    def _host_at(self, number: int) -> H | None:
        """The coordinator of this partition, in any state; None if it is not here."""
        if number not in self._hosts and self._topic in self._image.topics and not self._is_closed:
            # A partition may come later than the image that speaks of it: its predecessor has to be flushed first.
            partition = self._find_partition(self._topic, number)
            if partition is not None and partition.is_leader:
                self._take_over(number, partition)
        return self._hosts.get(number)

    def active_hosts(self) -> list[H]:
        """All coordinators here. Raises what `CoordinatorHost.check_active` raises if one is not ready."""
        for host in self._hosts.values():
            host.check_active()
        return list(self._hosts.values())

    def close(self) -> None:
        """The node stops: all that wait are sent elsewhere."""
        self._is_closed = True
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
