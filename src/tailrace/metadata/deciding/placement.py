"""Placement of new partitions: the brokers of their replicas, the limits of the cluster, and their records (pure).

Replicas that no administrator has assigned are placed by these rules:
1. The replicas of a partition are on distinct brokers, and on as many racks as there are.
2. Leaders are dealt out in turn, so no broker leads two more partitions of a topic than another.
3. The followers of one broker's partitions are spread too: if it dies, its load does not fall on a single neighbour.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.metadata.image import BrokerImage, ClusterImage
from tailrace.metadata.records.topics import UNASSIGNED_DIRECTORY, PartitionRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId

Replicas = tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableBroker:
    """A broker that can take replicas."""

    broker_id: BrokerId
    rack: str | None = None


def place(
    brokers: Sequence[UsableBroker], *, num_partitions: int, replication_factor: int, start: int
) -> tuple[Replicas, ...]:
    """The replicas of each partition, the leader-to-be first. `start` may be any number, and decides the broker with
    which the placement begins.

    Raises KafkaError(INVALID_REPLICATION_FACTOR) if there are fewer brokers than replicas.
    """
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs as many brokers, and {len(brokers)} can be used",
        )
    ring = _racks_interleaved(brokers)
    return tuple(
        _replicas_of(
            ring,
            first=(start + partition) % len(ring),
            turn=(start + partition) // len(ring),
            wanted=replication_factor,
        )
        for partition in range(num_partitions)
    )


def _racks_interleaved(brokers: Sequence[UsableBroker]) -> list[UsableBroker]:
    """The brokers ordered so that neighbours are on different racks for as long as possible."""
    by_rack: dict[str | None, list[UsableBroker]] = defaultdict(list)
    for broker in sorted(brokers, key=lambda b: b.broker_id):
        by_rack[broker.rack].append(broker)
    ranks = [(rank, rack or "", broker) for rack, group in by_rack.items() for rank, broker in enumerate(group)]
    ranks.sort(key=lambda entry: entry[:2])
    return [broker for _, _, broker in ranks]


def _replicas_of(ring: list[UsableBroker], *, first: int, turn: int, wanted: int) -> Replicas:
    leader = ring[first]
    others = ring[first + 1 :] + ring[:first]
    shift = turn % len(others) if others else 0
    chosen = [leader]
    waiting = others[shift:] + others[:shift]
    racks = {leader.rack}
    while len(chosen) < wanted:
        follower = next((broker for broker in waiting if broker.rack not in racks), None)
        if follower is None:
            # Every rack that still has brokers was used in this round: start another round over the racks.
            racks.clear()
            continue
        waiting.remove(follower)
        chosen.append(follower)
        racks.add(follower.rack)
    return tuple(broker.broker_id for broker in chosen)


MAX_PARTITIONS_PER_REQUEST = 10_000
"""The most partitions of one request, as in Kafka: the records of one request are one batch in the log."""

RandomBytes = Callable[[int], bytes]


class NewPartitions:
    """The partitions of a command. Partitions that passed `check_limits` count against the limits of the next topic."""

    def __init__(
        self, image: ClusterImage, random_bytes: RandomBytes, *, max_per_topic: int, max_per_broker: int
    ) -> None:
        self._image = image
        self._random_bytes = random_bytes
        self._max_per_topic = max_per_topic
        self._max_per_broker = max_per_broker
        self._replicas_per_broker = Counter(image.replica_counts)

    def placed(self, count: int, replication_factor: int) -> tuple[Replicas, ...]:
        """Replicas for `count` partitions. Raises KafkaError(INVALID_REPLICATION_FACTOR)."""
        usable = [UsableBroker(broker_id=b.broker_id, rack=b.rack) for b in self._image.alive_brokers()]
        start = int.from_bytes(self._random_bytes(4), "big")
        return place(usable, num_partitions=count, replication_factor=replication_factor, start=start)

    def check_assignment(self, partition: int, replicas: Replicas, replication_factor: int) -> None:
        """Raises KafkaError(INVALID_REPLICA_ASSIGNMENT) for replicas that a person must not have asked for."""
        where = f"partition {partition}"
        if not replicas:
            raise bad_assignment(f"{where} has no replicas")
        if len(set(replicas)) < len(replicas):
            raise bad_assignment(f"{where} names a broker twice: {list(replicas)}")
        unknown = [broker_id for broker_id in replicas if broker_id not in self._image.brokers]
        if unknown:
            raise bad_assignment(f"{where} names brokers that are not registered: {unknown}")
        if len(replicas) != replication_factor:
            raise bad_assignment(
                f"{where} has {len(replicas)} replicas where another partition has {replication_factor}"
            )
        if not any(self._image.brokers[broker_id].is_alive for broker_id in replicas):
            raise bad_assignment(f"every broker of {where} is fenced: {list(replicas)}")

    def check_limits(self, replicas: tuple[Replicas, ...], *, existing: int = 0) -> None:
        """Refuse more replicas than the cluster allows, and count accepted replicas for later topics. The topic already
        has `existing` partitions.

        Raises KafkaError INVALID_PARTITIONS, POLICY_VIOLATION.
        """
        total = existing + len(replicas)
        if total > self._max_per_topic:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"{total} partitions: max.partitions.per.topic is {self._max_per_topic}"
            )
        if not replicas:
            return
        more = Counter(broker_id for each in replicas for broker_id in each)
        wanted = self._replicas_per_broker + more
        # Only brokers of the new replicas are checked: another broker may exceed the limit already, by a reassignment
        # or after the limit was lowered.
        broker_id, most = max(((broker, wanted[broker]) for broker in more), key=lambda item: item[1])
        if most > self._max_per_broker:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"broker {broker_id} would keep {most} partitions: max.partitions.per.node is {self._max_per_broker}",
            )
        self._replicas_per_broker = wanted

    def record(self, topic_id: TopicId, number: int, replicas: Replicas) -> PartitionRecord:
        """The record of one partition, led by the first of its brokers that is alive; there must be such a broker."""
        brokers = [self._image.brokers[broker_id] for broker_id in replicas]
        in_sync = tuple(broker.broker_id for broker in brokers if broker.is_alive)
        return PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=replicas,
            isr=in_sync,
            leader=in_sync[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=tuple(_directory(broker) for broker in brokers),
        )


def bad_assignment(fault: str) -> KafkaError:
    """The refusal of replicas that a person has asked for."""
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)


def _directory(broker: BrokerImage) -> bytes:
    """The only log directory of the broker. A broker with several directories chooses a directory, and reports it
    later."""
    return broker.log_directories[0] if len(broker.log_directories) == 1 else UNASSIGNED_DIRECTORY
