"""Partitions without a complete replica: the records that each choice of a leader loses, and the choice.

Apache Kafka does not report the log ends of its replicas: it elects any live replica.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tailrace.client.admin.log_dirs import ReplicaLog, describe_replica_logs
from tailrace.client.admin.topics import describe_topics
from tailrace.client.partition_names import Pair, partitions_named
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import TopicPartition

_Logs = Mapping[BrokerId, Mapping[TopicPartition, ReplicaLog] | KafkaError]


class UncleanCandidate(NamedTuple):
    """A replica of a partition without a leader."""

    broker_id: BrokerId
    state: str
    """complete, behind, short, damaged, offline, unreachable or unknown."""
    good_end: int | None = None
    """The end of the good part of its log; None if unknown."""
    acknowledged_end: int | None = None
    lost: int | None = None
    """The most records that are lost if this replica is chosen."""
    fault: str = ""


class LeaderlessPartition(NamedTuple):
    """A partition without a leader, and its replicas in order of preference."""

    where: TopicPartition
    candidates: tuple[UncleanCandidate, ...]

    @property
    def recommended(self) -> UncleanCandidate | None:
        """The candidate with the highest good end; of equal ends an undamaged replica, then the preferred replica."""
        known = [candidate for candidate in self.candidates if candidate.good_end is not None]
        return max(known, key=lambda candidate: (candidate.good_end or 0, not candidate.fault), default=None)

    def chosen(self, replica: int | None) -> UncleanCandidate:
        """The replica of this broker, or the recommended replica. Raises KafkaError if it cannot lead."""
        if replica is None:
            if self.recommended is None:
                detail = f"{self.where}: no replica of it can be chosen"
                raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, detail)
            return self.recommended
        for candidate in self.candidates:
            if candidate.broker_id == replica:
                if candidate.state in ("offline", "unreachable"):
                    detail = f"{self.where}: the replica of broker {replica} is {candidate.state}: {candidate.fault}"
                    raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, detail)
                return candidate
        replicas = [candidate.broker_id for candidate in self.candidates]
        detail = f"broker {replica} has no replica of {self.where}; its replicas are on {replicas}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)


async def describe_leaderless(
    router: Router, partitions: Iterable[Pair] | None = None
) -> list[LeaderlessPartition] | None:
    """The partitions without a leader, among these partitions or in the cluster. None if the cluster does not report
    log ends."""
    wanted = None if partitions is None else set(partitions_named(partitions))
    names = None if wanted is None else sorted({where.topic for where in wanted})
    found: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    by_broker: dict[BrokerId, list[TopicPartition]] = defaultdict(list)
    for topic in await describe_topics(router, names, include_internal=True):
        for partition in topic.partitions:
            where = TopicPartition(topic.name, partition.partition)
            if partition.leader == NO_LEADER and (wanted is None or where in wanted):
                found[where] = partition.replicas
                for broker_id in partition.replicas:
                    by_broker[broker_id].append(where)
    if not found:
        return []
    logs = await describe_replica_logs(router, by_broker)
    faults = [answer for answer in logs.values() if isinstance(answer, KafkaError)]
    if len(faults) == len(logs) and any(fault.code is ErrorCode.UNSUPPORTED_VERSION for fault in faults):
        return None
    return [LeaderlessPartition(where, _candidates(where, replicas, logs)) for where, replicas in sorted(found.items())]


def _candidates(where: TopicPartition, replicas: Sequence[BrokerId], logs: _Logs) -> tuple[UncleanCandidate, ...]:
    described = {broker_id: each[where] for broker_id in replicas if where in (each := _of(logs[broker_id]))}
    acknowledged_end = max(
        (max(log.acknowledged_end_offset, log.good_end_offset) for log in described.values()), default=0
    )
    candidates = []
    for broker_id in replicas:
        answer, log = logs[broker_id], described.get(broker_id)
        if isinstance(answer, KafkaError):
            is_old = answer.code is ErrorCode.UNSUPPORTED_VERSION
            candidates.append(UncleanCandidate(broker_id, "unknown" if is_old else "unreachable", fault=answer.detail))
        elif log is None:
            candidates.append(UncleanCandidate(broker_id, "unknown", fault="the broker does not know this replica yet"))
        else:
            candidates.append(_candidate(broker_id, log, acknowledged_end))
    return tuple(candidates)


def _of(answer: Mapping[TopicPartition, ReplicaLog] | KafkaError) -> Mapping[TopicPartition, ReplicaLog]:
    return {} if isinstance(answer, KafkaError) else answer


def _candidate(broker_id: BrokerId, log: ReplicaLog, acknowledged_end: int) -> UncleanCandidate:
    noted_end = None if log.acknowledged_end_offset < 0 else log.acknowledged_end_offset
    if log.good_end_offset < 0:
        return UncleanCandidate(broker_id, "offline", acknowledged_end=noted_end, fault=log.fault)
    lost = max(acknowledged_end - log.good_end_offset, 0)
    if log.fault:
        state = "damaged"
    elif log.good_end_offset < log.acknowledged_end_offset:
        state = "short"
    else:
        state = "behind" if lost else "complete"
    return UncleanCandidate(broker_id, state, log.good_end_offset, noted_end, lost, log.fault)
