"""What follows for partitions when a broker goes or comes back, worked out and never written to the log.

Fencing a broker is one record. Every replica derives the same partition changes from it, from the image alone, in the
order (topic id, partition). The record carries the count and the checksum of the result, and a replica whose own result
differs stops: it runs other rules than the leader.

The rules belong to a metadata.version: those of one version are a module of their own, and are never edited once a
release has written that version. A change of rule is a new module under a new version.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple, Protocol
from zlib import crc32

from tailrace.metadata import rules_25, rules_26
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import PartitionState


class PartitionChange(NamedTuple):
    """The new state of one partition."""

    topic_id: TopicId
    partition: int
    state: PartitionState


Partitions = Iterable[tuple[TopicId, int, PartitionState]]


class Circumstances(Protocol):
    """What rules may look at besides the partition: the replicated image before the record, and nothing of one node."""

    def is_alive(self, broker_id: BrokerId, /) -> bool:
        """Whether this broker may lead."""
        ...

    def min_in_sync_replicas(self, topic_id: TopicId, /) -> int:
        """The setting of the topic, else of the cluster, else 1. May be more than the topic has replicas."""
        ...

    def allows_unclean_election(self, topic_id: TopicId, /) -> bool:
        """The setting `unclean.leader.election.enable`, found likewise."""
        ...


class Rules(Protocol):
    """The rules of one metadata.version. None means that the partition stays as it is."""

    def departure(
        self, broker_id: BrokerId, state: PartitionState, circumstances: Circumstances, /, *, unclean: bool
    ) -> PartitionState | None:
        """The broker may no longer lead nor be in sync; `unclean`: what it had acknowledged may be lost besides."""
        ...

    def arrival(
        self, broker_id: BrokerId, state: PartitionState, circumstances: Circumstances, /
    ) -> PartitionState | None:
        """The broker may lead again."""
        ...


_RULES: dict[int, Rules] = {25: rules_25, 26: rules_26}
OLDEST = min(_RULES)


def rules_of(metadata_version: int) -> Rules:
    """The rules that hold in a cluster of this finalized version."""
    return _RULES[metadata_version]


def on_departure(
    broker_id: BrokerId, partitions: Partitions, circumstances: Circumstances, rules: Rules, *, unclean: bool = False
) -> tuple[PartitionChange, ...]:
    """The partitions a fenced broker must give up."""
    return _in_order(
        PartitionChange(topic_id, partition, changed)
        for topic_id, partition, state in partitions
        if (changed := rules.departure(broker_id, state, circumstances, unclean=unclean)) is not None
    )


def on_arrival(
    broker_id: BrokerId, partitions: Partitions, circumstances: Circumstances, rules: Rules
) -> tuple[PartitionChange, ...]:
    """The partitions without a leader that this broker may now lead."""
    return _in_order(
        PartitionChange(topic_id, partition, changed)
        for topic_id, partition, state in partitions
        if (changed := rules.arrival(broker_id, state, circumstances)) is not None
    )


def _in_order(changes: Iterable[PartitionChange]) -> tuple[PartitionChange, ...]:
    return tuple(sorted(changes, key=lambda change: (change.topic_id, change.partition)))


_ENTRY = Struct(">16siiiii")


def checksum(changes: Iterable[PartitionChange]) -> int:
    """A CRC-32 over all that the changes say."""
    crc = 0
    for topic_id, partition, state in changes:
        in_sync = state.in_sync_replicas
        crc = crc32(
            _ENTRY.pack(topic_id, partition, state.leader, state.leader_epoch, state.partition_epoch, len(in_sync)),
            crc,
        )
        crc = crc32(b"".join(replica.to_bytes(4, "big") for replica in in_sync), crc)
        if state.eligible_leader_replicas or state.last_known_leaders or state.is_recovering:
            crc = crc32(_recovery_bytes(state), crc)
    return crc


def _recovery_bytes(state: PartitionState) -> bytes:
    """What partitions have only since 26; a partition with none of it gives the checksum it always gave."""
    eligible, last = state.eligible_leader_replicas, state.last_known_leaders
    numbers = (int(state.is_recovering), len(eligible), *eligible, len(last), *last)
    return b"".join(number.to_bytes(4, "big") for number in numbers)
