"""`tailrace topics elect --unclean`: the choice of a leader for a partition without a complete replica.

Without --force the command shows the records that each choice loses, and changes nothing. In a cluster that does not
report log ends (Apache Kafka) any live replica is elected, as by Kafka's own tool.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tailrace.cli.output import Row, say
from tailrace.client.admin.log_dirs import ReplicaLog
from tailrace.client.blocking import Admin
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import ElectionType, TopicPartition

CANDIDATE_COLUMNS = ("Topic", "Partition", "Replica", "State", "GoodEnd", "AcknowledgedEnd", "Lost", "Choice")

_Logs = Mapping[BrokerId, Mapping[TopicPartition, ReplicaLog] | KafkaError]
Results = dict[TopicPartition, KafkaError | None]


class UncleanCandidate(NamedTuple):
    """One replica of a partition without a leader."""

    broker_id: BrokerId
    state: str
    """complete, behind, short, damaged, offline, unreachable or unknown."""
    good_end: int | None = None
    """The end of the good part of its log; None if that is not known."""
    acknowledged_end: int | None = None
    lost: int | None = None
    """The most records that are lost if it is chosen."""
    fault: str = ""


class Leaderless(NamedTuple):
    """A partition without a leader, and its replicas in order of preference."""

    where: TopicPartition
    candidates: tuple[UncleanCandidate, ...]

    @property
    def recommended(self) -> UncleanCandidate | None:
        """The candidate with the highest good end; of equal ones an undamaged one, then the preferred one."""
        known = [one for one in self.candidates if one.good_end is not None]
        return max(known, key=lambda one: (one.good_end or 0, not one.fault), default=None)

    def rows(self) -> Iterable[Row]:
        """The rows of a table, one for each candidate."""
        best = self.recommended
        for one in self.candidates:
            yield {
                "Topic": self.where.topic,
                "Partition": self.where.partition,
                "Replica": one.broker_id,
                "State": one.state,
                "GoodEnd": one.good_end,
                "AcknowledgedEnd": one.acknowledged_end,
                "Lost": one.lost,
                "Choice": "recommended" if one is best else "",
                "Fault": one.fault,
            }


def leaderless(admin: Admin, wanted: Iterable[TopicPartition] | None) -> list[Leaderless] | None:
    """Those of these partitions, or of all, without a leader. None if the cluster does not report log ends."""
    chosen = None if wanted is None else set(wanted)
    names = None if chosen is None else sorted({one.topic for one in chosen})
    found: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    by_broker: dict[BrokerId, list[TopicPartition]] = defaultdict(list)
    for topic in admin.describe_topics(names, include_internal=True):
        for partition in topic.partitions:
            where = TopicPartition(topic.name, partition.partition)
            if partition.leader == NO_LEADER and (chosen is None or where in chosen):
                found[where] = partition.replicas
                for broker_id in partition.replicas:
                    by_broker[broker_id].append(where)
    if not found:
        return []
    logs = admin.describe_replica_logs(by_broker)
    faults = [one for one in logs.values() if isinstance(one, KafkaError)]
    if len(faults) == len(logs) and any(one.code is ErrorCode.UNSUPPORTED_VERSION for one in faults):
        return None
    return [Leaderless(where, _candidates(where, replicas, logs)) for where, replicas in sorted(found.items())]


def _candidates(where: TopicPartition, replicas: Sequence[BrokerId], logs: _Logs) -> tuple[UncleanCandidate, ...]:
    described = {broker_id: each[where] for broker_id in replicas if where in (each := _of(logs[broker_id]))}
    acknowledged_end = max(
        (max(one.acknowledged_end_offset, one.good_end_offset) for one in described.values()), default=0
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


def say_what_is_lost(partitions: Sequence[Leaderless]) -> None:
    """Print the faults and losses of the candidates, which the table does not show."""
    for one in partitions:
        for candidate in one.candidates:
            if candidate.fault:
                say(f"{one.where} on broker {candidate.broker_id}: {candidate.state}: {candidate.fault}")
        best = one.recommended
        if best is None:
            say(f"{one.where}: no replica can be chosen; start brokers {[each.broker_id for each in one.candidates]}")
            continue
        say(
            f"{one.where}: with broker {best.broker_id} up to {best.lost} records are lost,"
            f" from offset {best.good_end} on"
        )
        if any(each.state in ("unreachable", "unknown") for each in one.candidates):
            say(f"{one.where}: a replica that cannot be asked may have more")
    if partitions:
        say("nothing was changed; --force elects the recommended replica, or that of --replica, and gives up the rest")


def elect_named(admin: Admin, partitions: Sequence[Leaderless], replica: int | None) -> Results:
    """Elect the recommended replicas, or this one. Returns None or the error for each partition."""
    results: Results = {}
    desired: dict[TopicPartition, int] = {}
    for one in partitions:
        try:
            chosen = _chosen(one, replica)
        except KafkaError as fault:
            results[one.where] = fault
            continue
        desired[one.where] = chosen.broker_id
        lost = "an unknown number of" if chosen.lost is None else f"up to {chosen.lost}"
        say(f"{one.where}: broker {chosen.broker_id} is to lead; {lost} records are given up")
    if desired:
        results |= admin.elect_leaders(list(desired), election_type=ElectionType.UNCLEAN, desired_leaders=desired)
    return results


def _chosen(one: Leaderless, replica: int | None) -> UncleanCandidate:
    if replica is None:
        if one.recommended is None:
            raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{one.where}: no replica of it can be chosen")
        return one.recommended
    for candidate in one.candidates:
        if candidate.broker_id == replica:
            if candidate.state in ("offline", "unreachable"):
                detail = f"{one.where}: the replica of broker {replica} is {candidate.state}: {candidate.fault}"
                raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, detail)
            return candidate
    replicas = [candidate.broker_id for candidate in one.candidates]
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"broker {replica} has no replica of {one.where}; its replicas are on {replicas}"
    )
