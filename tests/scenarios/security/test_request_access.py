"""Access to topics, groups, transactions and the cluster: refused elements, narrowed lists, and what stays hidden."""

from typing import Any

import pytest

from tailrace.model.access import CLUSTER, Operation, SecuredType
from tailrace.model.acls.bindings import PatternType
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages import configs, groups, list_offsets, metadata, offsets, security, topics, transactions
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from testkit.coordinators.secured_path import ADMIN, SecuredPath

ALICE = "User:alice"
TOPIC, GROUP, OF_CLUSTER = SecuredType.TOPIC, SecuredType.GROUP, SecuredType.CLUSTER
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
)
TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


@pytest.fixture
def node() -> SecuredPath:
    node = SecuredPath({"auto.create.topics.enable": "true"})
    node.create_topics("orders", "secret", partitions=2)
    for group in ("mine", "hidden"):
        node.find_coordinator(group)
        for topic in ("orders", "secret"):
            assert node.commit(group, topic, 1).response.topics[0].partitions[0].error_code == 0
    return node


# Metadata


def shown(node: SecuredPath, *names: str | bytes, version: int = 13, **options: Any) -> list[tuple[int, Any]]:
    """The error and the name of each topic in an answer to Alice."""
    wanted = tuple(
        metadata.MetadataRequestTopic(name=name)
        if isinstance(name, str)
        else metadata.MetadataRequestTopic(name=None, topic_id=name)
        for name in names
    )
    request = metadata.MetadataRequest(topics=wanted, **options)
    return [(topic.error_code, topic.name) for topic in node.ask(ALICE, request, version).topics]


@pytest.mark.parametrize("version", [1, 8, 13])
def test_metadata_tells_a_forbidden_topic_from_a_missing_topic_to_no_stranger(node: SecuredPath, version: int) -> None:
    node.allow(ALICE, DESCRIBE, TOPIC, "orders")
    found = shown(node, "secret", "orders", "missing", version=version)
    assert found == [(TOPIC_REFUSED, "secret"), (0, "orders"), (TOPIC_REFUSED, "missing")]
    assert "missing" not in node.controller.image.topics


def test_metadata_by_id_tells_a_forbidden_topic_from_a_missing_topic_to_no_stranger(node: SecuredPath) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert shown(node, node.topic_id("secret"), bytes([7] * 16)) == [(unknown, None), (unknown, None)]
    node.allow(ALICE, READ, TOPIC, "secret")
    assert shown(node, node.topic_id("secret")) == [(0, "secret")]


@pytest.mark.parametrize("version", [0, 1, 13])
def test_metadata_of_all_topics_has_the_topics_that_may_be_described(node: SecuredPath, version: int) -> None:
    request = metadata.MetadataRequest(topics=() if version == 0 else None)
    assert node.ask(ALICE, request, version).topics == ()
    node.allow(ALICE, DESCRIBE, TOPIC, "ord", pattern=PatternType.PREFIXED)
    assert [topic.name for topic in node.ask(ALICE, request, version).topics] == ["orders"]


@pytest.mark.parametrize("kind", [TOPIC, OF_CLUSTER])
def test_a_topic_is_created_on_demand_for_a_client_that_may_create_it(node: SecuredPath, kind: SecuredType) -> None:
    node.allow(ALICE, DESCRIBE, TOPIC, "*")
    assert shown(node, "new", "orders") == [(TOPIC_REFUSED, "new"), (0, "orders")]
    assert "new" not in node.controller.image.topics
    node.allow(ALICE, CREATE, kind, "new" if kind is TOPIC else CLUSTER.name)
    assert shown(node, "new") == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "new")]
    assert shown(node, "new") == [(0, "new")]


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


