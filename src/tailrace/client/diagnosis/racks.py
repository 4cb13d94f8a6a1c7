"""A diagnosis of reads from the closest replica (KIP-392): why a client of one rack is not served in that rack. Pure.

A partition is served in a rack if its leader is there. Otherwise four conditions must hold, and the first that does not
hold is the finding: the rack has a replica; its broker runs; the replica is in sync; the leader redirects the client to
the replica, for which it needs a selector for racks and Fetch 11.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from tailrace.client.cluster_view import PartitionInfo, TopicInfo
from tailrace.client.diagnosis.findings import Finding, Verdict

SELECTOR: Final = "replica.selector.class"
FIRST_FETCH_WITH_RACK: Final = 11
_RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class SelectorKind(Enum):
    """The choice of a broker's selector."""

    NONE = auto()
    """Always the leader."""
    RACK_AWARE = auto()
    OTHER = auto()
    """Unknown: a class that is not Kafka's, or settings that the broker does not describe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RackBroker:
    """A broker, as far as racks are concerned."""

    node_id: int
    rack: str | None
    is_fenced: bool = False
    selector: str | None = None
    """The value of `replica.selector.class`; None or empty without a selector."""
    fetch_version: int | None = None
    """The newest Fetch that the broker answers; None if unknown."""
    fault: str = ""
    """The reason why the broker did not describe itself; empty if there is a description."""

    @property
    def selector_kind(self) -> SelectorKind:
        if self.fault:
            return SelectorKind.OTHER
        name = (self.selector or "").replace(":", ".").rpartition(".")[2]
        kinds = {"RackAwareReplicaSelector": SelectorKind.RACK_AWARE, "LeaderSelector": SelectorKind.NONE}
        return kinds.get(name, SelectorKind.OTHER) if name else SelectorKind.NONE

    @property
    def redirects(self) -> bool:
        """Whether the broker redirects clients to the replicas of their racks, where the broker leads."""
        return self.selector_kind is SelectorKind.RACK_AWARE and not self.is_too_old

    @property
    def is_too_old(self) -> bool:
        return self.fetch_version is not None and self.fetch_version < FIRST_FETCH_WITH_RACK


@dataclass(frozen=True, slots=True, kw_only=True)
class RackSurvey:
    """A cluster's brokers and the topics in question."""

    brokers: Mapping[int, RackBroker]
    topics: Sequence[TopicInfo]

    def members(self, rack: str) -> list[int]:
        """The brokers of a rack."""
        return [broker.node_id for broker in self.brokers.values() if broker.rack == rack]

    def rack_of(self, node_id: int) -> str | None:
        broker = self.brokers.get(node_id)
        return None if broker is None else broker.rack


def diagnose_rack(survey: RackSurvey, rack: str, *, fetch_version: int | None = None) -> Iterator[Finding]:
    """The findings for a client with this `client.rack` (empty without a rack) and this newest version of Fetch (None
    if unknown).

    Without a rack on either side, or with a client that leaders have to serve, no partition is examined.
    """
    client = _judge_client(survey, rack, fetch_version)
    yield client
    racks = list(_judge_racks(survey, rack))
    yield from racks
    if any(finding.verdict is Verdict.FAILED for finding in (client, *racks)):
        return
    judged = [(topic, _judge_topic(survey, topic, rack)) for topic in survey.topics]
    yield from _judge_redirects(survey, rack, _unserved_leaders(judged))
    for topic, outcomes in judged:
        yield from _findings(topic.name, outcomes)


def _judge_client(survey: RackSurvey, rack: str, fetch_version: int | None) -> Finding:
    if not rack:
        there = sorted({broker.rack for broker in survey.brokers.values() if broker.rack})
        advice = f"set client.rack of the client to its rack ({', '.join(there)})" if there else "set client.rack"
        return _failed("client", "client", "it has no rack, so that leaders serve it", advice)
    if fetch_version is not None and fetch_version < FIRST_FETCH_WITH_RACK:
        detail = f"its newest Fetch is {fetch_version}; a rack is sent from {FIRST_FETCH_WITH_RACK} on (KIP-392)"
        return _failed("client", "client", detail, "use a newer client; Java's has client.rack from 2.4 on")
    return _ok("client", "client", f"rack {rack}")


