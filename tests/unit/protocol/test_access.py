"""The access that each request needs: its operations, and the resources that it names."""

import pytest

from tailrace.model.access import CLUSTER, Operation, SecuredResource, SecuredType
from tailrace.protocol.access import EVERYONE, topic_resource
from tailrace.protocol.headers import encode_request
from tailrace.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.protocol.messages.fetch import FetchRequest, FetchTopic, ReplicaState
from tailrace.protocol.messages.groups import DeleteGroupsRequest, FindCoordinatorRequest
from tailrace.protocol.messages.metadata import DescribeClusterRequest
from tailrace.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData, form_of
from tailrace.protocol.messages.security import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    TokenPrincipal,
)
from tailrace.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    InitProducerIdRequest,
)
from tailrace.protocol.registry import APIS, FORWARDED_APIS, Listeners, api_of
from tailrace.protocol.request_headers import decode_request_header
from tailrace.protocol.schema import decode_from
from testkit.nodes.data_path import batch_of

OPEN = {
    "SaslHandshake",
    "ApiVersions",
    "SaslAuthenticate",
    "ListTransactions",
    "RenewDelegationToken",
    "ExpireDelegationToken",
}
"""APIs that need no access, as in Kafka: a list leaves out what the client may not describe, and a token is changed by
its owner and its renewers."""
TOPIC_ID = bytes(range(16))


def needed(request: object) -> set[tuple[Operation, SecuredResource]]:
    """The accesses of a request, as pairs."""
    return {
        (access.operation, resource)
        for access in api_of(type(request)).access
        for resource in access.resources_of(request)
    }


def topic(name: str) -> SecuredResource:
    return SecuredResource(SecuredType.TOPIC, name)


def group(name: str) -> SecuredResource:
    return SecuredResource(SecuredType.GROUP, name)


def transactional_id(name: str) -> SecuredResource:
    return SecuredResource(SecuredType.TRANSACTIONAL_ID, name)


def test_every_api_needs_an_access_but_the_open_apis() -> None:
    assert {api.name for api in APIS.values() if api.access is EVERYONE} == OPEN
    assert [api.name for api in APIS.values() if not api.access and api.name not in OPEN] == []


def test_an_api_of_controllers_alone_is_one_of_peers() -> None:
    for api in APIS.values():
        if api.listeners is Listeners.CONTROLLERS:
            assert [(access.operation, list(access.resources_of(None))) for access in api.access] == [
                (Operation.CLUSTER_ACTION, [CLUSTER])
            ]


def test_a_forwarded_change_is_no_read() -> None:
    reads = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    changing = [api for api in FORWARDED_APIS.values() if api.forwarding.name.startswith("CHANGE")]
    assert changing
    assert [api.name for api in changing if {access.operation for access in api.access} & reads] == []


def test_a_produce_writes_its_topics_and_its_transactional_id() -> None:
    data = (TopicProduceData(name="a", partition_data=()), TopicProduceData(name="b", partition_data=()))
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=data)
    write = Operation.WRITE
    assert needed(request) == {(write, topic("a")), (write, topic("b"))}
    transactional = ProduceRequest(transactional_id="t", acks=-1, timeout_ms=1, topic_data=data[:1])
    assert needed(transactional) == {(write, topic("a")), (write, transactional_id("t"))}


def test_a_topic_may_be_named_by_its_id() -> None:
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(FetchTopic(topic_id=TOPIC_ID, partitions=()),))
    assert needed(request) == {(Operation.READ, SecuredResource(SecuredType.TOPIC, "", TOPIC_ID))}


def test_topics_to_delete_are_named_in_either_form() -> None:
    assert needed(DeleteTopicsRequest(topic_names=("a",), timeout_ms=1)) == {(Operation.DELETE, topic("a"))}
    by_element = DeleteTopicsRequest(topics=(DeleteTopicState(name="a"),), timeout_ms=1)
    assert needed(by_element) == {(Operation.DELETE, topic("a"))}


def test_an_offset_fetch_describes_the_groups_of_its_version() -> None:
    old = OffsetFetchRequest(group_id="g", topics=(OffsetFetchRequestTopic(name="a", partition_indexes=(0,)),))
    describe = Operation.DESCRIBE
    assert needed(old) == {(describe, group("g")), (describe, topic("a"))}
    named = OffsetFetchRequestTopics(name="b", partition_indexes=(0,))
    groups = (OffsetFetchRequestGroup(group_id="x", topics=(named,)), OffsetFetchRequestGroup(group_id="", topics=None))
    assert needed(OffsetFetchRequest(groups=groups)) == {
        (describe, group("x")),
        (describe, group("")),
        (describe, topic("b")),
    }


