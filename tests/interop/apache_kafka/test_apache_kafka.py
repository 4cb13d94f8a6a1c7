"""Our administrator's client asks Apache Kafka of brokers, its quorum and features, and to elect and move."""

from collections.abc import Iterator

import pytest

from interop.differential.apache import ApacheKafka
from interop.kafka_tools import absent
from tailrace.client.admin.cluster import UpgradeType
from tailrace.client.admin.eligible_leaders import EligibleLeaders
from tailrace.client.blocking import Admin
from tailrace.client.diagnosis.rack_survey import survey_racks
from tailrace.client.diagnosis.racks import FIRST_FETCH_WITH_RACK
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import ElectionType, TopicPartition

pytestmark = pytest.mark.interop

NODE = 1
ORDERS = TopicPartition("orders", 0)
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def admin() -> Iterator[Admin]:
    """Admin of a broker that is its own controller, with one topic."""
    if why := absent():
        pytest.skip(why)
    settings = {"node.id": str(NODE), "broker.rack": "a", "replica.selector.class": RACK_AWARE}
    with ApacheKafka(settings) as kafka, Admin(kafka.address) as admin:
        admin.create_topics({"orders": 1})
        yield admin


def test_brokers_are_listed_and_those_that_never_were_not_unregistered(admin: Admin) -> None:
    (broker,) = admin.list_brokers()
    assert (broker.node_id, broker.is_fenced, broker.is_controller) == (NODE, False, True)
    with pytest.raises(KafkaError) as caught:
        admin.unregister_broker(NODE + 1)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_eligible_leaders_are_described(admin: Admin) -> None:
    assert admin.describe_eligible_leaders(["orders", "there-is-none"]) == {ORDERS: EligibleLeaders((), ())}


def test_its_quorum_is_described(admin: Admin) -> None:
    described = admin.describe_quorum()
    (voter,) = described.voters
    assert (described.leader_id, voter.replica_id, described.lag(voter)) == (NODE, NODE, 0)
    assert 0 < described.high_watermark <= voter.log_end_offset
    (endpoint,) = described.endpoints[voter.replica_id]
    assert endpoint.listener_name == "CONTROLLER"


def test_its_racks_and_selectors_are_surveyed(admin: Admin) -> None:
    survey = survey_racks(admin, ["orders"])
    broker = survey.brokers[NODE]
    assert (broker.rack, broker.selector, broker.fault) == ("a", RACK_AWARE, "")
    assert broker.fetch_version is not None
    assert broker.fetch_version >= FIRST_FETCH_WITH_RACK
    assert [topic.name for topic in survey.topics] == ["orders"]


def test_its_features_are_described_and_only_tried(admin: Admin) -> None:
    described = admin.describe_features()
    lowest, highest = described.supported["metadata.version"]
    assert described.finalized["metadata.version"] == highest
    assert described.epoch > 0
    admin.update_features({"metadata.version": highest}, validate_only=True)
    for kind in UpgradeType:
        with pytest.raises(KafkaError) as caught:
            admin.update_features({"metadata.version": lowest - 1}, upgrade_type=kind)
        assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("kind", ElectionType)
def test_a_partition_with_its_leader_needs_no_election(admin: Admin, kind: ElectionType) -> None:
    fault = admin.elect_leaders([ORDERS], election_type=kind)[ORDERS]
    assert fault is not None
    assert fault.code is ErrorCode.ELECTION_NOT_NEEDED
    assert admin.elect_leaders(election_type=kind) == {}


def test_a_partition_moves_to_where_it_is_and_nowhere_else(admin: Admin) -> None:
    admin.alter_partition_reassignments({ORDERS: [NODE]})
    assert admin.list_partition_reassignments([ORDERS]) == {}
    assert admin.list_partition_reassignments() == {}
    for replicas, code in (
        ([NODE + 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ):
        with pytest.raises(KafkaError, match="orders-0|broker") as caught:
            admin.alter_partition_reassignments({ORDERS: replicas})
        assert caught.value.code is code
    with pytest.raises(KafkaError) as caught:
        admin.alter_partition_reassignments({TopicPartition("orders", 7): [NODE]})
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