def _judge_racks(survey: RackSurvey, rack: str) -> Iterator[Finding]:
    members: dict[str, list[int]] = defaultdict(list)
    for broker in survey.brokers.values():
        if broker.rack:
            members[broker.rack].append(broker.node_id)
    if not members:
        yield _failed("racks", "brokers", "no broker has a rack", "set broker.rack on every broker, and restart it")
        return
    shown = "; ".join(f"{name}: {_brokers(ids)}" for name, ids in sorted(members.items()))
    if rack and rack not in members:
        advice = f"set client.rack to a rack of this list, letter by letter, or broker.rack={rack} on brokers there"
        yield _failed("racks", "brokers", f"no broker is in rack {rack} ({shown})", advice)
    else:
        yield _ok("racks", "brokers", shown)
    without = [broker.node_id for broker in survey.brokers.values() if not broker.rack]
    if without:
        advice = "set broker.rack there, and restart: their replicas are in no rack"
        yield _warning("racks", "brokers", f"{_brokers(without)} without a rack", advice)


class _Outcome(NamedTuple):
    """The finding of one partition, without its number."""

    verdict: Verdict
    detail: str
    advice: str = ""


def _unserved_leaders(judged: Iterable[tuple[TopicInfo, Mapping[int, _Outcome]]]) -> set[int]:
    """The leaders of the partitions that are not served in the rack."""
    return {
        partition.leader
        for topic, outcomes in judged
        for partition in topic.partitions
        if outcomes[partition.partition].verdict is not Verdict.OK
    }


def _judge_redirects(survey: RackSurvey, rack: str, unserved: Set[int]) -> Iterator[Finding]:
    """The brokers outside the rack, any of which may lead and would have to redirect.

    A fault is a failure at a broker that leads an unserved partition, and a warning at any other broker.
    """
    outside = [broker for broker in survey.brokers.values() if broker.rack != rack and not broker.is_fenced]
    if not outside:
        return
    by_kind: dict[SelectorKind, list[RackBroker]] = defaultdict(list)
    for broker in outside:
        by_kind[broker.selector_kind].append(broker)
    if aware := by_kind[SelectorKind.RACK_AWARE]:
        yield _ok("selector", _brokers(_ids(aware)), f"{SELECTOR}={aware[0].selector}")
    if missing := by_kind[SelectorKind.NONE]:
        yield Finding(
            check="selector",
            target=_brokers(_ids(missing)),
            verdict=_severity(missing, unserved),
            detail=f"{SELECTOR} is not set, or names the leader: consumers read from leaders",
            advice=f"set {SELECTOR}={_RACK_AWARE} on every broker, and restart",
        )
    for broker in by_kind[SelectorKind.OTHER]:
        what = f"settings not described ({broker.fault})" if broker.fault else f"{SELECTOR}={broker.selector}"
        advice = f"this class chooses by rules of its own; {_RACK_AWARE} chooses by rack"
        yield _warning("selector", _brokers([broker.node_id]), what, "" if broker.fault else advice)
    if old := [broker for broker in outside if broker.is_too_old]:
        yield Finding(
            check="version",
            target=_brokers(_ids(old)),
            verdict=_severity(old, unserved),
            detail=f"the newest Fetch is {old[0].fetch_version}, without the rack of the client (KIP-392)",
            advice="upgrade: Apache Kafka has it from 2.4 on",
        )


def _severity(brokers: Sequence[RackBroker], unserved: Set[int]) -> Verdict:
    return Verdict.FAILED if any(broker.node_id in unserved for broker in brokers) else Verdict.WARNING


