"""Placement of the replicas of a new topic on brokers (pure).

1. The replicas of a partition are on distinct brokers, and on as many racks as there are.
2. Leaders are dealt out in turn, so no broker leads two more partitions of a topic than another.
3. The followers of one broker's partitions are spread too: if it dies, its load does not fall on a single neighbour.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId

Replicas = tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableBroker:
    """A broker that can take replicas."""

    broker_id: BrokerId
    rack: str | None = None


def place(
    brokers: Sequence[UsableBroker], *, num_partitions: int, replication_factor: int, start: int
) -> tuple[Replicas, ...]:
    """The replicas of each partition, the leader-to-be first. `start`, any number, says with which broker to begin.

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
            # Every rack that is left has a replica already: start a second round over the racks.
            racks.clear()
            continue
        waiting.remove(follower)
        chosen.append(follower)
        racks.add(follower.rack)
    return tuple(broker.broker_id for broker in chosen)