def test_authorized_operations_are_those_of_the_client(node: SecuredPath) -> None:
    node.allow(ALICE, WRITE, TOPIC, "orders")
    node.allow(ALICE, READ, GROUP, "mine")
    asked = metadata.MetadataRequest(
        topics=(metadata.MetadataRequestTopic(name="orders"),),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    answer = node.ask(ALICE, asked, 8)
    assert answer.topics[0].topic_authorized_operations == bits(WRITE, DESCRIBE)
    assert answer.cluster_authorized_operations == 0  # the client may not describe the cluster
    described = node.ask(
        ALICE, groups.DescribeGroupsRequest(groups=("mine", "hidden"), include_authorized_operations=True), 5
    )
    assert [(group.error_code, group.authorized_operations) for group in described.groups] == [
        (0, bits(READ, DESCRIBE)),
        (GROUP_REFUSED, groups_not_asked()),
    ]
    node.allow(ALICE, Operation.ALTER, OF_CLUSTER, CLUSTER.name)
    of_cluster = metadata.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert node.ask(ALICE, of_cluster, 1).cluster_authorized_operations == bits(ALTER, DESCRIBE)


def groups_not_asked() -> int:
    return -(2**31)


def test_describe_topic_partitions_refuses_named_topics_and_leaves_out_listed_topics(node: SecuredPath) -> None:
    node.allow(ALICE, DESCRIBE, TOPIC, "orders")

    def pages(*names: str) -> list[tuple[int, str | None]]:
        wanted = tuple(metadata.TopicRequest(name=name) for name in names)
        request = metadata.DescribeTopicPartitionsRequest(topics=wanted, cursor=None)
        return [(topic.error_code, topic.name) for topic in node.ask(ALICE, request, 0).topics]

    assert pages() == [(0, "orders")]
    assert pages("secret", "orders", "missing") == [
        (TOPIC_REFUSED, "missing"),
        (0, "orders"),
        (TOPIC_REFUSED, "secret"),
    ]


# Offsets and groups


def test_a_commit_needs_read_on_the_group_and_on_each_topic(node: SecuredPath) -> None:
    def commit(group_id: str) -> list[tuple[str, int]]:
        partition = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=9, committed_metadata="")
        request = offsets.OffsetCommitRequest(
            group_id=group_id,
            member_id="",
            topics=tuple(
                offsets.OffsetCommitRequestTopic(name=name, partitions=(partition,)) for name in ("orders", "secret")
            ),
        )
        answer = node.ask(ALICE, request, 9)
        return sorted((topic.name, topic.partitions[0].error_code) for topic in answer.topics)

    assert commit("mine") == [("orders", GROUP_REFUSED), ("secret", GROUP_REFUSED)]
    node.allow(ALICE, READ, GROUP, "mine")
    node.allow(ALICE, READ, TOPIC, "orders")
    assert commit("mine") == [("orders", 0), ("secret", TOPIC_REFUSED)]
    assert commit("hidden") == [("orders", GROUP_REFUSED), ("secret", GROUP_REFUSED)]


def offsets_of(node: SecuredPath, version: int, topics: tuple[str, ...] | None) -> list[tuple[str, int, int]]:
    """The name, the offset and the error of each partition in the answer for the group `mine`."""
    if version >= 8:
        wanted = None
        if topics is not None:
            wanted = tuple(offsets.OffsetFetchRequestTopics(name=name, partition_indexes=(0,)) for name in topics)
        request = offsets.OffsetFetchRequest(groups=(offsets.OffsetFetchRequestGroup(group_id="mine", topics=wanted),))
        (group,) = node.ask(ALICE, request, version).groups
        assert group.error_code == 0
        found = group.topics
    else:
        old = None
        if topics is not None:
            old = tuple(offsets.OffsetFetchRequestTopic(name=name, partition_indexes=(0,)) for name in topics)
        answer = node.ask(ALICE, offsets.OffsetFetchRequest(group_id="mine", topics=old), version)
        assert answer.error_code == 0
        found = answer.topics
    return sorted((topic.name, part.committed_offset, part.error_code) for topic in found for part in topic.partitions)


@pytest.mark.parametrize("version", [5, 7, 9])
def test_an_offset_fetch_leaves_out_or_refuses_topics_that_may_not_be_described(
    node: SecuredPath, version: int
) -> None:
    node.allow(ALICE, DESCRIBE, GROUP, "mine")
    assert offsets_of(node, version, None) == []
    node.allow(ALICE, READ, TOPIC, "orders")
    assert offsets_of(node, version, None) == [("orders", 1, 0)]
    assert offsets_of(node, version, ("orders", "secret", "missing")) == [
        ("missing", -1, TOPIC_REFUSED),
        ("orders", 1, 0),
        ("secret", -1, TOPIC_REFUSED),
    ]


def test_an_offset_fetch_of_two_groups_is_answered_for_the_permitted_group(node: SecuredPath) -> None:
    node.allow(ALICE, DESCRIBE, GROUP, "mine")
    wanted = tuple(offsets.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("hidden", "mine", "gone"))
    answer = node.ask(ALICE, offsets.OffsetFetchRequest(groups=wanted), 9)
    found = {group.group_id: group.error_code for group in answer.groups}
    assert found == {"hidden": GROUP_REFUSED, "mine": 0, "gone": GROUP_REFUSED}
    old = node.ask(ALICE, offsets.OffsetFetchRequest(group_id="hidden", topics=None), 5)
    assert (old.error_code, old.topics) == (GROUP_REFUSED, ())


