"""The followers that a consumer reads from, and for how long (KIP-392). Pure.

1. The leader names a follower. That holds for a lease, metadata.max.age.ms, from when the id changes: the same id once
   more does not extend the lease. Then the leader is asked again: another replica may be nearer now.
2. After a fault of a follower its partitions are read from the leader, which receives no rack for a while: it would
   name the same follower again, and answer without records. So a follower that is gone costs a consumer less than a
   change of replica and a metadata request a minute.
3. A follower that is cut off from its leader answers without a fault, and has nothing new. So new metadata decide about
   a follower that has brought nothing for a while: after two seconds, then after twice as long each time, since perhaps
   there is nothing new.
"""

from typing import Final

from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition

AVOIDANCE_MS: Final = 60_000
"""The time after a fault of a follower in which a leader receives no rack; twice as long after each further fault,
at most a lease, until a follower has served."""

LEAST_LEASE_MS: Final = 1_000
"""The shortest lease: if leases were over before the first fetch, requests would go to the leader for ever."""

STILL_MS: Final = 2_000
"""The time without anything new after which a follower is looked at."""
MOST_STILL_MS: Final = 30_000
"""The longest time between two such looks: an idle consumer asks for metadata as often as that."""

_PATIENT: Final = (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH)
"""Faults of a follower that pass by themselves: it lags behind, or the client's metadata does."""
_MAX_STRIKES: Final = 3
"""Such faults in a row after which the leader serves."""


class _Look:
    """The next look at the follower of one partition."""

    __slots__ = ("due_ms", "pause_ms")

    def __init__(self, now_ms: int) -> None:
        self.due_ms = now_ms + STILL_MS
        self.pause_ms = STILL_MS

    def put_off(self, now_ms: int) -> None:
        self.pause_ms = min(self.pause_ms * 2, MOST_STILL_MS)
        self.due_ms = now_ms + self.pause_ms


class ReplicaLeases:
    """The leases of one consumer, and the leaders that do not receive its rack now."""

    def __init__(self, *, lease_ms: int) -> None:
        self._lease_ms = max(lease_ms, LEAST_LEASE_MS)
        self._leased: dict[TopicPartition, ConsumedPartition] = {}
        """The partitions with a lease, in the order of its end."""
        self._avoidance_ms: dict[int, int] = {}
        """The length of the next avoidance, by leader."""
        self._rackless_until_ms: dict[int, int] = {}
        self._looks: dict[TopicPartition, _Look] = {}
        self._next_look_ms = 0

    def begin(self, partition: ConsumedPartition, replica: int, now_ms: int) -> None:
        """Read this partition from the follower that the leader has just named."""
        partition.change_replica(replica, lease_end_ms=now_ms + self._lease_ms)
        self.forget(partition.name)  # the order is that of the insertions
        self._leased[partition.name] = partition
        self._looks[partition.name] = _Look(now_ms)

    def end_expired(self, now_ms: int) -> list[ConsumedPartition]:
        """Return to the leaders where the lease is over. Returns these partitions."""
        ended = []
        for partition in self._leased.values():
            if partition.lease_end_ms > now_ms:
                break
            ended.append(partition)
        for partition in ended:
            partition.change_replica(None)
            self.forget(partition.name)
        return ended

    def forget(self, name: TopicPartition) -> None:
        """End the lease without a change of replica: the partition is not read any more."""
        self._leased.pop(name, None)
        self._looks.pop(name, None)

    def leave(self, partition: ConsumedPartition, leader: int | None, now_ms: int) -> None:
        """Return to the leader before the lease is over: the follower has a fault. `leader` is None if unknown."""
        if partition.replica is not None:
            partition.change_replica(None)
            self.forget(partition.name)
            if leader is not None:
                self.avoid(leader, now_ms)

    def avoid(self, leader: int, now_ms: int) -> None:
        """Do not tell this leader the rack for a while."""
        if self.tells_rack(leader, now_ms):
            avoidance_ms = min(self._avoidance_ms.get(leader, AVOIDANCE_MS), self._lease_ms)
            self._rackless_until_ms[leader] = now_ms + avoidance_ms
            self._avoidance_ms[leader] = avoidance_ms * 2

    def tells_rack(self, leader: int, now_ms: int) -> bool:
        """Whether this leader receives the rack, and so may name a follower."""
        return self._rackless_until_ms.get(leader, now_ms) <= now_ms

    def served(self, partition: ConsumedPartition, now_ms: int) -> None:
        """Note that a follower has answered for this partition without a fault, and with news."""
        self._avoidance_ms.clear()
        if partition.name in self._looks:
            self._looks[partition.name] = _Look(now_ms)

    def still(self, now_ms: int) -> list[ConsumedPartition]:
        """The partitions whose followers have brought nothing new and are to be looked at now."""
        if now_ms < self._next_look_ms:
            return []
        self._next_look_ms = now_ms + STILL_MS // 2
        still = [self._leased[name] for name, look in self._looks.items() if look.due_ms <= now_ms]
        for partition in still:
            self._looks[partition.name].put_off(now_ms)
        return still

    @staticmethod
    def is_enough(partition: ConsumedPartition, code: ErrorCode) -> bool:
        """Whether this fault of its follower sends a partition back to the leader: at once, or after several faults in
        a row."""
        return code not in _PATIENT or partition.strikes >= _MAX_STRIKES
