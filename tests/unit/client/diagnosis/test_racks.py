"""Reads from the closest replica: a finding for each reason why a client is not served in its rack."""

from collections.abc import Callable

import pytest

from tailrace.client.cluster_view import PartitionInfo, TopicInfo
from tailrace.client.diagnosis.findings import Finding, Verdict
from tailrace.client.diagnosis.racks import RackBroker, RackSurvey, SelectorKind, diagnose_rack
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId

KAFKAS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
OK, WARNING, FAILED = Verdict.OK, Verdict.WARNING, Verdict.FAILED


def broker(node_id: int, rack: str | None, **changes: object) -> RackBroker:
    """A broker with everything that it needs."""
    facts = {"node_id": node_id, "rack": rack, "selector": KAFKAS, "fetch_version": 17} | changes
    return RackBroker(**facts)  # type: ignore[arg-type]


def three(**changes: object) -> list[RackBroker]:
    return [broker(number, rack, **changes) for number, rack in ((1, "a"), (2, "b"), (3, "c"))]


def partition(
    leader: int,
    replicas: tuple[int, ...] = (1, 2, 3),
    *,
    number: int = 0,
    in_sync: tuple[int, ...] | None = None,
    offline: tuple[int, ...] = (),
) -> PartitionInfo:
    return PartitionInfo(
        partition=number,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(1),
        replicas=tuple(map(BrokerId, replicas)),
        in_sync_replicas=tuple(map(BrokerId, replicas if in_sync is None else in_sync)),
        offline_replicas=tuple(map(BrokerId, offline)),
        error=ErrorCode.NONE,
    )


def topic(*partitions: PartitionInfo) -> TopicInfo:
    return TopicInfo(name="orders", topic_id=TopicId(b"o" * 16), is_internal=False, partitions=partitions)


def diagnose(
    brokers: list[RackBroker], *partitions: PartitionInfo, rack: str = "a", fetch_version: int | None = None
) -> list[Finding]:
    survey = RackSurvey(brokers={each.node_id: each for each in brokers}, topics=[topic(*partitions)])
    return list(diagnose_rack(survey, rack, fetch_version=fetch_version))