def test_offsets_are_deleted_of_permitted_topics(node: SecuredPath) -> None:
    node.allow(ALICE, DELETE, GROUP, "mine")
    node.allow(ALICE, READ, TOPIC, "orders")
    partition = (offsets.OffsetDeleteRequestPartition(partition_index=0),)
    request = offsets.OffsetDeleteRequest(
        group_id="mine",
        topics=tuple(
            offsets.OffsetDeleteRequestTopic(name=name, partitions=partition) for name in ("orders", "secret")
        ),
    )
    answer = node.ask(ALICE, request, 0)
    assert answer.error_code == 0
    found = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert found == {"orders": 0, "secret": TOPIC_REFUSED}


def test_groups_are_listed_that_may_be_described(node: SecuredPath) -> None:
    def listed(principal: str = ALICE) -> list[str]:
        request = groups.ListGroupsRequest(states_filter=(), types_filter=())
        return [group.group_id for group in node.ask(principal, request, 5).groups]

    assert (listed(ADMIN), listed()) == (["hidden", "mine"], [])
    node.allow(ALICE, READ, GROUP, "mine")
    assert listed() == ["mine"]
    node.allow(ALICE, DESCRIBE, OF_CLUSTER, CLUSTER.name)
    assert listed() == ["hidden", "mine"]


def test_groups_are_deleted_one_by_one(node: SecuredPath) -> None:
    node.allow(ALICE, DELETE, GROUP, "mine")
    answer = node.ask(ALICE, groups.DeleteGroupsRequest(groups_names=("hidden", "mine", "gone")), 2)
    found = {result.group_id: result.error_code for result in answer.results}
    assert found == {"hidden": GROUP_REFUSED, "mine": 0, "gone": GROUP_REFUSED}


@pytest.mark.parametrize("version", [3, 4])
def test_a_coordinator_is_shown_to_a_client_that_may_describe_the_group(node: SecuredPath, version: int) -> None:
    def code(name: str) -> int:
        request = groups.FindCoordinatorRequest(key=name, coordinator_keys=(name,))
        answer = node.ask(ALICE, request, version)
        found: int = answer.coordinators[0].error_code if version >= 4 else answer.error_code
        return found

    assert code("mine") == GROUP_REFUSED
    node.allow(ALICE, READ, GROUP, "mine")
    assert (code("mine"), code("hidden")) == (0, GROUP_REFUSED)


def test_a_member_subscribes_to_topics_that_it_may_describe(node: SecuredPath) -> None:
    node.allow(ALICE, READ, GROUP, "new")
    node.allow(ALICE, DESCRIBE, TOPIC, "orders")

    def join(*names: str) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id="new",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=names,
            topic_partitions=(),
        )
        return node.ask(ALICE, request, 1)

    assert join("orders", "secret").error_code == TOPIC_REFUSED
    assert join("orders").error_code == 0


# Administration


def test_topics_are_created_and_deleted_one_by_one(node: SecuredPath) -> None:
    node.allow(ALICE, CREATE, TOPIC, "a")
    new = tuple(
        topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
        for name in ("a", "b")
    )
    answer = node.ask(ALICE, topics.CreateTopicsRequest(topics=new), 7)
    by_name = {topic.name: topic for topic in answer.topics}
    assert (by_name["a"].error_code, by_name["b"].error_code) == (0, TOPIC_REFUSED)
    assert by_name["a"].topic_config_error_code == TOPIC_REFUSED  # the settings may not be described
    assert (by_name["a"].num_partitions, by_name["a"].configs) == (-1, None)

    node.allow(ALICE, DELETE, TOPIC, "a")
    node.allow(ALICE, DESCRIBE, TOPIC, "orders")
    ids = (node.topic_id("a"), node.topic_id("orders"), node.topic_id("secret"), bytes([7] * 16))
    gone = node.ask(
        ALICE,
        topics.DeleteTopicsRequest(
            topics=tuple(topics.DeleteTopicState(name=None, topic_id=topic_id) for topic_id in ids), timeout_ms=1_000
        ),
        6,
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    found = {bytes(result.topic_id): result.error_code for result in gone.responses}
    assert found == {ids[0]: 0, ids[1]: TOPIC_REFUSED, ids[2]: unknown, ids[3]: unknown}
    assert sorted(name for name in node.controller.image.topics if not name.startswith("__")) == ["orders", "secret"]


def test_a_client_that_may_create_topics_of_the_cluster_creates_any(node: SecuredPath) -> None:
    node.allow(ALICE, CREATE, OF_CLUSTER, CLUSTER.name)
    new = topics.CreatableTopic(name="any", num_partitions=1, replication_factor=1, assignments=(), configs=())
    (topic,) = node.ask(ALICE, topics.CreateTopicsRequest(topics=(new,)), 7).topics
    assert topic.error_code == 0


def test_settings_are_described_of_permitted_resources(node: SecuredPath) -> None:
    node.allow(ALICE, Operation.ALTER_CONFIGS, TOPIC, "orders")
    wanted = tuple(
        configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((2, "orders"), (2, "secret"), (2, "missing"), (4, "1"), (32, "mine"))
    )
    answer = node.ask(ALICE, configs.DescribeConfigsRequest(resources=wanted), 4)
    found = {result.resource_name: (result.error_code, bool(result.configs)) for result in answer.results}
    assert found == {
        "orders": (0, True),
        "secret": (TOPIC_REFUSED, False),
        "missing": (TOPIC_REFUSED, False),
        "1": (CLUSTER_REFUSED, False),
        "mine": (GROUP_REFUSED, False),
    }


def test_settings_are_altered_of_permitted_resources(node: SecuredPath) -> None:
    node.allow(ALICE, Operation.ALTER_CONFIGS, TOPIC, "orders")
    change = (configs.IncrementallyAlterableConfig(name="retention.ms", config_operation=0, value="1000"),)
    wanted = tuple(
        configs.IncrementalAlterConfigsResource(resource_type=2, resource_name=name, configs=change)
        for name in ("secret", "orders")
    )
    answer = node.ask(ALICE, configs.IncrementalAlterConfigsRequest(resources=wanted, validate_only=False), 1)
    found = {result.resource_name: result.error_code for result in answer.responses}
    assert found == {"secret": TOPIC_REFUSED, "orders": 0}
    assert node.controller.image.topic_overrides("secret") == {}


def test_ends_are_shown_of_topics_that_may_be_described(node: SecuredPath) -> None:
    node.allow(ALICE, DESCRIBE, TOPIC, "orders")
    part = (list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1),)
    request = list_offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=tuple(
            list_offsets.ListOffsetsTopic(name=name, partitions=part) for name in ("secret", "orders", "gone")
        ),
    )
    answer = node.ask(ALICE, request, 7)
    found = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert found == {"secret": TOPIC_REFUSED, "orders": 0, "gone": TOPIC_REFUSED}


