"""Refusals because another broker leads name the address of that broker (KIP-951)."""

from typing import Any

import pytest

from tailrace.metadata.broker_commands import FenceBroker, RegisterBroker, UnfenceBroker
from tailrace.metadata.commands import TopicSpec
from tailrace.metadata.image import Endpoint
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import batch_of
from testkit.nodes.ports import RecordingConnection
from testkit.quorum.controller_commands import create_topics

PRODUCE, FETCH = 0, 1
OTHER = BrokerId(2)
PARTITIONS = 4


@pytest.fixture
def node() -> AdminPath:
    """Broker 2 is alive too, and leads some partitions of `shared`."""
    node = AdminPath("/data", files=SimulatedDisk())
    endpoints = tuple(
        Endpoint(listener_name=name, host=host, port=9094)
        for name, host in (("PLAINTEXT", "10.0.0.2"), ("INSIDE", "192.168.0.2"))
    )
    node.submit(RegisterBroker(broker_id=OTHER, incarnation_id=b"2" * 16, endpoints=endpoints, rack="rack-b"))
    node.end_turn()
    epoch = node.controller.image.brokers[OTHER].broker_epoch
    node.submit(UnfenceBroker(broker_id=OTHER, broker_epoch=epoch))
    node.end_turn()
    node.submit(create_topics(TopicSpec(name="shared", num_partitions=PARTITIONS, replication_factor=2)))
    node.end_turn()
    assert len(led_by_the_other(node)) == PARTITIONS // 2
    return node


def led_by_the_other(node: AdminPath) -> list[int]:
    partitions = node.controller.image.topics["shared"].partitions
    return [number for number, state in partitions.items() if state.leader == OTHER]


def ask(
    node: AdminPath,
    api: int,
    version: int,
    *partitions: int,
    listener: str = "PLAINTEXT",
    epoch: int = -1,
    replica_id: int = -1,
) -> Any:
    """A fetch of a replica must reach the leader; a consumer may read from any replica (KIP-392)."""
    connection = RecordingConnection(listener=listener)
    name, topic_id = "shared", node.topic_id("shared")
    if api == PRODUCE:
        data = tuple(
            PartitionProduceData(index=index, records=batch_of(b"a", now=node.clock.now_ms)) for index in partitions
        )
        topic = TopicProduceData(name=name if version < 13 else "", topic_id=topic_id, partition_data=data)
        request: Any = ProduceRequest(acks=1, timeout_ms=1000, topic_data=(topic,))
    else:
        wanted = tuple(
            FetchPartition(partition=index, current_leader_epoch=epoch, fetch_offset=0, partition_max_bytes=1000)
            for index in partitions
        )
        topics = (FetchTopic(topic=name if version < 13 else "", topic_id=topic_id, partitions=wanted),)
        sender = ReplicaState(replica_id=replica_id)
        request = FetchRequest(replica_state=sender, max_wait_ms=0, min_bytes=1, topics=topics)
    return node.send(request, version, connection=connection).response


def named(response: Any) -> list[tuple[int, str, int, str | None]]:
    return [(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]


@pytest.mark.parametrize(("api", "version"), [(PRODUCE, 10), (PRODUCE, 13), (FETCH, 16), (FETCH, 18)])
def test_a_refusals_new_leader_comes_with_its_endpoint(node: AdminPath, api: int, version: int) -> None:
    response = ask(node, api, version, *led_by_the_other(node)[:1], replica_id=3)
    assert named(response) == [(2, "10.0.0.2", 9094, "rack-b")]


@pytest.mark.parametrize(("api", "version"), [(PRODUCE, 12), (FETCH, 17)])
def test_a_leader_of_several_partitions_is_named_once(node: AdminPath, api: int, version: int) -> None:
    response = ask(node, api, version, *range(PARTITIONS), replica_id=3)
    assert named(response) == [(2, "10.0.0.2", 9094, "rack-b")]


@pytest.mark.parametrize(("api", "version"), [(PRODUCE, 12), (FETCH, 17)])
def test_a_leaders_endpoint_is_that_of_the_clients_listener(node: AdminPath, api: int, version: int) -> None:
    partitions = led_by_the_other(node)
    assert named(ask(node, api, version, *partitions, listener="INSIDE", replica_id=3)) == [
        (2, "192.168.0.2", 9094, "rack-b")
    ]
    assert named(ask(node, api, version, *partitions, listener="ELSEWHERE", replica_id=3)) == []


@pytest.mark.parametrize(("api", "version"), [(PRODUCE, 9), (PRODUCE, 12), (FETCH, 15), (FETCH, 17)])
def test_no_client_is_redirected_without_need(node: AdminPath, api: int, version: int) -> None:
    here = sorted(set(range(PARTITIONS)) - set(led_by_the_other(node)))
    assert named(ask(node, api, version, *here)) == []
    assert (api, version) not in {(PRODUCE, 9), (FETCH, 15)} or named(ask(node, api, version, *range(PARTITIONS))) == []


def test_a_reader_with_an_old_epoch_gets_the_address_of_the_new_leader(node: AdminPath) -> None:
    (partition, *_) = led_by_the_other(node)
    node.submit(FenceBroker(broker_id=OTHER, broker_epoch=node.controller.image.brokers[OTHER].broker_epoch))
    node.end_turn()
    response = ask(node, FETCH, 17, partition, epoch=0)
    ((answer,),) = (topic.partitions for topic in response.responses)
    assert (answer.error_code, answer.current_leader.leader_id) == (ErrorCode.FENCED_LEADER_EPOCH, 1)
    assert named(response) == [(1, "127.0.0.1", 9092, None)]