def _judge_topic(survey: RackSurvey, topic: TopicInfo, rack: str) -> dict[int, _Outcome]:
    return {
        partition.partition: _judge_partition(survey, topic.name, partition, rack) for partition in topic.partitions
    }


def _judge_partition(survey: RackSurvey, topic: str, partition: PartitionInfo, rack: str) -> _Outcome:
    leader = survey.brokers.get(partition.leader)
    if leader is None:
        advice = f"`tailrace topics describe {topic}` shows the replicas: start a broker that has one"
        return _Outcome(Verdict.FAILED, "there is no leader", advice)
    if leader.rack == rack:
        return _Outcome(Verdict.OK, f"served by the leader, broker {leader.node_id}")
    led = f"served by the leader, broker {leader.node_id} ({_rack_name(leader.rack)}): "
    here = [node_id for node_id in partition.replicas if survey.rack_of(node_id) == rack]
    if not here:
        there = survey.members(rack)
        advice = f"give {_brokers(there)} a replica: `tailrace topics reassign {topic} --partition N --replicas ...`"
        return _Outcome(Verdict.FAILED, f"{led}no replica is in rack {rack}", advice)
    running = [node_id for node_id in here if _runs(survey, partition, node_id)]
    if not running:
        detail = f"{led}the replica on {_brokers(here)} does not run"
        return _Outcome(Verdict.FAILED, detail, f"start {_brokers(here)}, or look at its disk")
    in_sync = [node_id for node_id in running if node_id in partition.in_sync_replicas]
    if not in_sync:
        advice = (
            f"it joins when it has caught up; if it does not, look into the log of {_brokers(running)},"
            " and at replication throttles"
        )
        return _Outcome(Verdict.FAILED, f"{led}the replica on {_brokers(running)} is not in sync", advice)
    if leader.redirects:
        return _Outcome(Verdict.OK, f"served by {_brokers(in_sync)}")
    if leader.is_too_old or leader.selector_kind is SelectorKind.NONE:
        # The finding about the leader has the advice.
        return _Outcome(Verdict.FAILED, f"{led}it does not redirect to {_brokers(in_sync)}")
    return _Outcome(Verdict.WARNING, f"{led}whether it redirects to {_brokers(in_sync)} is not known")


def _runs(survey: RackSurvey, partition: PartitionInfo, node_id: int) -> bool:
    return not survey.brokers[node_id].is_fenced and node_id not in partition.offline_replicas


def _findings(topic: str, outcomes: Mapping[int, _Outcome]) -> Iterator[Finding]:
    """A finding for the partitions with the same outcome."""
    same: dict[_Outcome, list[int]] = defaultdict(list)
    for number, outcome in outcomes.items():
        same[outcome].append(number)
    for (verdict, detail, advice), numbers in same.items():
        target = f"{topic} {_ranges(numbers)}"
        yield Finding(check="partition", target=target, verdict=verdict, detail=detail, advice=advice)


def _ranges(numbers: Iterable[int]) -> str:
    """`0-2,5` for 0, 1, 2 and 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _ids(brokers: Iterable[RackBroker]) -> list[int]:
    return [broker.node_id for broker in brokers]


def _brokers(ids: Sequence[int]) -> str:
    return f"broker{'s' if len(ids) > 1 else ''} {', '.join(map(str, sorted(ids)))}"


def _rack_name(rack: str | None) -> str:
    return f"rack {rack}" if rack else "without a rack"


def _ok(check: str, target: str, detail: str) -> Finding:
    return Finding(check=check, target=target, verdict=Verdict.OK, detail=detail)


def _warning(check: str, target: str, detail: str, advice: str) -> Finding:
    return Finding(check=check, target=target, verdict=Verdict.WARNING, detail=detail, advice=advice)


def _failed(check: str, target: str, detail: str, advice: str) -> Finding:
    return Finding(check=check, target=target, verdict=Verdict.FAILED, detail=detail, advice=advice)