def test_partitions_are_added_to_a_transaction_together_or_not_at_all(node: SecuredPath) -> None:
    node.allow(ALICE, WRITE, SecuredType.TRANSACTIONAL_ID, "t")
    node.allow(ALICE, WRITE, TOPIC, "orders")
    request = transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=tuple(
            transactions.AddPartitionsToTxnTopic(name=name, partitions=(0,)) for name in ("orders", "secret")
        ),
    )
    answer = node.ask(ALICE, request, 3)
    found = {
        topic.name: topic.results_by_partition[0].partition_error_code for topic in answer.results_by_topic_v3_and_below
    }
    assert found == {"orders": ErrorCode.OPERATION_NOT_ATTEMPTED, "secret": TOPIC_REFUSED}


# The rules themselves


def test_rules_are_described_and_changed_by_administrators_of_the_cluster(node: SecuredPath) -> None:
    rule = node.allow(ALICE, DESCRIBE, OF_CLUSTER, CLUSTER.name)
    everything = security.DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    (resource,) = node.ask(ALICE, everything, 3).resources
    assert (resource.resource_type, resource.resource_name) == (rule.resource_type, rule.resource_name)
    creation = security.AclCreation(
        resource_type=2, resource_name="orders", principal=ALICE, host="*", operation=2, permission_type=3
    )
    (refused,) = node.ask(ALICE, security.CreateAclsRequest(creations=(creation,)), 3).results
    assert refused.error_code == CLUSTER_REFUSED
    node.revoke(rule)
    assert node.ask(ALICE, everything, 3).error_code == CLUSTER_REFUSED


def test_the_outcome_of_each_rule_and_filter_is_its_own(node: SecuredPath) -> None:
    def creation(name: str, kind: int = 2) -> security.AclCreation:
        return security.AclCreation(
            resource_type=kind, resource_name=name, principal=ALICE, host="*", operation=3, permission_type=3
        )

    wanted = (creation("orders"), creation(""), creation("orders"), creation("x", 1))
    results = node.ask(ADMIN, security.CreateAclsRequest(creations=wanted), 3).results
    invalid = ErrorCode.INVALID_REQUEST
    assert [result.error_code for result in results] == [0, invalid, 0, invalid]

    def by_name(name: str | None, operation: int = 1) -> security.DeleteAclsFilter:
        return security.DeleteAclsFilter(
            resource_type_filter=2,
            resource_name_filter=name,
            principal_filter=None,
            host_filter=None,
            operation=operation,
            permission_type=1,
        )

    filters = (by_name("none"), by_name("orders", 0), by_name("orders"), by_name(None))
    outcomes = node.ask(ADMIN, security.DeleteAclsRequest(filters=filters), 3).filter_results
    assert [(found.error_code, len(found.matching_acls)) for found in outcomes] == [
        (0, 0),
        (invalid, 0),
        (0, 1),
        (0, 1),
    ]