def of(findings: list[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def failures(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.verdict is FAILED]


def test_a_replica_in_sync_in_the_rack_serves_it() -> None:
    findings = diagnose(three(), partition(2))
    assert {finding.verdict for finding in findings} == {OK}
    served = of(findings, "partition")
    assert (served.target, served.detail, served.advice) == ("orders 0", "served by broker 1", "")
    assert of(findings, "selector").target == "brokers 2, 3"


def test_a_leader_in_the_rack_serves_it_without_a_selector() -> None:
    findings = diagnose(three(selector=None), partition(1))
    assert of(findings, "partition").detail == "served by the leader, broker 1"
    assert (failures(findings), of(findings, "selector").verdict) == ([], WARNING), "another leader would not redirect"


def test_a_client_without_a_rack_sees_those_there_are() -> None:
    findings = diagnose(three(), partition(2), rack="")
    assert failures(findings) == ["client"]
    assert of(findings, "client").advice == "set client.rack of the client to its rack (a, b, c)"
    assert [finding.check for finding in findings] == ["client", "racks"], "nothing else is examined"


def test_brokers_without_racks_are_a_failure() -> None:
    findings = diagnose([broker(1, None), broker(2, "")], partition(2, (1, 2)))
    assert failures(findings) == ["racks"]
    assert "broker.rack" in of(findings, "racks").advice
    findings = diagnose([broker(1, None)], partition(1, (1,)), rack="")
    assert failures(findings) == ["client", "racks"], "on neither side"


def test_a_rack_without_brokers_is_compared_with_those_there_are() -> None:
    found = of(diagnose(three(), partition(2), rack="A"), "racks")
    assert (found.verdict, found.detail) == (FAILED, "no broker is in rack A (a: broker 1; b: broker 2; c: broker 3)")
    assert "letter by letter" in found.advice


def test_a_broker_without_a_rack_is_a_warning_when_others_have_one() -> None:
    findings = diagnose([*three(), broker(4, None)], partition(2))
    assert failures(findings) == []
    racks = [finding for finding in findings if finding.check == "racks"]
    assert [(each.verdict, each.detail) for each in racks][1] == (WARNING, "broker 4 without a rack")


@pytest.mark.parametrize("selector", [None, "", "LeaderSelector", "org.apache.kafka.common.replica.LeaderSelector"])
def test_a_leader_without_a_selector_serves_clients_of_all_racks(selector: str | None) -> None:
    findings = diagnose(three(selector=selector), partition(2))
    assert failures(findings) == ["selector", "partition"]
    assert of(findings, "selector").advice == f"set replica.selector.class={KAFKAS} on every broker, and restart"
    detail = of(findings, "partition").detail
    assert detail == "served by the leader, broker 2 (rack b): it does not redirect to broker 1"


@pytest.mark.parametrize("selector", [KAFKAS, "RackAwareReplicaSelector", "tailrace:RackAwareReplicaSelector"])
def test_a_selector_for_racks_has_several_names(selector: str) -> None:
    assert failures(diagnose(three(selector=selector), partition(2))) == []
    assert broker(1, "a", selector=selector).selector_kind is SelectorKind.RACK_AWARE


def test_a_selector_of_ones_own_is_a_warning() -> None:
    findings = diagnose(three(selector="mine.selectors:Cheapest"), partition(2))
    assert failures(findings) == []
    assert {finding.verdict for finding in findings if finding.check == "selector"} == {WARNING}
    assert of(findings, "partition").verdict is WARNING


def test_a_broker_that_does_not_describe_itself_is_a_warning() -> None:
    findings = diagnose(three(selector=None, fault="nothing listens there"), partition(2))
    assert failures(findings) == []
    details = {finding.detail for finding in findings if finding.check == "selector"}
    assert details == {"settings not described (nothing listens there)"}


def test_an_old_leader_and_an_old_client_know_no_racks() -> None:
    brokers = [broker(1, "a"), broker(2, "b", fetch_version=10), broker(3, "c", fetch_version=11)]
    findings = diagnose(brokers, partition(2), partition(3, number=1))
    assert failures(findings) == ["version", "partition"]
    assert of(findings, "version").target == "broker 2"
    found = of(diagnose(three(), partition(2), fetch_version=10), "client")
    assert (found.verdict, found.detail) == (FAILED, "its newest Fetch is 10; a rack is sent from 11 on (KIP-392)")
    assert "partition" not in {finding.check for finding in diagnose(three(), partition(2), fetch_version=10)}
    assert of(diagnose(three(), partition(2), fetch_version=11), "client").verdict is OK


Reason = tuple[PartitionInfo, str, str]


@pytest.mark.parametrize(
    ("made", "detail", "advice"),
    [
        (lambda: partition(2, (2, 3)), "no replica is in rack a", "topics reassign orders"),
        (lambda: partition(2, in_sync=(2, 3)), "the replica on broker 1 is not in sync", "caught up"),
        (lambda: partition(2, in_sync=(2, 3), offline=(1,)), "the replica on broker 1 does not run", "start broker 1"),
    ],
)
def test_a_rack_without_a_usable_replica_is_served_by_the_leader(
    made: Callable[[], PartitionInfo], detail: str, advice: str
) -> None:
    found = of(diagnose(three(), made()), "partition")
    assert (found.verdict, found.detail) == (FAILED, f"served by the leader, broker 2 (rack b): {detail}")
    assert advice in found.advice


def test_a_fenced_broker_serves_no_rack() -> None:
    brokers = [broker(1, "a", is_fenced=True), *three()[1:]]
    found = of(diagnose(brokers, partition(2)), "partition")
    assert (found.verdict, found.advice) == (FAILED, "start broker 1, or look at its disk")


def test_one_usable_replica_of_several_in_the_rack_is_enough() -> None:
    brokers = [*three(), broker(4, "a")]
    found = of(diagnose(brokers, partition(2, (1, 2, 4), in_sync=(2, 4))), "partition")
    assert (found.verdict, found.detail) == (OK, "served by broker 4")


def test_a_partition_without_a_leader_is_not_served_at_all() -> None:
    found = of(diagnose(three(), partition(NO_LEADER)), "partition")
    assert (found.verdict, found.detail) == (FAILED, "there is no leader")


def test_partitions_with_the_same_finding_are_shown_together() -> None:
    leaders = {0: 2, 1: 2, 2: 1, 3: 2, 7: 2}
    findings = diagnose(three(), *(partition(leader, number=number) for number, leader in leaders.items()))
    shown = [(finding.target, finding.detail) for finding in findings if finding.check == "partition"]
    assert shown == [("orders 0-1,3,7", "served by broker 1"), ("orders 2", "served by the leader, broker 1")]