@pytest.mark.parametrize(("key_type", "resource"), [(0, group), (1, transactional_id)])
def test_finding_a_coordinator_needs_a_description_of_its_key(key_type: int, resource: object) -> None:
    assert callable(resource)
    request = FindCoordinatorRequest(key="k", key_type=key_type)
    assert needed(request) == {(Operation.DESCRIBE, resource("k"))}
    several = FindCoordinatorRequest(key_type=key_type, coordinator_keys=("k", "l"))
    assert needed(several) == {(Operation.DESCRIBE, resource("k")), (Operation.DESCRIBE, resource("l"))}


def test_any_client_may_know_the_brokers_and_administrators_the_controllers() -> None:
    assert needed(DescribeClusterRequest(include_cluster_authorized_operations=False)) == set()
    of_controllers = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)
    assert needed(of_controllers) == {(Operation.ALTER, CLUSTER)}


def test_settings_of_brokers_are_those_of_the_cluster() -> None:
    kinds = {2: topic("x"), 4: CLUSTER, 16: CLUSTER, 32: group("x")}
    for kind, resource in kinds.items():
        named = DescribeConfigsResource(resource_type=kind, resource_name="x", configuration_keys=None)
        assert needed(DescribeConfigsRequest(resources=(named,))) == {(Operation.DESCRIBE_CONFIGS, resource)}


def test_a_producer_adds_partitions_to_its_transaction_and_a_broker_acts_for_the_cluster() -> None:
    topics = (AddPartitionsToTxnTopic(name="a", partitions=(0,)),)
    of_producer = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )
    assert needed(of_producer) == {(Operation.WRITE, transactional_id("t")), (Operation.WRITE, topic("a"))}
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="t", producer_id=1, producer_epoch=0, verify_only=False, topics=topics
    )
    assert needed(AddPartitionsToTxnRequest(transactions=(transaction,))) == {(Operation.CLUSTER_ACTION, CLUSTER)}


def test_groups_are_named_by_themselves() -> None:
    assert needed(DeleteGroupsRequest(groups_names=("g", "h"))) == {
        (Operation.DELETE, group("g")),
        (Operation.DELETE, group("h")),
    }


def test_a_fetch_of_a_replica_acts_for_the_cluster() -> None:
    action = {(Operation.CLUSTER_ACTION, CLUSTER)}
    topics = (FetchTopic(topic="a", partitions=()),)
    assert needed(FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, topics=topics)) == action
    state = ReplicaState(replica_id=2, replica_epoch=1)
    assert needed(FetchRequest(replica_state=state, max_wait_ms=0, min_bytes=0, topics=topics)) == action


@pytest.mark.parametrize("version", [9, 13])
def test_a_produce_of_a_known_form_names_its_resources_without_being_decoded(version: int) -> None:
    data = (PartitionProduceData(index=3, records=batch_of(b"v")),)
    by_id = version >= 13
    topic_data = TopicProduceData(
        name="" if by_id else "a", topic_id=TOPIC_ID if by_id else bytes(16), partition_data=data
    )
    request = ProduceRequest(transactional_id="t", acks=-1, timeout_ms=1, topic_data=(topic_data,))
    frame = memoryview(b"".join(encode_request(request, version, correlation_id=1, client_id="c")))
    _, position = decode_request_header(frame)
    decoded, _ = decode_from(ProduceRequest, version, frame, position)
    form = form_of(frame, version, "c", decoded)
    assert form is not None
    of_form = {(Operation.WRITE, topic_resource(form.topic)), *needed(form.request)}
    assert (
        of_form
        == needed(decoded)
        == {
            (Operation.WRITE, SecuredResource(SecuredType.TOPIC, topic_data.name, topic_data.topic_id)),
            (Operation.WRITE, transactional_id("t")),
        }
    )


def test_a_producer_without_transactional_id_writes_idempotently() -> None:
    idempotent = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    assert needed(idempotent) == {(Operation.IDEMPOTENT_WRITE, CLUSTER)}
    transactional = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1)
    assert needed(transactional) == {(Operation.WRITE, transactional_id("t"))}


def test_a_token_of_another_user_needs_an_access_to_that_user() -> None:
    user = SecuredResource(SecuredType.USER, "User:alice")
    own = CreateDelegationTokenRequest(renewers=(), max_lifetime_ms=1)
    assert needed(own) == set()
    of_alice = CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name="alice", renewers=(), max_lifetime_ms=1
    )
    assert needed(of_alice) == {(Operation.CREATE_TOKENS, user)}
    described = TokenPrincipal(principal_type="User", principal_name="alice")
    assert needed(DescribeDelegationTokenRequest(owners=(described,))) == {(Operation.DESCRIBE_TOKENS, user)}
    assert needed(DescribeDelegationTokenRequest(owners=None)) == set()
